"""Generation: prompts and parameters go in, rollouts come out."""

from jaxrl_llm.rollouts.sampler import generate

__all__ = ["generate"]
