"""Prompts and verifiers."""

from jaxrl_llm.tasks.arithmetic import ModularChain

__all__ = ["ModularChain"]
