"""Reads parameters from a Hugging Face checkpoint directory, tensor by tensor into their layout."""

import dataclasses
import functools
import operator
from pathlib import Path
from typing import Any

import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxrl_llm import parallel
from jaxrl_llm.models.hf import extra_tensors, gguf, import_adapters, network_config
from jaxrl_llm.models.hf.errors import CheckpointError
from jaxrl_llm.models.hf.safetensors_files import Weights
from jaxrl_llm.models.hf.tensor_names import Entry, by_path, tensor_table
from jaxrl_llm.models.transformer import Model, unconstrained

DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}  # safetensors' names -> numpy's
# Old checkpoints store the rotary frequencies, which follow from the config.
BUFFER = ".rotary_emb.inv_freq"
AnyWeights = Weights | gguf.Weights


@dataclasses.dataclass(frozen=True)
class MappedTensor:
  """One tensor of the checkpoint.

  Attributes:
    name: in the checkpoint.
    path: our parameter that the tensor became, or a part of which it became.
    shape: as stored.
    dtype: as stored, by numpy's name.
    file: name of its safetensors file.
  """

  name: str
  path: str
  shape: tuple[int, ...]
  dtype: str
  file: str


@dataclasses.dataclass(frozen=True)
class ImportReport:
  """Report of an import.

  Attributes:
    directory: directory of the checkpoint.
    model_type: the Hugging Face architecture.
    tensors: every tensor that became a parameter or a part of one.
    ignored: names of redundant tensors: stored rotary frequencies, a stored copy of a tied head.
    initialised: paths of parameters that the checkpoint lacks: a value head, which starts at zero,
      or the module that predicts two tokens ahead, which starts at random.
  """

  directory: str
  model_type: str
  tensors: tuple[MappedTensor, ...]
  ignored: tuple[str, ...]
  initialised: tuple[str, ...]

  def __str__(self):
    lines = [f"{t.name} {list(t.shape)} {t.dtype} -> {t.path} ({t.file})" for t in self.tensors]
    return "\n".join([
        f"{self.directory}: {self.model_type}, {len(lines)} tensors", *lines,
        *(f"{name} ignored" for name in self.ignored),
        *(f"{p} initialised" for p in self.initialised)
    ])


def load(path: str | Path, mesh: Mesh | None, dtype,
         overrides: dict[str, Any]) -> tuple[Model, Any, ImportReport]:
  """See hf.load_pretrained."""
  if dtype is not None and jnp.dtype(dtype).name not in DTYPES.values():
    raise CheckpointError(
        f"dtype = {dtype!r} is not a dtype of parameters. "
        f"Supported: {', '.join(DTYPES.values())}.")
  adapter, directory = None, local_directory(path)
  if import_adapters.is_adapter(directory):
    adapter, directory = directory, base_directory(path)
  cfg = network_config.with_execution(network_config.read_config(directory), overrides)
  model = Model(cfg, unconstrained if mesh is None else parallel.Layout(mesh),
                origin=str(directory))
  _check_tokenizer(directory, cfg.vocab_size)
  weights = gguf.Weights(directory) if gguf.files(directory) else Weights(directory)
  table = tensor_table(model)
  ignored = _check(directory, weights, table, cfg.tie_head)
  abstract = model.shapes()
  shapes = by_path(abstract)
  shardings = [None] * len(shapes)
  if mesh is not None:
    shardings = jax.tree.leaves(parallel.param_shardings(model, mesh))
  entries, leaves, initialised = {e.path: e for e in table}, [], []
  for (name, shape), sharding in zip(shapes.items(), shardings, strict=True):
    if name in entries:
      leaf = _read(weights, entries[name], dtype, sharding)
    else:
      leaf, stored = extra_tensors.load(directory, model, name, shape.shape, sharding)
      initialised += [] if stored else [name]
    # Waits, so that no more than one tensor is in host memory.
    leaves.append(jax.block_until_ready(leaf))
    weights.release()
  mapped = tuple(_mapped(weights, entry, name) for entry in table for _, name in entry.names)
  report = ImportReport(str(directory), network_config.model_type(cfg), mapped, tuple(ignored),
                        tuple(initialised))
  params = jax.tree.unflatten(jax.tree.structure(abstract), leaves)
  if adapter is not None:
    params = import_adapters.add(adapter, model, params, dtype)
  return model, params, report


def local_directory(path: str | Path) -> Path:
  """Returns the directory itself, one made of GGUF, or the local copy of a repository of the
  Hugging Face hub.

  Raises:
    CheckpointError: `path` is neither a directory, nor a GGUF file, nor a repository that can be
      reached; or as `gguf.folder`.
  """
  if "://" in str(path):
    raise CheckpointError(f"{path}: addresses are not read. Fix: a directory, to which the "
                          "checkpoint was copied, or the hub's name of it, such as "
                          "Qwen/Qwen3-0.6B.")
  directory = Path(path).expanduser()
  if gguf.files(directory):
    return gguf.folder(directory)
  if directory.is_dir():
    return directory
  hub_name = str(path).count("/") == 1 and not str(path).startswith((".", "~", "/"))
  if directory.exists() or not hub_name or directory.suffix == ".gguf":
    raise CheckpointError(
        f"{path} is not a directory. Fix: a checkpoint directory, a GGUF file, or a hub name such "
        "as Qwen/Qwen3-0.6B.")
  try:
    patterns = ["*.json", "*.safetensors", "*.jinja", "*.txt", *extra_tensors.FILES]
    return Path(huggingface_hub.snapshot_download(str(path), allow_patterns=patterns))
  except (OSError, ValueError) as error:
    raise CheckpointError(
        f"{path} is not a directory, and the hub does not give it: "
        f"{str(error).splitlines()[0].rstrip('.')}. "
        "Fix: fetch the repository where there is a network, and pass its directory.") from error


