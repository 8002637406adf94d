"""The weights of a checkpoint directory: finds the file of each tensor and reads slices."""

import dataclasses
import json
import os
import re
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from jaxrl_llm.models.hf.errors import CheckpointError

# What torch.compile and the wrappers of several devices put into names.
WRAPPERS = re.compile(
    r"^(?:module\.)+|(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.(?:module\.)?")
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclasses.dataclass(frozen=True)
class StoredTensor:
  """One tensor of a file.

  Attributes:
    name: in the checkpoint.
    file: name of the file.
    shape: as stored.
    dtype: as safetensors names it: F32, F16, BF16, ...
  """

  name: str
  file: str
  shape: tuple[int, ...]
  dtype: str


def write_tensors(file: Path, tensors: dict[str, np.ndarray]) -> None:
  """Writes a file through a partial one, so that a crash leaves no half file of that name.

  Who may read it is what the process's umask says, as for other files: `save_file` keeps it from
  all others.
  """
  partial = file.with_name(file.name + ".partial")
  partial.touch()
  mode = partial.stat().st_mode
  save_file(tensors, partial, metadata={"format": "pt"})
  os.chmod(partial, mode)
  os.replace(partial, file)


class Weights:
  """The tensors of a checkpoint directory. Before `read`, only the headers are read.

  Attributes:
    tensors: StoredTensor by name, without what wrappers put into it.

  Raises:
    CheckpointError: there is no safetensors file; the index names an absent shard; a file is
      truncated or damaged; a tensor is not in its shard, or is in two shards.
  """

  def __init__(self, directory: Path):
    self._directory = directory
    self._open_file: str | None = None
    self._handle: safe_open | None = None
    index = _read_index(directory)
    self.tensors: dict[str, StoredTensor] = {}
    for file in sorted(set(index.values())) if index else [SINGLE]:
      for tensor in _read_header(directory / file):
        name = WRAPPERS.sub("", tensor.name)
        if name in self.tensors:
          raise CheckpointError(
              f"{directory}: tensor {tensor.name!r} is in {self.tensors[name].file} and in "
              f"{file}. Fix: export the checkpoint again into an empty directory.")
        self.tensors[name] = tensor
    missing = [f"{name!r} ({file})" for name, file in index.items()
               if WRAPPERS.sub("", name) not in self.tensors]
    if missing:
      raise CheckpointError(
          f"{directory / INDEX} lists tensors that their shards do not hold: {', '.join(missing)}. "
          "Fix: fetch these shards again.")

  def read(self, name: str, slices: tuple[slice, ...]) -> np.ndarray:
    """Returns slices of a tensor, in the file's dtype."""
    stored = self.tensors[name]
    if self._open_file != stored.file:
      self._open_file = stored.file
      self._handle = safe_open(self._directory / stored.file, framework="np")
    return self._handle.get_slice(stored.name)[slices]

  def release(self) -> None:
    """Closes the file last read, which frees the pages that it has in memory."""
    self._open_file, self._handle = None, None


def _read_index(directory: Path) -> dict[str, str]:
  """Returns the shard of each tensor by name; empty for a single file.

  Where both a single file and an index exist, the single file is read, as in transformers.
  """
  if (directory / SINGLE).exists():
    return {}
  if not (directory / INDEX).exists():
    present = sorted(p.name for p in directory.iterdir())
    raise CheckpointError(
        f"{directory} holds neither {SINGLE} nor {INDEX}, but {present}. Fix: a directory written "
        f"by "
        "save_pretrained with safe serialization (other formats are not read).")
  try:
    index = json.loads((directory / INDEX).read_text())["weight_map"]
    entries = list(index.items())
    if not entries:
      raise ValueError("weight_map is empty")
  except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
    raise CheckpointError(
        f"{directory / INDEX} is not an index of shards ({error!r}). Fix: fetch it again."
    ) from error
  for name, file in entries:
    if not isinstance(file, str) or not re.fullmatch(r"[^/\\\0]+\.safetensors", file):
      raise CheckpointError(
          f"{directory / INDEX}: {name!r} is in {file!r}; the name of a .safetensors file in the "
          "same directory was expected. Fix: fetch the index again, from a source that you trust.")
  absent = sorted({file for file in index.values() if not (directory / file).exists()})
  if absent:
    raise CheckpointError(
        f"{directory / INDEX} names shards that are not there: {', '.join(absent)}. "
        "Fix: fetch them into the same directory.")
  return index


def _read_header(file: Path) -> list[StoredTensor]:
  """Returns the tensors of one file."""
  try:
    with safe_open(file, framework="np") as handle:
      slices = {name: handle.get_slice(name) for name in handle.keys()}
      return [StoredTensor(name, file.name, tuple(tensor.get_shape()), tensor.get_dtype())
              for name, tensor in slices.items()]
  except (SafetensorError, OSError) as error:
    raise CheckpointError(f"{file} ({file.stat().st_size} bytes) is truncated or damaged: {error}. "
                          "Fix: fetch the file again.") from error
