"""Parameters stored next to a checkpoint's safetensors, in files that only we read.

Other programs would take another safetensors file for a part of the network.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.models import mtp
from jaxrl_llm.models.hf.errors import CheckpointError
from jaxrl_llm.models.transformer import Model

VALUE_HEAD, MTP = "value_head.npy", "mtp.npz"
FILES = (VALUE_HEAD, MTP)


def is_beside(path: str) -> bool:
  """Returns whether the parameter at this path is the value head, or of the module that predicts
  two tokens ahead.
  """
  return path == "value_head" or path.startswith(f"{mtp.NAME}/")


def save(directory: Path, leaves: dict[str, np.ndarray]) -> None:
  """Writes the parameters, by path, in f32; parameters that a model lacks get no file."""
  leaves = {path: x.astype(np.float32) for path, x in leaves.items()}
  if "value_head" in leaves:
    np.save(directory / VALUE_HEAD, leaves.pop("value_head"))
  if leaves:
    np.savez(directory / MTP, **leaves)  # type: ignore[arg-type]


def load(directory: Path, model: Model, path: str, shape: tuple[int, ...],
         sharding) -> tuple[jax.Array, bool]:
  """Returns (a parameter in f32, whether it was stored).

  If it was not, a value head is zero and the module's parameters come from `Model.init` with key 0.

  Raises:
    CheckpointError: the stored one has another shape, or the file lacks it.
  """
  name = VALUE_HEAD if path == "value_head" else MTP
  is_stored = (directory / name).exists()
  value = _read_array(directory / name, path) if is_stored else _fresh(model, path, shape)
  if value.shape != shape:
    raise CheckpointError(
        f"{directory / name}: {path} is {list(value.shape)}, but the model's shapes make it "
        f"{list(shape)}. Fix: the file that was exported with these weights.")
  if sharding is None:
    return jnp.asarray(value), is_stored
  return jax.make_array_from_callback(shape, sharding, value.__getitem__), is_stored


def _read_array(file: Path, path: str) -> np.ndarray:
  archive = np.load(file)
  if isinstance(archive, np.ndarray):
    return archive
  if path not in archive.files:
    raise CheckpointError(f"{file}: {path} is not there. Fix: the file that was exported with "
                          "these weights.")
  return archive[path]


def _fresh(model: Model, path: str, shape: tuple[int, ...]) -> np.ndarray:
  if path == "value_head":
    return np.zeros(shape, np.float32)

  @jax.jit
  def parameter():  # the compiler leaves the other parameters out
    leaf = model.init(jax.random.key(0))
    for key in path.split("/"):
      leaf = leaf[key]
    return leaf

  return np.asarray(parameter())
