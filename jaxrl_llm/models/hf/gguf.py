"""Reads GGUF, the format of llama.cpp, where a Hugging Face checkpoint is expected.

A file's metadata become config.json, generation_config.json and tokenizer files in a folder that
the process removes at its end; the tensors stay in the file, and are dequantised as they are read.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, and for what llama.cpp changes in
a network its convert_hf_to_gguf.py.
"""

import functools
import json
import math
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl_llm.models import families
from jaxrl_llm.models.hf import gguf_tokenizer
from jaxrl_llm.models.hf.errors import CheckpointError
from jaxrl_llm.models.hf.safetensors_files import INDEX, SINGLE, StoredTensor

PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
FREQUENCIES = "rope_freqs.weight"  # Llama 3's stretching of the rotary angles, one factor each
TOP_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output.weight": "lm_head.weight",
             "output_norm.weight": "model.norm.weight"}
# Metadata of an architecture that change the network, and the values that do not.
NEUTRAL: dict[str, tuple] = {
    "expert_count": (0,), "attention.sliding_window": (0,), "attention.causal": (True,),
    "rope.scale_linear": (1.0,), "attention.scale": (), "logit_scale": (1.0,),
    "residual_scale": (1.0,), "embedding_scale": (1.0,), "pooling_type": (0,)}
_folders: dict[tuple, tuple[tempfile.TemporaryDirectory, Path]] = {}