def base_directory(path: str | Path) -> Path:
  """Returns the directory with config.json, weights and tokenizer; for an adapter, its base's.

  Raises:
    CheckpointError: as `local_directory`, or the base of an adapter is not found.
  """
  directory = local_directory(path)
  if not import_adapters.is_adapter(directory):
    return directory
  places = import_adapters.candidate_bases(directory)
  for place in places:
    if (Path(place) / "config.json").exists():
      return Path(place)
  try:
    return local_directory(places[0])
  except CheckpointError as error:
    raise CheckpointError(
        f"{directory}: its base {places[0]!r} was not found (looked in {', '.join(places)}). Fix: "
        f"{import_adapters.BASE} in {directory / 'adapter_config.json'}, or the base beside the "
        "adapter.") from error


def _check_tokenizer(directory: Path, vocab_size: int) -> None:
  """Raises CheckpointError if a tokenizer next to the weights has ids that the embedding lacks."""
  if not (directory / "tokenizer.json").exists():
    return
  from tokenizers import Tokenizer

  ids = Tokenizer.from_file(str(directory / "tokenizer.json")).get_vocab(with_added_tokens=True)
  token, largest = max(ids.items(), key=operator.itemgetter(1), default=("", 0))
  if largest >= vocab_size:
    raise CheckpointError(
        f"{directory / 'tokenizer.json'}: token {token!r} has id {largest}, but the embedding and "
        f"head have vocab_size = {vocab_size} rows. Fix: the tokenizer of this checkpoint.")


def _check(directory: Path, weights: AnyWeights, table: list[Entry], tied: bool) -> list[str]:
  """Checks the tensors against the table; returns the names that may be ignored, sorted.

  Raises:
    CheckpointError: tensors are missing, left over, or of a wrong shape or dtype; all are listed.
  """
  problems = []
  entries = {name: entry for entry in table for _, name in entry.names}
  for name, entry in entries.items():
    tensor = weights.tensors.get(name)
    if tensor is None:
      problems.append(f"missing: {name} (for {entry.path}, shape {list(entry.stored_shape)})")
    elif tensor.shape != entry.stored_shape:
      problems.append(
          f"wrong shape: {name} in {tensor.file} is {list(tensor.shape)}, but config.json makes it "
          f"{list(entry.stored_shape)}")
    elif tensor.dtype not in DTYPES:
      problems.append(
          f"wrong dtype: {name} in {tensor.file} is {tensor.dtype}, supported are "
          f"{', '.join(DTYPES)}")
  leftovers = []
  for name in weights.tensors.keys() - entries.keys():
    tied_head = tied and name == "lm_head.weight"
    if name.endswith(BUFFER) or (tied_head and _same(weights, name, "model.embed_tokens.weight")):
      leftovers.append(name)
    elif tied_head:
      problems.append(
          "left over: lm_head.weight differs from the embedding, but config.json ties them "
          "(tie_word_embeddings = true)")
    else:
      problems.append(f"left over: {name} in {weights.tensors[name].file}")
  if problems:
    lines = "\n  ".join(sorted(problems))
    raise CheckpointError(
        f"{directory} does not fit its config.json ({len(problems)} tensors):\n  {lines}"
        "\nFix: config.json and weights of one checkpoint.")
  return sorted(leftovers)


def _same(weights: AnyWeights, name: str, other_name: str, rows: int = 1024) -> bool:
  """Returns whether two tensors are bitwise equal, compared a block of rows at a time."""
  first, second = weights.tensors[name], weights.tensors.get(other_name)
  if second is None or (first.shape, first.dtype) != (second.shape, second.dtype):
    return False
  count = first.shape[0]
  for start in range(0, count, rows):
    block = (slice(start, min(start + rows, count)), slice(None))
    if weights.read(name, block).tobytes() != weights.read(other_name, block).tobytes():
      return False
  return True


def _read(weights: AnyWeights, entry: Entry, dtype, sharding) -> jax.Array:
  """Returns one parameter. Each device's part is read from the file; equal parts are read only
  once.
  """
  stored_dtype = np.dtype(jnp.dtype(DTYPES[weights.tensors[entry.names[0][1]].dtype]))
  dtype = stored_dtype if dtype is None else jnp.dtype(dtype)
  cache: dict[tuple, np.ndarray] = {}

  def part(index: tuple[slice, ...]) -> np.ndarray:
    spans = tuple(s.indices(size)[:2] for s, size in zip(index, entry.shape, strict=True))
    if spans not in cache:
      out = np.empty([stop - start for start, stop in spans], dtype)
      outer = spans[:entry.stacked]
      for i, name in entry.names:
        if all(start <= n < stop for n, (start, stop) in zip(i, outer, strict=True)):
          position = tuple(n - start for n, (start, _) in zip(i, outer, strict=True))
          out[position] = entry.from_stored(functools.partial(weights.read, name),
                                            index[entry.stacked:])
      cache[spans] = out
    return cache[spans]

  if sharding is None:
    return jnp.asarray(part((slice(None),) * len(entry.shape)))
  return jax.make_array_from_callback(entry.shape, sharding, part, dtype=dtype)


def _mapped(weights: AnyWeights, entry: Entry, name: str) -> MappedTensor:
  tensor = weights.tensors[name]
  return MappedTensor(name, entry.path, tensor.shape, DTYPES[tensor.dtype], tensor.file)
