"""The policy network."""

from jaxrl_llm.models.kv_cache import KVCache
from jaxrl_llm.models.transformer import Model

__all__ = ["KVCache", "Model"]
