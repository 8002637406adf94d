"""The families of checkpoints, a file each: from Hugging Face's config and tensors to ours and
back. A plugin registers one by `register.family`.
"""

from jaxrl_llm.models.families.family import Family
from jaxrl_llm.registry import FAMILIES

__all__ = ["FAMILIES", "Family", "family", "names"]
OURS = ("llama", "qwen2", "qwen3", "qwen3_moe", "mistral", "olmo2", "smollm3", "gemma3_text")
FAMILIES.files |= {name: f"{__name__}.{name}" for name in OURS}


def family(name: str) -> Family:
  """Returns the family of a `model_type`; ConfigError with all names if there is none."""
  return FAMILIES[name].function()


def names() -> list[str]:
  """Returns the names of all families, the package's first."""
  return [*OURS, *(name for name in FAMILIES.names() if name not in OURS)]
