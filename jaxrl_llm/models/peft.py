"""Low-rank adapters as a directory in the format of Hugging Face's PEFT.

PEFT computes x W^T + (alpha / r) x A^T B^T with A [r, in] and B [out, r] for a weight stored as
[out, in], so that A = a^T and B = b^T of our adapters, whose fan-in and fan-out are in the order in
which the tensors are stored.
"""

import json
import os
from pathlib import Path

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from safetensors.numpy import save_file

from jaxrl_llm import parallel
from jaxrl_llm.models.hf_names import tensor_table
from jaxrl_llm.models.safetensors_files import CheckpointError
from jaxrl_llm.models.transformer import Model

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."


def save_adapter(path: str | Path, model: Model, adapters, *, rank: int, alpha: float,
                 base: str = "") -> None:
  """Write adapters as a directory that `peft.PeftModel.from_pretrained(base_model, path)` reads.

  All processes call this together; the first one writes, f32, the config last.

  Args:
    path: a directory without an adapter; made if absent.
    model: whose parameters the adapters belong to.
    adapters: nested dict {"a": [.., fan_in, r], "b": [.., r, fan_out]} at each adapted parameter,
      with a leading axis of layers where they are scanned.
    rank, alpha: the adapters are scaled by alpha / rank.
    base: name or directory of the checkpoint that the adapters were trained on; it is noted in the
      config.

  Raises:
    CheckpointError: the directory holds an adapter already, or PEFT has no form for one of these.
  """
  directory = Path(path)
  if any((directory / name).exists() for name in (CONFIG, WEIGHTS)):
    raise CheckpointError(f"{directory} holds an adapter already. Fix: another directory.")
  tensors = to_tensors(model, parallel.gather_host(adapters))
  if jax.process_index() != 0:
    return
  directory.mkdir(parents=True, exist_ok=True)
  save_file(tensors, directory / f"{WEIGHTS}.partial", metadata={"format": "pt"})
  os.replace(directory / f"{WEIGHTS}.partial", directory / WEIGHTS)
  config = {
      "peft_type": "LORA",
      "task_type": "CAUSAL_LM",
      "base_model_name_or_path": base or None,
      "inference_mode": True,
      "r": rank,
      "lora_alpha": alpha,
      "target_modules": _targets(model, tensors),
      "lora_dropout": 0.0,
      "bias": "none",
      "fan_in_fan_out": False,
      "use_rslora": False,
      "use_dora": False,
      "modules_to_save": None
  }
  (directory / f"{CONFIG}.partial").write_text(json.dumps(config, indent=2) + "\n")
  os.replace(directory / f"{CONFIG}.partial", directory / CONFIG)


def to_tensors(model: Model, adapters) -> dict[str, np.ndarray]:
  """PEFT's name of each matrix -> its values; a scanned model's layers come apart.

  Raises:
    CheckpointError: an adapter on a router or on experts.
  """
  flat = flatten_dict(adapters)
  entries = {entry.path: entry for entry in tensor_table(model)}
  out = {}
  for keys in dict.fromkeys(keys[:-1] for keys in flat):
    path = "/".join(map(str, keys))
    entry = entries[path]
    # The modules of a mixture are no plain linear layers in transformers, and PEFT adapts only
    # those by name.
    if model.config.num_experts and "mlp" in keys:
      raise CheckpointError(
          f"{path}: PEFT's format has no place for the adapter of a router or of experts. Fix: "
          "export the merged parameters, or train with parameters.lora_targets on attention alone.")
    for index, name in entry.names:
      module = PREFIX + name.removesuffix(".weight")
      for ours, theirs in (("a", "lora_A"), ("b", "lora_B")):
        matrix = np.asarray(flat[*keys, ours], np.float32)[index]
        out[f"{module}.{theirs}.weight"] = np.ascontiguousarray(matrix.T)
  return out


def _targets(model: Model, tensors: dict[str, np.ndarray]) -> list[str]:
  """Modules with an adapter: by their last name where all layers have it, else in full."""
  modules = sorted({name.removeprefix(PREFIX).rsplit(".", 2)[0] for name in tensors})
  last = lambda module: module.rsplit(".", 1)[-1]
  count = {short: sum(last(m) == short for m in modules) for short in map(last, modules)}
  whole = {
      short for short, n in count.items() if n == model.config.num_layers or short == "lm_head"
  }
  return sorted({last(m) if last(m) in whole else m for m in modules})
