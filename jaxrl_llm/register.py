"""Decorators for parts of the user's own: one for each kind, all called alike.

  from jaxrl_llm import register

  @register.reward("short", limit=20)
  def short(problem, completion, cfg):
    return {"short": len(completion) < cfg.limit}

The first argument is the name in the config (`reward.name=task,short`), keywords are numbers with
their defaults (`reward.limit=30`). The file, or the module of a folder of files, is named in
`config.plugins`. Each decorator's own documentation says what the function gets and returns;
experiments/extend has a page for each kind. A rule of the vocabulary has no name in the config: its
number is the key (`vocabulary.epsilon=0.01`). Two doors decorate nothing: `metrics` takes the
meanings of a plugin's metrics, `statistic_column` the name of a column that the anchor's pass has.
"""

from jaxrl_llm.grading.grading import register as verifier
from jaxrl_llm.objective.advantages import register as advantage
from jaxrl_llm.objective.aggregation import register as aggregation
from jaxrl_llm.objective.estimators import register as estimator
from jaxrl_llm.objective.terms import register as loss_term
from jaxrl_llm.ops.vocabulary import register as vocabulary
from jaxrl_llm.registry import FAMILIES
from jaxrl_llm.reporting.glossary import register as metrics
from jaxrl_llm.reporting.metric_writers import register as metric_writer
from jaxrl_llm.rollouts.backends import register as backend
from jaxrl_llm.rollouts.environment_table import register as environment
from jaxrl_llm.rollouts.tools import register as tool
from jaxrl_llm.tasks import register as task
from jaxrl_llm.tasks.mappings import register as mapping
from jaxrl_llm.tasks.rewards import register as reward
from jaxrl_llm.tasks.shaping import register as shaping
from jaxrl_llm.training.columns import register as column
from jaxrl_llm.training.columns import register_statistic as statistic_column
from jaxrl_llm.training.optimizers import register as optimizer
from jaxrl_llm.training.transforms import register as update_transform

family = FAMILIES.register  # a subclass of models.families.Family, by its `model_type`

__all__ = [
    "advantage", "aggregation", "backend", "column", "environment", "estimator", "family",
    "loss_term", "mapping", "metric_writer", "metrics", "optimizer", "reward", "shaping",
    "statistic_column", "task", "tool", "update_transform", "verifier", "vocabulary"
]
