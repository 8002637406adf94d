"""Writes parameters as a Hugging Face checkpoint directory, one shard after the other."""

import functools
import json
import math
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from huggingface_hub import split_state_dict_into_shards_factory
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jaxrl_llm.models.hf import extra_tensors, network_config
from jaxrl_llm.models.hf.errors import CheckpointError
from jaxrl_llm.models.hf.import_weights import DTYPES
from jaxrl_llm.models.hf.safetensors_files import INDEX, write_tensors
from jaxrl_llm.models.hf.tensor_names import Entry, by_path, tensor_table
from jaxrl_llm.models.transformer import Model

SUPPORTED = tuple(DTYPES.values())


class _Planned(NamedTuple):
  """A tensor to write: the part of a parameter at `index` of its stacked axes, `size` bytes."""

  entry: Entry
  index: tuple[int, ...]  # type: ignore[assignment]
  size: int


def save(path: str | Path, model: Model, params, tokenizer, dtype, max_shard_bytes: int) -> None:
  """See hf.save_pretrained."""
  network_config.model_type(model.config)  # raises before anything is written
  leaves = _checked(model, params, dtype)
  dtype = _widest(leaves) if dtype is None else jnp.dtype(dtype)
  directory, writes = Path(path), jax.process_index() == 0
  if writes:
    _make_directory(directory)
  plan = _planned(tensor_table(model), leaves, dtype)
  shards = split_state_dict_into_shards_factory(
      plan, get_storage_size=_size, filename_pattern="model{suffix}.safetensors",
      max_shard_size=max_shard_bytes)
  fetch = _Fetcher(leaves, model.config.scan_layers, dtype)
  for file, names in shards.filename_to_tensors.items():
    tensors = {}
    for name in names:
      entry, position, _ = plan[name]
      tensors[name] = entry.to_stored(fetch(entry, position))
    if writes:
      write_tensors(directory / file, tensors)
  extra = {name: _on_host(x) for name, x in leaves.items() if extra_tensors.is_beside(name)}
  if writes:
    extra_tensors.save(directory, extra)
    if shards.is_sharded:
      index = {"metadata": shards.metadata, "weight_map": shards.tensor_to_filename}
      _write_json(directory / INDEX, index)
    _write_configs(directory, model, tokenizer, dtype)


def _make_directory(directory: Path) -> None:
  """Makes the directory.

  Raises:
    CheckpointError: it holds a checkpoint already.
  """
  directory.mkdir(parents=True, exist_ok=True)
  existing = sorted(p.name for p in directory.iterdir()
                    if p.suffix == ".safetensors"
                    or p.name in ("config.json", *extra_tensors.FILES))
  if existing:
    raise CheckpointError(
        f"{directory} already holds {', '.join(existing)}. Fix: export into a new directory.")


def _checked(model: Model, params, dtype) -> dict[str, Any]:
  """Returns the parameters by path.

  Raises:
    CheckpointError: they are not the model's (everything wrong is listed), or the dtype cannot be
      stored.
  """
  if dtype is not None and jnp.dtype(dtype).name not in SUPPORTED:
    raise CheckpointError(f"dtype = {dtype!r} cannot be stored. Supported: {', '.join(SUPPORTED)}.")
  leaves, shapes = by_path(params), by_path(model.shapes())
  problems = [f"missing: {p} {list(shapes[p].shape)}" for p in shapes.keys() - leaves.keys()]
  problems += [f"left over: {p}" for p in leaves.keys() - shapes.keys()]
  problems += [
      f"wrong shape: {p} is {list(leaves[p].shape)}, but the model has {list(shapes[p].shape)}"
      for p in shapes.keys() & leaves.keys()
      if leaves[p].shape != shapes[p].shape
  ]
  problems += [
      f"wrong dtype: {p} is {x.dtype}" for p, x in leaves.items()
      if jnp.dtype(x.dtype).name not in SUPPORTED
  ]
  if problems:
    lines = "\n  ".join(sorted(problems))
    raise CheckpointError(f"the parameters are not this model's:\n  {lines}")
  return leaves


def _widest(leaves) -> np.dtype:
  """Returns the one dtype that holds all parameters without rounding.

  Trained leaves are f32 and frozen ones have the dtype of their checkpoint. A directory of both
  would load, but its config.json names one dtype, to which readers round the others.
  """
  return functools.reduce(jnp.promote_types, (x.dtype for path, x in leaves.items()
                                              if not extra_tensors.is_beside(path)))


def _planned(table: list[Entry], leaves, dtype: np.dtype) -> dict[str, _Planned]:
  """Returns every tensor of the checkpoint by name, in file order."""
  plan = {}
  for entry in table:
    size = math.prod(entry.stored_shape) * dtype.itemsize
    plan |= {name: _Planned(entry, index, size) for index, name in entry.names}
  return plan


def _size(tensor: _Planned) -> int:
  return tensor.size


class _Fetcher:
  """Copies tensors to the host, one at a time; all processes must ask for the same tensors."""

  def __init__(self, leaves, scanned: bool, dtype: np.dtype):
    self._leaves, self._scanned, self._dtype = leaves, scanned, dtype
    self._key: tuple[str, int | None] | None = None
    self._value: np.ndarray | None = None

  def __call__(self, entry: Entry, index: tuple[int, ...]) -> np.ndarray:
    """Returns the part of a parameter that one tensor holds.

    The experts of a layer are copied together, because they are asked for one after the other.
    """
    layer = index[0] if self._scanned and entry.path.startswith("blocks/") else None
    if self._key != (entry.path, layer):
      self._key = (entry.path, layer)
      self._value = _on_host(self._leaves[entry.path], layer).astype(self._dtype)
    return self._value[index if layer is None else index[1:]]


def _on_host(leaf, layer: int | None = None) -> np.ndarray:
  """Returns a parameter, or one layer of a stacked one."""
  leaf = jnp.asarray(leaf)
  mesh = getattr(leaf.sharding, "mesh", None)
  sharding = None if mesh is None else NamedSharding(mesh, PartitionSpec())
  # A copy on the device, because an array keeps its host value for as long as it lives.
  copy = jax.jit(jnp.copy if layer is None else _copy_layer, out_shardings=sharding)
  return np.asarray(copy(leaf) if layer is None else copy(leaf, layer))


def _copy_layer(leaf, layer):
  return lax.dynamic_index_in_dim(leaf, layer, 0, keepdims=False)


def _write_json(file: Path, content: dict) -> None:
  file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def _write_configs(directory: Path, model: Model, tokenizer, dtype: np.dtype) -> None:
  """Writes the tokenizer, the source's generation defaults and config.json.

  config.json comes last, because a directory without it is not taken for a checkpoint.
  """
  origin = None if model.origin is None else Path(model.origin)
  base = {}
  if origin is not None and (origin / "config.json").exists():
    base = network_config.read_json(origin / "config.json")
  config = network_config.to_hf(model.config, dtype.name, base)
  if origin is not None and (origin / "generation_config.json").exists():
    shutil.copyfile(origin / "generation_config.json", directory / "generation_config.json")
  if tokenizer is not None:
    tokenizer.save_pretrained(str(directory))
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
      config[key] = getattr(tokenizer, key, None) if config[key] is None else config[key]
  _write_json(directory / "config.json", config)
