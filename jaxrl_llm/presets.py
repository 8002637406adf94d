"""Published recipes by name: `--config=configs/quickstart.py:gspo`.

A preset chooses methods and their numbers only. The config keeps its sizes: rollout batch, learning
rate, lengths, and the weight of the reference KL unless the recipe depends on it.
`objective/README.md` says for each recipe where the paper and its public code differ.
"""

import math

from ml_collections import config_dict

from jaxrl_llm.config import ConfigError
from jaxrl_llm.fields import did_you_mean


def _recipe(estimator: str, advantage: str, aggregation: str, **others) -> dict:
  """Returns flat config keys; a double underscore in `others` stands for the dot."""
  return {"estimator.name": estimator, "advantage.name": advantage, "aggregation.name": aggregation,
          **{key.replace("__", "."): value for key, value in others.items()}}


_SEQUENCE_TIS = {"correction__level": "sequence", "correction__cap": 5.0}

PRESETS = {
    # No ratio: every further optimizer batch of a rollout is off-policy, which a run warns of.
    "reinforce":
        _recipe("reinforce", "none", "token"),
    "rloo":
        _recipe("reinforce", "rloo", "token"),
    "reinforce_pp":
        _recipe("reinforce", "reinforce_pp", "token"),
    "opo":
        _recipe("reinforce", "opo", "token"),
    # Clipped token ratios.
    "grpo":
        _recipe("ppo", "grpo", "sequence"),
    "dr_grpo":
        _recipe("ppo", "dr_grpo", "fixed"),
    # The soft overlong penalty (shaping.overlong_buffer) must be shorter than a completion, so the
    # config sets it. Published: 4,096 of 20,480 tokens, a fifth.
    "dapo":
        _recipe("ppo", "grpo", "token", estimator__clip_low=0.2, estimator__clip_high=0.28,
                dynamic_sampling__enabled=True),
    "cispo":
        _recipe("cispo", "grpo", "token"),
    "sapo":
        _recipe("sapo", "grpo", "sequence"),
    "dro":
        _recipe("dro", "grpo", "token"),
    "m2po":
        _recipe("m2po", "grpo", "token"),
    # Ratios of a prefix.
    "ctpo":
        _recipe("ctpo", "grpo", "sequence", **_SEQUENCE_TIS),
    "ctpo_geomean":
        _recipe("ctpo_geomean", "grpo", "sequence", **_SEQUENCE_TIS),
    # Its bounds are unpublished; these are those of `cispo`: above only.
    "minpro":
        _recipe("minpro", "grpo", "token", estimator__clip_high=4.0),
    # Ratios of a sequence.
    "gspo":
        _recipe("gspo", "grpo", "sequence"),
    "luspo":
        _recipe("gspo", "grpo", "sequence_sum", estimator__clip_low=2e-3,
                estimator__clip_high=2.5e-3),
    "gmpo":
        _recipe("gmpo", "grpo", "sequence"),
    "seq_is":
        _recipe("seq_is", "grpo", "sequence"),
    # The sign of the reward chooses the side, so a wrong row must be negative, not 0.
    "topr":
        _recipe("topr", "none", "sequence_sum", shaping__name="signed"),
    "vespo":
        _recipe("vespo", "grpo", "token"),
    # Masks by how far the probability moved.
    "dppo_tv":
        _recipe("dppo_tv", "grpo", "token"),
    "dppo_kl":
        _recipe("dppo_kl", "grpo", "token"),
    "cppo":
        _recipe("cppo", "grpo", "token"),
    # Sampler / trainer mismatch.
    # With `low`, a weight above the cap becomes 0 instead of the cap: AReaL's mask.
    "decoupled_ppo":
        _recipe("ppo", "grpo", "token", updates__anchor="recomputed", correction__level="token",
                correction__low=0.0, correction__cap=5.0),
    "icepop":
        _recipe("ppo", "grpo", "sequence", updates__anchor="recomputed", correction__level="token",
                correction__low=0.5, correction__cap=5.0),
    "trm":
        _recipe("ppo", "grpo", "token", updates__anchor="recomputed",
                correction__reject=(("seq_max_k3", None, 0.1),)),
    "trm_avg":
        _recipe("ppo", "grpo", "token", updates__anchor="recomputed",
                correction__reject=(("seq_mean_k3", None, 0.002),)),
    # The report gives neither the threshold nor the KL weight; both are own choices.
    "deepseek":
        _recipe("ppo", "grpo", "sequence", correction__sequence_delta=0.05, kl__name="k3",
                kl__coef=1e-3, kl__place="loss", kl__importance=True),
    "dvp":
        _recipe("ppo", "grpo", "sequence", vocabulary__min_p=math.exp(-13)),
    # Credit and weighting.
    "ppo_critic":
        _recipe("ppo", "gae", "token"),
    # Both published fully on-policy: with `updates.optimizer_batches=1` the clip never acts.
    "otb":
        _recipe("ppo", "otb", "token"),
    "tir_otb":
        _recipe("ppo", "tir_otb", "token"),
    "tempo":
        _recipe("ppo", "tempo", "token", estimator__clip_low=0.2, estimator__clip_high=0.28),
    "arca":
        _recipe("ppo", "arca", "token", parameters__train="lora"),
    "balanced":
        _recipe("ppo", "grpo", "balanced"),
    "grpo_lambda":
        _recipe("ppo", "grpo", "sequence", shaping__name="grpo_lambda"),
    "pipo":
        _recipe("ppo", "grpo", "token", pipo__enabled=True),
}


def apply(config: config_dict.ConfigDict, name: str) -> config_dict.ConfigDict:
  """Returns `config` after setting the keys of a preset.

  Raises:
    ConfigError: an unknown name; the message lists all presets.
  """
  if name not in PRESETS:
    raise ConfigError(
        f"preset {name!r}: known are {', '.join(PRESETS)}.{did_you_mean(name, PRESETS)}")
  config.update_from_flattened_dict(PRESETS[name])
  return config