def files(path: str | Path) -> list[Path]:
  """Returns the GGUF files that a path names, all parts of a split one; [] if it names none.

  A folder counts if it holds GGUF and no safetensors.

  Raises:
    CheckpointError: the folder holds several models, or a part is not there.
  """
  path = Path(path)
  if path.is_dir():
    inside = sorted(path.glob("*.gguf"))
    if not inside or (path / SINGLE).exists() or (path / INDEX).exists():
      return []
    if len({PART.sub(r"\1", file.name) for file in inside}) > 1:
      raise CheckpointError(f"{path} holds several GGUF models: "
                            f"{', '.join(file.name for file in inside)}. Fix: pass one file.")
    path = inside[0]
  if path.suffix != ".gguf" or not path.is_file():
    return []
  part = PART.fullmatch(path.name)
  if part is None:
    return [path]
  stem, count = part[1], int(part[3])
  parts = [path.with_name(f"{stem}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]
  absent = [file.name for file in parts if not file.is_file()]
  if absent:
    raise CheckpointError(f"{path} is one of {count} parts, of which are not there: "
                          f"{', '.join(absent)}. Fix: fetch all parts into one folder.")
  return parts


def folder(path: str | Path) -> Path:
  """Returns a folder with links to the GGUF files of `path` and what else a checkpoint has.

  Raises:
    CheckpointError: as `files`; no `gguf` package; a file is truncated or damaged; another
      architecture, or a feature, a tokenizer or a type of tensors that is not supported.
  """
  if any(place == Path(path) for _, place in _folders.values()):
    return Path(path)
  parts = files(path)
  key = tuple((str(part.resolve()), part.stat().st_mtime_ns) for part in parts)
  if key not in _folders:
    metadata, tensors = _content(key)
    scope = tempfile.TemporaryDirectory(prefix="jaxrl_llm-", ignore_cleanup_errors=True)
    place = Path(scope.name) / parts[0].name  # which messages name
    place.mkdir()
    config = _config(parts[0], metadata, tensors)
    ends = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    config["eos_token_id"] = [*dict.fromkeys(end for end in ends if end is not None)] or None
    ids = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    tokenizer = gguf_tokenizer.build(parts[0], metadata)
    if tokenizer is not None:
      tokenizer.save_pretrained(str(place))
    (place / "generation_config.json").write_text(json.dumps(ids))
    (place / "config.json").write_text(json.dumps(config))
    for part in parts:
      (place / part.name).symlink_to(part.resolve())
    _folders[key] = scope, place
  return _folders[key][1]


class Weights:
  """The tensors of GGUF files by their names in transformers; as `safetensors_files.Weights`.

  Quantised tensors count as f32.
  """

  def __init__(self, directory: Path):
    parts = files(directory)
    metadata, stored = _content(tuple((str(p.resolve()), p.stat().st_mtime_ns) for p in parts))
    arch = metadata["general.architecture"]
    heads = int(metadata[f"{arch}.attention.head_count"])
    kv_heads = int(metadata.get(f"{arch}.attention.head_count_kv", heads))
    # llama.cpp turns pairs of neighbours where transformers turns halves: it reorders these rows.
    family = families.family(arch)
    self._heads = {"attn_q": heads, "attn_k": kv_heads} if family.gguf_turned else {}
    self._stored: dict[str, tuple[str, Any]] = {}
    self.tensors: dict[str, StoredTensor] = {}
    for name, (file, tensor) in stored.items():
      if name != FREQUENCIES:
        full = _name(name, family.gguf or {})
        kind = tensor.tensor_type.name
        shape = tuple(int(n) for n in reversed(tensor.shape))
        self._stored[full] = name, tensor
        self.tensors[full] = StoredTensor(full, file, shape,
                                          kind if kind in ("F16", "BF16") else "F32")

  def read(self, name: str, slices: tuple[slice, ...]) -> np.ndarray:
    """Returns slices of a tensor; only its rows in the first slice are dequantised."""
    from gguf.quants import dequantize

    ours, tensor = self._stored[name]
    rows = np.arange(self.tensors[name].shape[0])
    layer = LAYER.fullmatch(ours)
    heads = self._heads.get(layer[2]) if layer else None
    if heads:
      rows = rows.reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
    rows = rows[slices[0]]
    if len(slices) == 1:  # a vector of bytes has no rows
      values = dequantize(tensor.data, tensor.tensor_type)[rows]
    else:
      values = dequantize(tensor.data[rows], tensor.tensor_type)[(slice(None), *slices[1:])]
    dtypes = {"F16": np.float16, "BF16": jnp.bfloat16}
    return values.astype(dtypes.get(self.tensors[name].dtype, np.float32))

  def release(self) -> None:
    """Does nothing: the pages of a mapped file leave memory by themselves."""


def _name(name: str, names: Mapping[str, str]) -> str:
  """Returns transformers' name of a tensor; the same name if there is none."""
  layer = LAYER.fullmatch(name)
  if layer is None or layer[2] not in names:
    return TOP_NAMES.get(name, name)
  return f"model.layers.{layer[1]}.{names[layer[2]]}.{layer[3]}"


@functools.lru_cache(maxsize=2)
def _content(parts: tuple[tuple[str, int], ...]) -> tuple[dict[str, Any], dict[str, tuple]]:
  """Returns (metadata of the first part, (file, tensor of all parts) by name)."""
  try:
    from gguf import GGUFReader
    from gguf.quants import dequantize

    class Reader(GGUFReader):  # numpy's slices of a mapped file take three times as long
      data = property(lambda self: self._bytes,
                      lambda self, mapped: setattr(self, "_bytes", np.asarray(mapped)))
  except ImportError as error:
    raise CheckpointError(f"{parts[0][0]}: GGUF is read by the package gguf, which is not "
                          "installed. Fix: pip install 'jaxrl_llm[gguf]'.") from error
  metadata: dict[str, Any] = {}
  tensors: dict[str, tuple] = {}
  for place, _ in parts:
    file = Path(place)
    try:
      reader = Reader(file)
      metadata = metadata or {key: field.contents() for key, field in reader.fields.items()}
    except (ValueError, IndexError, KeyError, OverflowError, MemoryError) as error:
      reason = " ".join(str(error).split())
      fix = "a file of one of its types" if "QuantizationType" in reason else "fetch it again"
      raise CheckpointError(f"{file} ({file.stat().st_size} bytes) is no GGUF that the package "
                            f"gguf can read, or is truncated: {reason}. Fix: {fix}.") from error
    tensors |= {tensor.name: (file.name, tensor) for tensor in reader.tensors}
  refused = set()
  for _, tensor in tensors.values():
    try:
      dequantize(tensor.data[:1] if tensor.data.ndim > 1 else tensor.data, tensor.tensor_type)
    except NotImplementedError:
      refused.add(tensor.tensor_type.name)
  count, expected = metadata.get("split.count", 1), metadata.get("split.tensors.count")
  if refused:
    raise CheckpointError(f"{parts[0][0]}: tensors of type {', '.join(sorted(refused))} cannot be "
                          "dequantised. Fix: a file of another type, such as Q8_0.")
  if count > 1 and (count != len(parts) or expected not in (None, len(tensors))):
    raise CheckpointError(f"{parts[0][0]}: split.count = {count} with {expected} tensors, but "
                          f"{len(parts)} parts with {len(tensors)} are here. Fix: all parts in one "
                          f"folder, called <name>-00001-of-{count:05}.gguf and so on.")
  return metadata, tensors


def _config(file: Path, metadata: dict[str, Any], tensors: dict[str, tuple]) -> dict[str, Any]:
  """Returns config.json; see `folder` for what is refused."""
  arch, kind = metadata.get("general.architecture"), metadata.get("general.type", "model")
  supported = [name for name in families.names() if families.family(name).gguf]
  if arch not in supported or kind != "model":
    raise CheckpointError(f"{file}: general.architecture = {arch!r} and general.type = {kind!r} "
                          f"are not supported. Supported: {', '.join(supported)} of type "
                          "'model'. Fix: a file of one of these.")
  numbers = {key.removeprefix(f"{arch}."): value for key, value in metadata.items()}
  used = [f"{arch}.{key} = {numbers[key]}" for key, neutral in NEUTRAL.items()
          if numbers.get(key) is not None and numbers[key] not in neutral]
  needs = ("block_count", "embedding_length", "feed_forward_length", "attention.head_count",
           "attention.layer_norm_rms_epsilon")
  absent = [f"no {arch}.{key}" for key in needs if key not in numbers]
  absent += [f"no {name}" for name in ("token_embd.weight", "output_norm.weight")
             if name not in tensors]
  if used or absent:
    raise CheckpointError(f"{file} does not describe a network that is supported: "
                          f"{', '.join(used + absent)}. Fix: another file.")
  heads = numbers["attention.head_count"]
  head_dim = numbers.get("attention.key_length", numbers["embedding_length"] // heads)
  rotary = numbers.get("rope.dimension_count", head_dim)
  if not head_dim == rotary == numbers.get("attention.value_length", head_dim):
    raise CheckpointError(f"{file}: heads of {head_dim} numbers whose keys turn {rotary} and whose "
                          f"values have {numbers.get('attention.value_length', head_dim)} are not "
                          "supported. Fix: another file.")
  family = families.family(arch)
  config = {
      "architectures": [family.architecture], "model_type": arch, "hidden_act": "silu",
      "vocab_size": int(tensors["token_embd.weight"][1].shape[1]),
      "hidden_size": numbers["embedding_length"],
      "intermediate_size": numbers["feed_forward_length"],
      "num_hidden_layers": numbers["block_count"], "num_attention_heads": heads,
      "num_key_value_heads": numbers.get("attention.head_count_kv", heads), "head_dim": head_dim,
      "rms_norm_eps": _short(numbers["attention.layer_norm_rms_epsilon"]),
      "rope_parameters": _rope(file, numbers, head_dim, tensors.get(FREQUENCIES)),
      "tie_word_embeddings": "output.weight" not in tensors,
      "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
      "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
  }
  if family.bias_key:
    config["attention_bias"] = "blk.0.attn_q.bias" in tensors
  if "context_length" in numbers:
    config["max_position_embeddings"] = numbers["context_length"]
  return config


def _short(number: float) -> float:
  """Returns the shortest number that is the same in f32, as which the file holds it."""
  return float(str(np.float32(number)))


def _rope(file: Path, numbers: dict[str, Any], head_dim: int, factors) -> dict[str, Any]:
  """Returns the rotary numbers of config.json."""
  rope: dict[str, Any] = {"rope_type": "default",
                          "rope_theta": _short(numbers.get("rope.freq_base", 10000.0))}
  scaling = {key: numbers.get(f"rope.scaling.{key}") for key in (
      "type", "factor", "original_context_length", "attn_factor", "yarn_beta_fast",
      "yarn_beta_slow")}
  if scaling["type"] not in (None, "none", "linear", "yarn"):
    raise CheckpointError(f"{file}: rope.scaling.type = {scaling['type']!r} is not supported. "
                          "Supported: 'none', 'linear', 'yarn'. Fix: another file.")
  if scaling["type"] in ("linear", "yarn"):
    names = {"type": "rope_type", "original_context_length": "original_max_position_embeddings",
             "attn_factor": "attention_factor", "yarn_beta_fast": "beta_fast",
             "yarn_beta_slow": "beta_slow"}
    rope |= {names.get(key, key): value for key, value in scaling.items() if value is not None}
  if factors is None:
    return rope
  stored = np.asarray(factors[1].data, np.float32)
  for original in (2**power for power in range(5, 21)):
    rule = {"factor": float(stored.max()), "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": original}
    if np.allclose(stored, _llama3_factors(rope["rope_theta"], head_dim, rule), rtol=1e-4):
      return rope | ({"rope_type": "llama3"} | rule if stored.max() > 1 else {})
  raise CheckpointError(f"{file}: {FREQUENCIES} has factors up to {stored.max():.4g} that are not "
                        "by Llama 3's rule. Fix: another file.")


def _llama3_factors(base: float, head_dim: int, rule: dict[str, float]) -> np.ndarray:
  """Returns what Llama 3 divides each frequency by. Source: llama.cpp, as `FREQUENCIES`."""
  turns = rule["original_max_position_embeddings"] / (
      2 * math.pi * base ** (np.arange(0, head_dim, 2) / head_dim))
  low, high = rule["low_freq_factor"], rule["high_freq_factor"]
  smooth = np.clip((turns - low) / (high - low), 0, 1)
  return 1 / ((1 - smooth) / rule["factor"] + smooth)
