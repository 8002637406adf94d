"""Published recipes by name: `--config=configs/quickstart.py:gspo`. A preset sets components, nothing else."""

from ml_collections import config_dict

from jaxrl_llm.config import ConfigError
from jaxrl_llm.fields import did_you_mean

PRESETS = {
    # name: {key: value}
    "reinforce": {"estimator.name": "reinforce", "advantage.name": "none", "aggregation.name": "token"},
    "rloo": {"estimator.name": "reinforce", "advantage.name": "rloo", "aggregation.name": "token"},
    "grpo": {"estimator.name": "ppo", "advantage.name": "grpo", "aggregation.name": "sequence"},
    "dr_grpo": {"estimator.name": "ppo", "advantage.name": "dr_grpo", "aggregation.name": "fixed"},
    "gspo": {"estimator.name": "gspo", "advantage.name": "grpo", "aggregation.name": "sequence"},
    "seq_is": {"estimator.name": "seq_is", "advantage.name": "grpo", "aggregation.name": "sequence"},
    "ctpo": {"estimator.name": "ctpo", "advantage.name": "grpo", "aggregation.name": "sequence",
             "correction.level": "sequence", "correction.cap": 5.0},
    "minpro": {"estimator.name": "minpro", "advantage.name": "grpo", "aggregation.name": "token"},
}


def apply(config: config_dict.ConfigDict, name: str) -> config_dict.ConfigDict:
  """`config` with the components of a preset.

  Raises:
    ConfigError: listing the table for a name that is not in it.
  """
  if name not in PRESETS:
    raise ConfigError(f"preset {name!r}: known are {', '.join(PRESETS)}.{did_you_mean(name, PRESETS)}")
  config.update_from_flattened_dict(PRESETS[name])
  return config
