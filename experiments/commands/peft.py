"""Writes low-rank adapters in the format of Hugging Face's PEFT.

For a weight stored as [out, in], PEFT computes x W^T + (alpha / r) x A^T B^T with A [r, in] and
B [out, r]. Hence A = a^T and B = b^T of our adapters a [in, r] and b [r, out].
"""

import collections
import json
import os
from pathlib import Path

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from jaxrl_llm import parallel
from jaxrl_llm.models.hf.errors import CheckpointError
from jaxrl_llm.models.hf.import_adapters import CONFIG, PREFIX, WEIGHTS
from jaxrl_llm.models.hf.safetensors_files import write_tensors
from jaxrl_llm.models.hf.tensor_names import tensor_table
from jaxrl_llm.models.transformer import Model


def save_adapter(path: str | Path, model: Model, adapters, *, rank: int, alpha: float,
                 base: str = "") -> None:
  """Writes adapters as a directory that `peft.PeftModel.from_pretrained(base_model, path)` reads.

  All processes must call this together, and the first one writes. Tensors are f32; the config is
  written last.

  Args:
    path: a directory without an adapter; made if absent.
    model: the model that the adapters belong to.
    adapters: nested dict with {"a": [.., fan_in, r], "b": [.., r, fan_out]} at each adapted
      parameter; scanned layers add a leading axis.
    rank: r.
    alpha: adapters are scaled by alpha / rank.
    base: name or directory of the checkpoint that the adapters were trained on, for the config.

  Raises:
    CheckpointError: the directory already holds an adapter, or PEFT has no form for one of these.
  """
  directory = Path(path)
  if any((directory / name).exists() for name in (CONFIG, WEIGHTS)):
    raise CheckpointError(f"{directory} already holds an adapter. Fix: another directory.")
  tensors = to_tensors(model, parallel.gather_host(adapters))
  if jax.process_index() != 0:
    return
  directory.mkdir(parents=True, exist_ok=True)
  write_tensors(directory / WEIGHTS, tensors)
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
      "modules_to_save": None,
  }
  (directory / f"{CONFIG}.partial").write_text(json.dumps(config, indent=2) + "\n")
  os.replace(directory / f"{CONFIG}.partial", directory / CONFIG)


def to_tensors(model: Model, adapters) -> dict[str, np.ndarray]:
  """Returns the matrices by PEFT's names; scanned layers become one matrix per layer.

  Raises:
    CheckpointError: a router or experts have an adapter.
  """
  flat = flatten_dict(adapters)
  entries = {entry.path: entry for entry in tensor_table(model)}
  out = {}
  for keys in dict.fromkeys(keys[:-1] for keys in flat):
    path = "/".join(map(str, keys))
    entry = entries[path]
    # PEFT adapts linear layers by name, and transformers has none in a mixture of experts.
    dense = keys[0] == "blocks" and keys[1] in model.config.dense_layers
    if model.config.num_experts and "mlp" in keys and not dense:
      raise CheckpointError(
          f"{path}: PEFT's format has no place for the adapter of a router or of experts. Fix: "
          "export the merged parameters, or train with parameters.lora_targets on attention only.")
    for index, name in entry.names:
      module = PREFIX + name.removesuffix(".weight")
      for matrix_name, peft_name in (("a", "lora_A"), ("b", "lora_B")):
        matrix = np.asarray(flat[*keys, matrix_name], np.float32)[index]
        out[f"{module}.{peft_name}.weight"] = np.ascontiguousarray(matrix.T)
  return out


def _targets(model: Model, tensors: dict[str, np.ndarray]) -> list[str]:
  """Returns the adapted modules: by their last name if all layers have it, else by their full name.
  """
  modules = sorted({name.removeprefix(PREFIX).rsplit(".", 2)[0] for name in tensors})
  last = {module: module.rsplit(".", 1)[-1] for module in modules}
  count = collections.Counter(last.values())
  everywhere = {name for name, n in count.items()
                if n == model.config.num_layers or name == "lm_head"}
  return sorted({last[m] if last[m] in everywhere else m for m in modules})
