"""Advantages, by name."""

from jaxrl_llm.objective.advantages import critic, group, prefix_tree, reinforce, token_baseline
from jaxrl_llm.objective.advantages.critic import value_targets
from jaxrl_llm.objective.advantages.registry import get_advantage, names, needs, register, spec

__all__ = [
    "critic", "get_advantage", "group", "names", "needs", "prefix_tree", "register", "reinforce",
    "spec", "token_baseline", "value_targets"
]
