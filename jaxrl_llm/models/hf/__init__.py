"""Reads and writes Hugging Face checkpoints of the families in models/families."""

from jaxrl_llm.late import late_names
from jaxrl_llm.models.hf.errors import CheckpointError

__all__ = ["CheckpointError"]
# Imported when a checkpoint is read or written: a run without `pretrained` needs none of them.
__getattr__ = late_names(__name__, {name: f"{__name__}.{module}" for name, module in {
    "ImportReport": "import_weights", "MappedTensor": "import_weights",
    "base_directory": "import_weights", "checkpoint_files": "stored_files",
    "local_directory": "import_weights",
    "is_adapter": "import_adapters", "read_config": "network_config",
    "load_pretrained": "pretrained", "save_pretrained": "pretrained",
    "position_limit": "recommended_sampling", "differing_sampling": "recommended_sampling",
}.items()})
