"""Every configuration value: its name, default, unit, range and checks.

`configs/*.py` edit the `ml_collections.ConfigDict` of `base_config()`; `from_dict` turns it into
the frozen, hashable `Config`. `python -m jaxrl_llm.config` prints the commented listing.

A method (estimator, advantage, aggregation, shaping, task) owns its hyperparameters: a small frozen
dataclass next to its formula. A section of the config is a method's name and that class's fields. A
number that is left out, or None in a ConfigDict, has the method's default; "none" means no bound.
"""

from jaxrl_llm.config.checks import check, fill, without_unread
from jaxrl_llm.config.convert import from_dict, keys, to_dict
from jaxrl_llm.config.evaluation import CheckpointConfig, EvaluationConfig
from jaxrl_llm.config.model import ModelConfig, RopeScalingConfig, check_model, is_uniform
from jaxrl_llm.config.objective import (
  AdvantageConfig,
  AggregationConfig,
  BatchConfig,
  CorrectionConfig,
  CriticConfig,
  EntropyConfig,
  EstimatorConfig,
  KLConfig,
  LossConfig,
  TeacherConfig,
  TermConfig,
  VocabularyConfig,
)
from jaxrl_llm.config.plugins import load_plugins
from jaxrl_llm.config.rollout import (
  DynamicSamplingConfig,
  RolloutConfig,
  RolloutFilesConfig,
  ServerConfig,
)
from jaxrl_llm.config.root import Config
from jaxrl_llm.config.sections import (
  MeshConfig,
  OptimizerConfig,
  ParametersConfig,
  SamplerConfig,
  ShapingConfig,
  StepConfig,
  TransformConfig,
  UpdateConfig,
  WarmStartConfig,
  WriterConfig,
)
from jaxrl_llm.config.task import (
  EnvironmentConfig,
  EvaluationSetConfig,
  PromptConfig,
  RewardConfig,
  SetPromptConfig,
  TaskConfig,
  ToolConfig,
)
from jaxrl_llm.fields import DEFAULT, ConfigError
from jaxrl_llm.late import late_names

__all__ = [
    "AdvantageConfig", "AggregationConfig", "BatchConfig", "CheckpointConfig", "Config",
    "ConfigError", "CorrectionConfig", "CriticConfig", "DEFAULT", "DataConfig",
    "DynamicSamplingConfig", "EntropyConfig", "EnvironmentConfig", "EstimatorConfig",
    "EvaluationConfig", "EvaluationSetConfig", "GymConfig", "KLConfig", "LossConfig", "MeshConfig",
    "ModelConfig", "OptimizerConfig", "ParametersConfig", "PromptConfig",
    "RewardConfig", "RolloutConfig", "RolloutFilesConfig", "RopeScalingConfig",
    "SamplerConfig", "ServerConfig", "SetPromptConfig", "ShapingConfig", "StepConfig", "TaskConfig",
    "TeacherConfig", "TermConfig", "ToolConfig", "TransformConfig", "UpdateConfig",
    "VocabularyConfig", "WarmStartConfig", "WriterConfig", "base_config", "check", "check_model",
    "describe", "fill", "from_dict", "from_saved", "is_uniform", "keys", "load_plugins",
    "read_saved", "to_dict", "without_unread",
]

def base_config():
  """Returns a ConfigDict of all keys with their defaults, for `configs/*.py` to edit.

  A method's own hyperparameters are None, which means the method's default.
  """
  from jaxrl_llm.config import named  # Here: kernels and benchmarks run without ml_collections.

  return named.config_dict_of(Config)


# Sections that only one task reads, defined next to that task, and what a run does not call.
__getattr__ = late_names(__name__, {
    "DataConfig": "jaxrl_llm.tasks.data",
    **dict.fromkeys(("from_saved", "read_saved"), "jaxrl_llm.config.saved"),
    "describe": "jaxrl_llm.config.listing",
    "GymConfig": "jaxrl_llm.tasks.keys",
})
