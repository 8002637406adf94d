"""Reads low-rank adapters in the format of Hugging Face's PEFT, and adds them to their base."""

import collections
import math
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from jaxrl_llm.models.hf.errors import CheckpointError
from jaxrl_llm.models.hf.network_config import read_json
from jaxrl_llm.models.hf.tensor_names import Entry, by_path, tensor_table
from jaxrl_llm.models.transformer import Model

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
BASE = "base_model_name_or_path"
NAME = re.compile(re.escape(PREFIX) + r"(.+)\.lora_([AB])(?:\.default)?\.weight")
COPY = re.compile(re.escape(PREFIX) + r"(.*?(?:embed_tokens|lm_head))(?:\.base_layer)?\.weight")
# Keys of adapter_config.json that may have any value: they name things, or say which weights have
# an adapter and how it was trained, which the tensors show.
FREE = frozenset({
    "auto_mapping", BASE, "exclude_modules", "inference_mode", "layers_pattern",
    "layers_to_transform", "lora_alpha", "lora_dropout", "megatron_core", "peft_version",
    "qalora_group_size", "r", "rank_pattern", "revision", "runtime_config", "target_modules",
})
# Values with which an adapter is W + scale B A and nothing else. A key in neither table must not be
# set: PEFT adds variants under new keys.
PLAIN: dict[str, tuple] = {
    "bias": ("none",),
    "peft_type": ("LORA",),
    "task_type": ("CAUSAL_LM",),
    "use_rslora": (True,),
    # The others (PiSSA, OLoRA, CorDA, LoftQ, LoRA-GA) subtract the initial B A from W, or round W.
    "init_lora_weights": (True, "gaussian", "orthogonal", "eva"),
}
UNSET = (None, False, "", [], {})


def is_adapter(directory: Path) -> bool:
  """Returns whether a directory holds an adapter instead of a network."""
  return (directory / CONFIG).exists()


def candidate_bases(directory: Path) -> list[str]:
  """Returns the paths where the base of an adapter may be, the likeliest first.

  They are the path in adapter_config.json, relative to the current folder, the adapter's folder and
  its parent, and the adapter's own folder.

  Raises:
    CheckpointError: adapter_config.json is not readable or names no base.
  """
  base = read_json(directory / CONFIG).get(BASE)
  if base is not None and not isinstance(base, str):
    raise CheckpointError(f"{directory / CONFIG}: {BASE} = {base!r}: a name or a directory was "
                          "expected. Fix: the directory of the base.")
  self_dir = [str(directory)] if (directory / "config.json").exists() else []
  if not base:
    if self_dir:
      return self_dir
    raise CheckpointError(f"{directory / CONFIG} names no base. Fix: {BASE}, the directory of the "
                          "checkpoint that the adapter was trained on.")
  sibling_dirs = [directory / base, directory.parent / base, directory.parent / Path(base).name]
  return [base, *map(str, sibling_dirs), *self_dir]


def add(directory: Path, model: Model, params, dtype=None):
  """Returns the parameters with the adapter in `directory` added, W + scale B A, computed in f32.

  Changed parameters are f32, or of `dtype`; the others are the same arrays. The scale is
  lora_alpha / r, or with use_rslora lora_alpha / sqrt(r).

  Args:
    directory: directory of the adapter.
    model: the base model.
    params: of the base, on any mesh.
    dtype: of the changed parameters; None: float32.

  Raises:
    CheckpointError: the adapter is not a plain low-rank one, or does not fit the base; everything
      wrong is listed.
  """
  config = read_json(directory / CONFIG)
  _check_plain(directory, config)
  pairs, copies = _read(directory)
  entries = {name.removesuffix(".weight"): (entry, index)
             for entry in tensor_table(model) for index, name in entry.names}
  problems = _changed_copies(copies, entries, params)
  parts = collections.defaultdict(list)
  for module, matrices in pairs.items():
    match = entries.get(module)
    problem = _shape_error(matrices, match, _ranks(config))
    if problem:
      problems.append(f"{module}: {problem}")
    else:
      parts[match[0].path].append((*match, _product(config, matrices)))
  if problems or not parts:
    lines = "\n  ".join(problems or ["no adapter at all"])
    raise CheckpointError(f"{directory / WEIGHTS} does not fit its base:\n  {lines}")

  def changed(keys, leaf):
    matches = parts.get(jax.tree_util.keystr(keys, simple=True, separator="/"))
    return leaf if matches is None else _add_delta(leaf, matches, dtype)

  return jax.tree_util.tree_map_with_path(changed, params)


def _changed_copies(copies: dict[str, np.ndarray], entries, params) -> list[str]:
  """Returns the errors of weights that are stored in full: PEFT copies the weights of an adapted
  head.
  """
  leaves, problems = by_path(params), []
  for module, copy in copies.items():
    if module not in entries:
      problems.append(f"{module}: the base has no such weight")
      continue
    entry, index = entries[module]
    ours = entry.to_stored(np.asarray(leaves[entry.path], np.float32)[index])
    if not np.array_equal(ours, copy):
      problems.append(f"{module}: the weight that is stored whole is not the base's")
  return problems


