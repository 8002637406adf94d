"""Generation."""

from jaxrl_llm.rollouts.sampler import generate

__all__ = ["generate"]
