"""The files of a checkpoint that are read."""

from pathlib import Path

from jaxrl_llm.models.hf import extra_tensors, gguf, import_adapters, import_weights
from jaxrl_llm.models.hf.errors import CheckpointError

# Weights, shapes, tokenizer, chat templates, sampling.
PATTERNS = (
    "*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json",
    "adapter_config.json", "tokenizer*.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.*", "merges.txt", "*.model", "chat_template.*", "additional_chat_templates/*.jinja",
    *extra_tensors.FILES)


def checkpoint_files(pretrained: str) -> dict[str, Path]:
  """Returns the files of a checkpoint, and of its base where it is an adapter, by their names
  inside.

  None where it is not found, which whoever reads it says.
  """
  try:
    directory = import_weights.local_directory(pretrained)
    places = {"": directory}
    if import_adapters.is_adapter(directory):
      places["base/"] = import_weights.base_directory(pretrained)
  except (CheckpointError, OSError):
    return {}
  return {prefix + str(file.relative_to(place)): file.resolve() for prefix, place in places.items()
          for pattern in (["*.gguf"] if gguf.files(place) else PATTERNS)
          for file in sorted(place.glob(pattern))
          if file.is_file() and not file.name.startswith(".")}
