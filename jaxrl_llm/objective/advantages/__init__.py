"""Advantages, by name."""

from jaxrl_llm.objective.advantages import (
  baselines,
  components,
  critic,
  discounted,
  group,
  pass_at_k,
  prefix_tree,
  teacher,
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
    "OPTIONAL", "baselines", "components", "critic", "discounted", "get_advantage", "group",
    "metrics", "names", "needs", "pass_at_k", "prefix_tree", "register", "spec", "teacher",
    "token_baseline", "value_targets"
]
