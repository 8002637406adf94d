"""Checkpoints by Orbax. Each is complete or absent; after a torn one, the one before is read."""

import logging
import shutil
from pathlib import Path

import jax
import orbax.checkpoint as ocp

from jaxrl_llm.config import CheckpointConfig

BEST = "best"  # the folder of the best parameters, beside "checkpoints"
logger = logging.getLogger(__name__)


class TornCheckpointsError(RuntimeError):
  """Checkpoints exist and none can be read."""


class Checkpoints:
  """A run's checkpoints, `workdir/checkpoints/<iteration>`, each written after that iteration.

  A checkpoint is the tree of `RunState.saved`. Its entry `train` is the TrainState without frozen
  leaves, which are the start's.
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
    """(iteration, tree) of the newest checkpoint that can be read, or None if there is none.

    A checkpoint that cannot be read is moved to `workdir/torn_checkpoint_<iteration>` with a
    warning, so that its iteration can be saved again.

    Args:
      like: tree of shapes, dtypes and shardings.

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
            self._directory / str(iteration), type(error).__name__, reason)
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
  """Writes parameters, completely or not at all, in place of what was there."""
  with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(Path(path).resolve(), params, force=True)


def iterations(workdir: Path, folder: str = "checkpoints") -> list[int]:
  """Iterations with a complete checkpoint, in order. Orbax gives unfinished ones another name.

  Args:
    folder: "checkpoints", or `BEST`.
  """
  directory = Path(workdir) / folder
  if not directory.is_dir():
    return []
  return sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())


def restore_part(path: Path, like):
  """Reads the entries of a saved tree that `like` has, and no others.

  Args:
    path: what `save_params` wrote, or `checkpoints/<iteration>/default`.
    like: tree of shapes, dtypes and shardings.

  Raises:
    TornCheckpointsError: the saved tree lacks a leaf of `like`, because it was written under
      another configuration.
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
  """`tree` as shapes and dtypes with these shardings: what `restore` and `restore_part` read."""
  def of_leaf(x, sharding):
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

  return jax.tree.map(of_leaf, tree, shardings)
