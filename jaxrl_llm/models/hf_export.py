"""Parameters -> a Hugging Face checkpoint directory that transformers loads, shard by shard."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from safetensors.numpy import save_file

from jaxrl_llm.models import hf_config
from jaxrl_llm.models.hf_import import DTYPES, VALUE_HEAD
from jaxrl_llm.models.hf_names import Entry, path_name, tensor_table
from jaxrl_llm.models.safetensors_files import INDEX, SINGLE, CheckpointError
from jaxrl_llm.models.transformer import Model

SUPPORTED = tuple(DTYPES.values())


def save(path: str | Path, model: Model, params, tokenizer, dtype, max_shard_bytes: int) -> None:
  """See hf.save_pretrained."""
  hf_config.model_type(model.config)
  leaves = _checked(model, params, dtype)
  directory, writes = Path(path), jax.process_index() == 0
  if writes:
    directory.mkdir(parents=True, exist_ok=True)
    taken = sorted(p.name for p in directory.iterdir()
                   if p.suffix == ".safetensors" or p.name in ("config.json", VALUE_HEAD))
    if taken:
      raise CheckpointError(
          f"{directory} already holds {', '.join(taken)}. Fix: export into a new directory.")
  shards = _plan(tensor_table(model), leaves, dtype, max_shard_bytes)
  files = [SINGLE] if len(shards) == 1 else [
      f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
  fetch = _Fetcher(leaves, model.config.scan_layers, dtype)
  for file, shard in zip(files, shards, strict=True):
    tensors = {name: entry.to_stored(fetch(entry, index)) for entry, index, name, _ in shard}
    if writes:
      _write(directory / file, tensors)
  value_head = fetch.whole(leaves["value_head"]) if model.config.value_head else None
  if writes:
    if value_head is not None:
      np.save(directory / VALUE_HEAD, value_head.astype(np.float32))
    if len(shards) > 1:
      _write_index(directory, files, shards)
    _write_configs(directory, model, tokenizer, _dtype_of(leaves["embedding"], dtype))


def _checked(model: Model, params, dtype) -> dict[str, Any]:
  """Parameters by path.

  Raises:
    CheckpointError: parameters that are not the model's, or a dtype that is not stored.
  """
  if dtype is not None and jnp.dtype(dtype).name not in SUPPORTED:
    raise CheckpointError(f"dtype = {dtype!r} is not stored. Supported: {', '.join(SUPPORTED)}.")
  flatten = lambda tree: {path_name(p): x for p, x in jax.tree_util.tree_leaves_with_path(tree)}
  leaves, wanted = flatten(params), flatten(jax.eval_shape(model.init, jax.random.key(0)))
  problems = [f"missing: {p} {list(wanted[p].shape)}" for p in wanted.keys() - leaves.keys()]
  problems += [f"left over: {p}" for p in leaves.keys() - wanted.keys()]
  problems += [
      f"wrong shape: {p} is {list(leaves[p].shape)}, but the model has {list(wanted[p].shape)}"
      for p in wanted.keys() & leaves.keys()
      if leaves[p].shape != wanted[p].shape
  ]
  problems += [
      f"wrong dtype: {p} is {x.dtype}" for p, x in leaves.items()
      if jnp.dtype(x.dtype).name not in SUPPORTED
  ]
  if problems:
    raise CheckpointError("the parameters are not this model's:\n  " +
                          "\n  ".join(sorted(problems)))
  return leaves


def _dtype_of(leaf, dtype) -> np.dtype:
  return jnp.dtype(leaf.dtype if dtype is None else dtype)


def _plan(table: list[Entry], leaves, dtype, max_shard_bytes: int) -> list[list[tuple]]:
  """(entry, index, tensor name, bytes) by shard: in order, a new shard where the next tensor would
  not fit.
  """
  shards, used = [[]], 0
  for entry in table:
    size = int(np.prod(entry.stored_shape)) * _dtype_of(leaves[entry.path], dtype).itemsize
    for index, name in entry.names:
      if shards[-1] and used + size > max_shard_bytes:
        shards.append([])
        used = 0
      shards[-1].append((entry, index, name, size))
      used += size
  return shards


class _Fetcher:
  """Tensors from the devices to the host, one at a time; all processes must ask for the same ones.
  """

  def __init__(self, leaves, scanned: bool, dtype):
    self._leaves, self._scanned, self._dtype = leaves, scanned, dtype
    self._key, self._value = None, None

  def __call__(self, entry: Entry, index: tuple[int, ...]) -> np.ndarray:
    """The part of a parameter that one tensor holds. The experts of a layer are fetched together.
    """
    layer = index[0] if self._scanned and entry.path.startswith("blocks/") else None
    if self._key != (entry.path, layer):
      self._key, self._value = (entry.path, layer), self.whole(self._leaves[entry.path], layer)
    return self._value[index if layer is None else index[1:]]

  def whole(self, leaf, layer: int | None = None) -> np.ndarray:
    """A parameter, or one layer of a stacked one, in the dtype of the export."""
    leaf = jnp.asarray(leaf)
    mesh = getattr(leaf.sharding, "mesh", None)
    sharding = None if mesh is None else NamedSharding(mesh, PartitionSpec())
    # A copy, because an array remembers its host value for as long as it lives.
    copy = jax.jit(_copy if layer is None else _copy_layer, out_shardings=sharding)
    out = np.asarray(copy(leaf) if layer is None else copy(leaf, layer))
    return out.astype(_dtype_of(leaf, self._dtype))


def _copy(leaf):
  return jnp.copy(leaf)


def _copy_layer(leaf, layer):
  return lax.dynamic_index_in_dim(leaf, layer, 0, keepdims=False)


def _write(file: Path, tensors: dict[str, np.ndarray]) -> None:
  """A file is there whole or not at all."""
  partial = file.with_name(file.name + ".partial")
  save_file(tensors, partial, metadata={"format": "pt"})
  os.replace(partial, file)


def _write_index(directory: Path, files: list[str], shards: list[list[tuple]]) -> None:
  sizes = [size for shard in shards for _, _, _, size in shard]
  names = {name: file for file, shard in zip(files, shards, strict=True) for _, _, name, _ in shard}
  index = {"metadata": {"total_size": sum(sizes)}, "weight_map": dict(sorted(names.items()))}
  (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _write_configs(directory: Path, model: Model, tokenizer, dtype: np.dtype) -> None:
  """Tokenizer, generation defaults of the source, and config.json last: without it, nobody reads
  the directory.
  """
  origin = None if model.origin is None else Path(model.origin)
  base = {}
  if origin is not None and (origin / "config.json").exists():
    base = hf_config.read_json(origin / "config.json")
  config = hf_config.to_hf(model.config, dtype.name, base)
  if origin is not None and (origin / "generation_config.json").exists():
    shutil.copyfile(origin / "generation_config.json", directory / "generation_config.json")
  if tokenizer is not None:
    tokenizer.save_pretrained(str(directory))
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
      config[key] = getattr(tokenizer, key, None) if config[key] is None else config[key]
  (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
