"""The policy network."""

from jaxrl_llm.late import late_names
from jaxrl_llm.models.hf import CheckpointError
from jaxrl_llm.models.kv_cache import KVCache
from jaxrl_llm.models.transformer import Model

__all__ = ["CheckpointError", "KVCache", "Model"]
__getattr__ = late_names(__name__, dict.fromkeys(
    ("load_pretrained", "save_pretrained"), f"{__name__}.hf.pretrained"))
