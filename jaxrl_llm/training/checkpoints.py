"""Checkpoints by Orbax: complete or absent, and a torn newest one gives way to its predecessor."""

import logging
import shutil
from pathlib import Path

import jax
import orbax.checkpoint as ocp

from jaxrl_llm.config import CheckpointConfig

logger = logging.getLogger(__name__)


class TornCheckpointsError(RuntimeError):
  """Checkpoints exist and none can be read."""


class Checkpoints:
  """`workdir/checkpoints/<iteration>`: the train state after that iteration."""

  def __init__(self, workdir: Path, cfg: CheckpointConfig):
    self._directory = Path(workdir).resolve() / "checkpoints"
    options = ocp.CheckpointManagerOptions(max_to_keep=cfg.keep, enable_async_checkpointing=False, create=True)
    self._manager = ocp.CheckpointManager(self._directory, options=options)

  def save(self, iteration: int, state) -> None:
    self._manager.save(iteration, args=ocp.args.StandardSave(state), force=True)

  def latest(self) -> int | None:
    return self._manager.latest_step()

  def restore(self, like):
    """(iteration, state) of the newest checkpoint that can be read, or None where none exists.

    A checkpoint that cannot be read is removed with a warning, so that its iteration can be saved again.

    Args:
      like: abstract state with shardings.

    Raises:
      TornCheckpointsError: checkpoints exist and none can be read.
    """
    steps = sorted(self._manager.all_steps(), reverse=True)
    for iteration in steps:
      try:
        return iteration, self._manager.restore(iteration, args=ocp.args.StandardRestore(like))
      except Exception as error:  # Orbax raises many types for a torn directory
        reason = str(error).strip().split("\n")[0][:200]
        logger.warning("checkpoint %s is torn and was set aside (%s: %s); falling back to the one before",
                       self._directory / str(iteration), type(error).__name__, reason)
        shutil.move(self._directory / str(iteration), self._directory.parent / f"torn_checkpoint_{iteration}")
        self._manager.reload()
    if steps:
      raise TornCheckpointsError(f"{self._directory}: none of the checkpoints {steps} can be read. "
                                 f"Fix: start in a new workdir, or remove this one's checkpoints to begin again.")
    return None

  def close(self) -> None:
    self._manager.close()


def save_params(path: Path, params) -> None:
  """Parameters alone, written completely or not at all."""
  with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(Path(path).resolve(), params)


def restore_params(path: Path, like):
  with ocp.StandardCheckpointer() as checkpointer:
    return checkpointer.restore(Path(path).resolve(), like)


def abstract(tree, shardings):
  """Shapes, dtypes and shardings of what is to be restored."""
  return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, shardings)
