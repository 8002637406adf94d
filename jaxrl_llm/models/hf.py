"""Hugging Face checkpoint directories, in and out: Llama 3.x, Qwen2, Qwen2.5, Qwen3 and Qwen3-MoE.
"""

from pathlib import Path

from jax.sharding import Mesh

from jaxrl_llm.models import hf_export, hf_import
from jaxrl_llm.models.hf_import import ImportReport, MappedTensor
from jaxrl_llm.models.safetensors_files import CheckpointError
from jaxrl_llm.models.transformer import Model

__all__ = ["CheckpointError", "ImportReport", "MappedTensor", "load_pretrained", "save_pretrained"]


def load_pretrained(path: str | Path, *, mesh: Mesh | None = None, dtype: str | None = None,
                    **overrides):
  """Model and parameters of a checkpoint.

  Tensors are read one at a time, each device reading the slices that it holds, so that the host
  needs little memory beyond the parameters that it keeps.

  Args:
    path: a directory with config.json and safetensors (one file, or shards with an index), or the
      name of a repository of the Hugging Face hub.
    mesh: where the parameters go, by the rules of parallel.py; None: the default device.
    dtype: of the parameters, such as "float32"; None keeps that of the file. A value head is f32
      always.
    **overrides: fields of ModelConfig that a checkpoint does not determine: value_head,
    scan_layers, remat,
      compute_dtype. A value head starts at zero, unless `save_pretrained` stored one.

  Returns:
    (model, params, report): the report names every tensor with our path, its shape and dtype.

  Raises:
    CheckpointError: an architecture or feature that is not supported; a missing, truncated or
    damaged file; tensors
      missing, left over, of wrong shape or dtype (listed together); a tokenizer with more ids than
      the head has rows.
  """
  return hf_import.load(path, mesh, dtype, overrides)


def save_pretrained(path: str | Path, model: Model, params, *, tokenizer=None,
                    dtype: str | None = None, max_shard_bytes: int = 5 * 10**9) -> None:
  """Write a directory that transformers' AutoModelForCausalLM loads, and that `load_pretrained`
  reads back bitwise.

  Parameters may lie on any mesh; they are gathered tensor by tensor, and all processes must call
  this together, the first of which writes. Keys of the source's config.json that ModelConfig does
  not know and its generation_config.json are carried over from `model.origin`. A value head goes to
  a file of its own, value_head.npy, in f32. config.json is written last.

  Args:
    path: a directory without a checkpoint; made if absent.
    params: of `model`.
    tokenizer: anything with `save_pretrained(directory)`, or None.
    dtype: float32, bfloat16 or float16 of the stored tensors; None keeps that of the parameters.
    max_shard_bytes: a larger checkpoint is split into shards with an index; a shard holds at least
      one tensor.

  Raises:
    CheckpointError: the directory holds a checkpoint already; the parameters are not the model's;
    no supported
      architecture computes what the model does.
  """
  hf_export.save(path, model, params, tokenizer, dtype, max_shard_bytes)
