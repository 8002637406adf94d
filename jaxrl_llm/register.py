"""Decorators for parts of the user's own: one for each kind, all called alike.

  from jaxrl_llm import register

  @register.reward("short", limit=20)
  def short(problem, completion, cfg):
    return {"short": len(completion) < cfg.limit}

The first argument is the name in the config (`reward.name=task,short`), keywords are numbers with
their defaults (`reward.limit=30`). The file is named in `config.plugins`. Each decorator's own
documentation says what the function gets and returns; experiments/extend has a page for each kind.
"""

from jaxrl_llm.grading.grading import register as verifier
from jaxrl_llm.objective.advantages import register as advantage
from jaxrl_llm.objective.aggregation import register as aggregation
from jaxrl_llm.objective.estimators import register as estimator
from jaxrl_llm.objective.mtp import register as mtp
from jaxrl_llm.reporting.metric_writers import register as metric_writer
from jaxrl_llm.rollouts.environment import register as environment
from jaxrl_llm.rollouts.tools import register as tool
from jaxrl_llm.tasks import register as task
from jaxrl_llm.tasks.mappings import register as mapping
from jaxrl_llm.tasks.rewards import register as reward
from jaxrl_llm.tasks.shaping import register as shaping

__all__ = [
    "advantage", "aggregation", "environment", "estimator", "mapping", "metric_writer",
    "mtp", "reward", "shaping", "task", "tool", "verifier"
]
