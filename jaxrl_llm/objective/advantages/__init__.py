"""Advantages, by name."""

from jaxrl_llm.objective.advantages import group
from jaxrl_llm.objective.advantages.registry import get_advantage, names, register, spec

__all__ = ["get_advantage", "group", "names", "register", "spec"]
