"""Every name, default, unit, range and check of a configuration value.

`configs/*.py` build an `ml_collections.ConfigDict` from `base_config()`; `from_dict` turns it into
the frozen, hashable `Config`. `python -m jaxrl_llm.config` prints the commented listing.

Numbers of an estimator have three states. In a Python call: left out (`DEFAULT`) means the
estimator's registered default, a number is that number, `None` means no bound. In a ConfigDict,
where a key cannot be left out, `None` means the default and the string "none" means no bound.
"""

from jaxrl_llm.config.checks import check
from jaxrl_llm.config.convert import base_config, describe, from_dict, to_dict
from jaxrl_llm.config.model import ModelConfig, RopeScalingConfig, check_model
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
  VocabularyConfig,
)
from jaxrl_llm.config.sections import (
  CheckpointConfig,
  Config,
  DynamicSamplingConfig,
  EvaluationConfig,
  MeshConfig,
  OptimizerConfig,
  ParametersConfig,
  PipoConfig,
  RolloutConfig,
  SamplerConfig,
  ShapingConfig,
  StepConfig,
  UpdateConfig,
  WarmStartConfig,
)
from jaxrl_llm.config.task import (
  CountdownConfig,
  DataConfig,
  GymConfig,
  PromptConfig,
  TaskConfig,
  ToolArithmeticConfig,
)
from jaxrl_llm.fields import DEFAULT, ConfigError, Number

__all__ = [
    "AdvantageConfig",
    "AggregationConfig",
    "BatchConfig",
    "CheckpointConfig",
    "Config",
    "ConfigError",
    "CorrectionConfig",
    "CountdownConfig",
    "CriticConfig",
    "DEFAULT",
    "DataConfig",
    "DynamicSamplingConfig",
    "EntropyConfig",
    "EstimatorConfig",
    "EvaluationConfig",
    "GymConfig",
    "KLConfig",
    "LossConfig",
    "MeshConfig",
    "ModelConfig",
    "Number",
    "OptimizerConfig",
    "ParametersConfig",
    "PipoConfig",
    "PromptConfig",
    "RolloutConfig",
    "RopeScalingConfig",
    "SamplerConfig",
    "ShapingConfig",
    "StepConfig",
    "TaskConfig",
    "ToolArithmeticConfig",
    "UpdateConfig",
    "VocabularyConfig",
    "WarmStartConfig",
    "base_config",
    "check",
    "check_model",
    "describe",
    "from_dict",
    "to_dict",
]
