"""Decorators for parts of the user's own: one for each kind, all called alike.

  from jaxrl_llm import register

  @register.reward("short", limit=20)
  def short(problem, completion, cfg):
    return {"short": len(completion) < cfg.limit}

The first argument is the name in the config (`reward.name=task,short`), keywords are numbers with
their defaults (`reward.limit=30`). The file is named in `config.plugins`. Each decorator's own
documentation says what the function gets and returns; experiments/extend has a page for each kind.
"""

from jaxrl_llm import paper_table
from jaxrl_llm.build.backends import register as backend
from jaxrl_llm.grading.grading import register as verifier
from jaxrl_llm.objective.advantages import register as advantage
from jaxrl_llm.objective.aggregation import register as aggregation
from jaxrl_llm.objective.estimators import register as estimator
from jaxrl_llm.objective.terms import register as loss_term
from jaxrl_llm.reporting.metric_writers import register as metric_writer
from jaxrl_llm.rollouts.environment import register as environment
from jaxrl_llm.rollouts.tools import register as tool
from jaxrl_llm.tasks import register as task
from jaxrl_llm.tasks.mappings import register as mapping
from jaxrl_llm.tasks.rewards import register as reward
from jaxrl_llm.tasks.shaping import register as shaping
from jaxrl_llm.training.columns import register as column
from jaxrl_llm.training.optimizers import register as optimizer
from jaxrl_llm.training.transforms import register as update_transform

__all__ = [
    "advantage", "aggregation", "backend", "column", "environment", "estimator", "loss_term",
    "mapping", "metric_writer", "optimizer", "reward", "shaping", "task", "tool",
    "update_transform", "verifier"
]


def __getattr__(name: str):
  """Returns a decorator that a paper brings; its package is imported."""
  paper = paper_table.load("decorator", name)
  if paper is None:
    names = ", ".join([*__all__, *paper_table.names("decorator")])
    raise AttributeError(f"register.{name}: there is no such decorator. Known are {names}.")
  return getattr(paper, name)
