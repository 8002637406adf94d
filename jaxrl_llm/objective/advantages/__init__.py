"""Advantages, by name."""

from jaxrl_llm.objective.advantages import (
  critic,
  discounted,
  group,
  prefix_tree,
  token_baseline,
)
from jaxrl_llm.objective.advantages.critic import value_targets
from jaxrl_llm.objective.advantages.registry import (
  OPTIONAL,
  get_advantage,
  metrics,
  names,
  needs,
  register,
  spec,
)

__all__ = [
    "OPTIONAL", "critic", "discounted", "get_advantage", "group", "metrics", "names", "needs",
    "prefix_tree", "register", "spec", "token_baseline", "value_targets"
]
