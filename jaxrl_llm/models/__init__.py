"""The policy network."""

from jaxrl_llm.models.hf import CheckpointError, load_pretrained, save_pretrained
from jaxrl_llm.models.kv_cache import KVCache
from jaxrl_llm.models.transformer import Model

__all__ = ["CheckpointError", "KVCache", "Model", "load_pretrained", "save_pretrained"]
