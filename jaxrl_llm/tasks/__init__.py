"""Prompts and verifiers."""

from jaxrl_llm.tasks.arithmetic import ChainAddition

__all__ = ["ChainAddition"]
