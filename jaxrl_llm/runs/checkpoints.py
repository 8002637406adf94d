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
  """`workdir/checkpoints/<iteration>`: every stateful part of a run after that iteration, as one
  tree.

  Its entry `train` is the TrainState without frozen leaves, which are those that the run started
  from.
  """

  def __init__(self, workdir: Path, cfg: CheckpointConfig):
    self._directory = Path(workdir).resolve() / "checkpoints"
    options = ocp.CheckpointManagerOptions(max_to_keep=cfg.keep, enable_async_checkpointing=False,
                                           create=True)
    self._manager = ocp.CheckpointManager(self._directory, options=options)

  def save(self, iteration: int, tree) -> None:
    self._manager.save(iteration, args=ocp.args.StandardSave(tree), force=True)

  def latest(self) -> int | None:
    return self._manager.latest_step()

  def restore(self, like):
    """(iteration, tree) of the newest checkpoint that can be read, or None where none exists.

    A checkpoint that cannot be read is removed with a warning, so that its iteration can be saved
    again.

    Args:
      like: abstract tree with shardings.

    Raises:
      TornCheckpointsError: checkpoints exist and none can be read.
    """
    steps = sorted(self._manager.all_steps(), reverse=True)
    for iteration in steps:
      try:
        return iteration, self._manager.restore(iteration, args=ocp.args.StandardRestore(like))
      except Exception as error:  # Orbax raises many types for a torn directory
        reason = str(error).strip().split("\n")[0][:200]
        logger.warning(
            "checkpoint %s is torn and was set aside (%s: %s); falling back to the one before",
            self._directory / str(iteration),
            type(error).__name__, reason)
        shutil.move(self._directory / str(iteration),
                    self._directory.parent / f"torn_checkpoint_{iteration}")
        self._manager.reload()
    if steps:
      raise TornCheckpointsError(
          f"{self._directory}: none of the checkpoints {steps} can be read. "
          f"Fix: start in a new workdir, or remove this one's checkpoints to begin again.")
    return None

  def close(self) -> None:
    self._manager.close()


def save_params(path: Path, params) -> None:
  """Parameters alone, written completely or not at all."""
  with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(Path(path).resolve(), params)


def iterations(workdir: Path) -> list[int]:
  """Iterations with a complete checkpoint, in order; an unfinished one has another name until it is
  complete.
  """
  directory = Path(workdir) / "checkpoints"
  return sorted(
      int(p.name) for p in directory.iterdir() if p.name.isdigit()) if directory.is_dir() else []


def restore_part(path: Path, like):
  """The entries of a saved tree that `like` has; the others are not read.

  Args:
    path: what `save_params` wrote, or `checkpoints/<iteration>/default`.
    like: abstract tree with shardings.

  Raises:
    TornCheckpointsError: the saved tree lacks a leaf of `like`: it was written under another
    configuration.
  """
  args = ocp.args.PyTreeRestore(item=like,
                                restore_args=ocp.checkpoint_utils.construct_restore_args(like),
                                partial_restore=True)
  with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
    tree = checkpointer.restore(Path(path).resolve(), args=args)
  missing = [
      jax.tree_util.keystr(keys, simple=True, separator="/")
      for keys, leaf in jax.tree_util.tree_leaves_with_path(tree)
      if isinstance(leaf, jax.ShapeDtypeStruct)
  ]
  if missing:
    raise TornCheckpointsError(
        f"{path} lacks {', '.join(missing[:8])}: it was written under another configuration. "
        "Fix: another workdir, or remove it to begin again.")
  return tree


def abstract(tree, shardings):
  """Shapes, dtypes and shardings of what is to be restored."""
  return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree,
                      shardings)