def _read(directory: Path) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, np.ndarray]]:
  """Returns (the matrices A and B by module, weights that are stored in full by module)."""
  file = directory / WEIGHTS
  if not file.exists():
    raise CheckpointError(f"{file} is not there. Fix: an adapter saved with safe serialization.")
  try:
    tensors = load_file(file)
  except (SafetensorError, OSError, ValueError, KeyError) as error:
    raise CheckpointError(f"{file} is truncated or damaged: {error}. Fix: fetch it again."
                          ) from error
  pairs: dict[str, dict[str, np.ndarray]] = collections.defaultdict(dict)
  copies = {}
  for name, tensor in tensors.items():
    match, copy_match = NAME.fullmatch(name), COPY.fullmatch(name)
    if match is None and copy_match is None:
      raise CheckpointError(f"{file}: {name} is no matrix of a low-rank adapter. Fix: an adapter "
                            "of linear layers, without saved modules.")
    if match is None:
      copies[copy_match[1]] = tensor.astype(np.float32)
    else:
      if match[2] in pairs[match[1]]:
        raise CheckpointError(f"{file}: two tensors are lora_{match[2]} of {match[1]}. Fix: an "
                              "adapter of one name.")
      pairs[match[1]][match[2]] = tensor.astype(np.float32)
  return pairs, copies


def _check_plain(directory: Path, config: dict[str, Any]) -> None:
  """Refuses an adapter that may be more than W + scale B A.

  Raises:
    CheckpointError: naming the keys.
  """
  file = directory / CONFIG
  if config.get("peft_type") not in PLAIN["peft_type"]:
    raise CheckpointError(f"{file}: peft_type = {config.get('peft_type')!r}: only 'LORA' is read. "
                          "Fix: merge it into its base with PEFT (merge_and_unload).")
  # EVA chooses the initial A and does not change W, so that its settings change nothing here.
  free = FREE | ({"eva_config"} if config.get("init_lora_weights") == "eva" else set())
  unread = [f"{key} = {value!r}" for key, value in config.items()
            if key not in free and not _is_plain(key, value)]
  if unread:
    raise CheckpointError(f"{file}: {', '.join(unread)}: only plain low-rank adapters are read, "
                          "which leave their base as it was. Fix: merge it into its base with PEFT "
                          "(merge_and_unload), where it was trained.")
  alpha, rank = config.get("lora_alpha"), config.get("r")
  if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not math.isfinite(alpha):
    raise CheckpointError(f"{file}: lora_alpha = {alpha!r}: a number was expected. "
                          "Fix: fetch the file again.")
  if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
    raise CheckpointError(f"{file}: r = {rank!r}: a rank of 1 or more was expected. "
                          "Fix: fetch the file again.")


def _is_plain(key: str, value) -> bool:
  """Returns whether a key that matters has a value that adds nothing to W + scale B A."""
  unset = any(value is neutral or (value == neutral and type(value) is type(neutral))
              for neutral in UNSET)
  return unset or any(value == neutral and type(value) is type(neutral)
                      for neutral in PLAIN.get(key, ()))


def _ranks(config: dict[str, Any]) -> set[int]:
  """Returns the ranks that adapter_config.json names."""
  pattern = config.get("rank_pattern") or {}
  return {config["r"], *(pattern.values() if isinstance(pattern, dict) else ())}


def _shape_error(matrices: dict[str, np.ndarray], match: tuple[Entry, tuple] | None,
                 ranks: set[int]) -> str:
  """Returns why a pair of matrices does not fit the base; empty if it does."""
  if match is None:
    return "the base has no such weight"
  if set(matrices) != {"A", "B"}:
    return f"only lora_{''.join(matrices)} is there"
  a, b, expected_shape = matrices["A"], matrices["B"], match[0].stored_shape
  shapes_fit = a.ndim == b.ndim == 2 and (b.shape[0], a.shape[1]) == expected_shape
  if not shapes_fit or a.shape[0] != b.shape[1]:
    return f"A is {list(a.shape)}, B is {list(b.shape)}, the weight {list(expected_shape)}"
  if a.shape[0] not in ranks:
    return f"A has {a.shape[0]} rows, but adapter_config.json names the rank {sorted(ranks)}"
  if not (np.isfinite(a).all() and np.isfinite(b).all()):
    return "a number is not finite"
  return ""


def _product(config: dict[str, Any], matrices: dict[str, np.ndarray]) -> np.ndarray:
  rank = matrices["A"].shape[0]
  scale = config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank)
  return scale * (matrices["B"] @ matrices["A"])


def _add_delta(leaf, deltas: list[tuple[Entry, tuple, np.ndarray]], dtype) -> jax.Array:
  """Returns a parameter plus its products, each at its index of the stacked axes."""
  delta = np.zeros(leaf.shape, np.float32)
  for entry, index, product in deltas:
    full_slice = (slice(None),) * (leaf.ndim - entry.stacked)
    delta[index] = entry.from_stored(product.__getitem__, full_slice)
  out = leaf.astype(jnp.float32) + jax.device_put(delta, leaf.sharding)
  return out.astype(dtype or jnp.float32)
