"""The two functions that users call: a checkpoint's parameters in, and out."""

from pathlib import Path

from jax.sharding import Mesh

from jaxrl_llm.models.hf import export_weights, import_weights
from jaxrl_llm.models.transformer import Model


def load_pretrained(path: str | Path, *, mesh: Mesh | None = None, dtype: str | None = None,
                    **overrides):
  """Returns the model and parameters of a checkpoint.

  Tensors are read one at a time, and each device reads the slices that it holds, so that the host
  needs little memory beyond the parameters that stay on it.

  Args:
    path: a directory with config.json and safetensors (one file, or shards with an index), or with
      an adapter of PEFT, which is added to its base; a GGUF file, one of its parts, or a directory
      with one; or the name of a repository of the Hugging Face hub.
    mesh: where to put the parameters, by the rules of `parallel`; None: the default device.
    dtype: dtype of the parameters, such as "float32"; None keeps the file's, but parameters that an
      adapter changes are f32. A value head is always f32, and so is the module that predicts two
      tokens ahead.
    **overrides: fields of ModelConfig that a checkpoint does not determine: value_head,
      scan_layers, remat, attention, compute_dtype, mtp. A value head starts at zero, and the module
      that predicts two tokens ahead at random, unless `save_pretrained` stored one.

  Returns:
    (model, params, report): the report names every tensor with our path, its shape and its dtype.

  Raises:
    CheckpointError: the architecture or a feature of it is not supported; a file is missing,
      truncated or damaged; GGUF is of a kind that is not read (`gguf.folder`); tensors are missing,
      left over, or of a wrong shape or dtype (all are listed); the tokenizer has more ids than the
      head has rows; the base of an adapter is not found.
  """
  return import_weights.load(path, mesh, dtype, overrides)


def save_pretrained(path: str | Path, model: Model, params, *, tokenizer=None,
                    dtype: str | None = None, max_shard_bytes: int = 5 * 10**9) -> None:
  """Writes a checkpoint that transformers' AutoModelForCausalLM loads.

  `load_pretrained` reads it back bitwise. Parameters may lie on any mesh; they are gathered one
  tensor at a time. All processes must call this together, and the first one writes. From
  `model.origin` come generation_config.json and the keys of config.json that ModelConfig does not
  know. A value head goes to a separate file, value_head.npy, in f32, and so does the module that
  predicts two tokens ahead, mtp.npz. config.json is written last.

  Args:
    path: a directory without a checkpoint; made if absent.
    model: the model.
    params: its parameters.
    tokenizer: anything with `save_pretrained(directory)`, or None.
    dtype: float32, bfloat16 or float16, for all stored tensors; None: the parameters' dtype; if
      they have several, the one that holds all of them without rounding.
    max_shard_bytes: a larger checkpoint is split into shards with an index; a larger tensor gets a
      separate shard.

  Raises:
    CheckpointError: the directory already holds a checkpoint; the parameters are not the model's;
      no supported architecture computes what the model does.
  """
  export_weights.save(path, model, params, tokenizer, dtype, max_shard_bytes)
