"""Checkpoints by Orbax. Each is complete or absent, and its files have checksums (checksums.py);
after a torn or damaged one, the one before is read.
"""

import logging
from pathlib import Path

import jax
import orbax.checkpoint as ocp

from jaxrl_llm.config import CheckpointConfig
from jaxrl_llm.fields import is_exhausted
from jaxrl_llm.parallel import processes
from jaxrl_llm.store import checksums, folders
from jaxrl_llm.store.folders import is_bucket, path_of, storage_of

BEST = "best"  # the folder of the best parameters, next to "checkpoints"
logger = logging.getLogger(__name__)


class TornCheckpointsError(RuntimeError):
  """Something saved exists and cannot be read."""


class Checkpoints:
  """A run's checkpoints, `workdir/checkpoints/<iteration>`, each written after that iteration.

  A thread writes them during the run, one at a time: `save` waits for the one before. The
  next call of `save`, `finish` or `latest` raises what went wrong in the thread.

  A checkpoint is the tree of `RunState.saved`. Its entry `train` is the TrainState without frozen
  leaves, which are the start's.
  """

  def __init__(self, workdir: Path, cfg: CheckpointConfig):
    self._directory = path_of(workdir).resolve() / "checkpoints"
    self._writing: int | None = None  # the iteration that `save` began last
    if self._directory.exists() and not self._directory.is_dir():
      raise TornCheckpointsError(f"{self._directory} is a file, not the folder of the checkpoints. "
                                 "Fix: remove it, or another --workdir.")
    self._keep = cfg.keep
    self._manager = self._make_manager(cfg.keep)

  def _make_manager(self, keep: int):
    if storage := storage_of(self._directory):
      return storage.manager(self._directory, keep)
    listed = ocp.options.AsyncOptions(post_finalization_callback=self._list_files)
    options = ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=True,
                                           create=True, async_options=listed)
    # Without a handler Orbax infers one from the newest folder. One emptied folder would then make
    # the intact ones next to it unreadable.
    return ocp.CheckpointManager(self._directory, options=options,
                                 item_handlers=ocp.StandardCheckpointHandler())

  def save(self, iteration: int, tree) -> None:
    """Begins to write; on return the tree has been copied from the devices.

    On a CPU the copy is the array's own memory, which an update cannot be donated meanwhile. A tree
    above 256 MiB is therefore complete on return there.
    """
    self.finish()
    self._writing = iteration
    self._manager.save(iteration, args=ocp.args.StandardSave(tree), force=True)
    sizes = (leaf.nbytes for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array))
    if jax.default_backend() == "cpu" and sum(sizes) > 2**28:
      self.finish()

  def _list_files(self) -> None:
    """Writes the checksums of the arrays. Orbax calls this in its thread before it gives the folder
    its final name, so that no checkpoint has that name without them; it writes the time next to the
    arrays' folder afterwards, see `finish`.
    """
    for path in self._directory.iterdir() if processes.is_main() else ():
      if path.name.partition(".")[0] == str(self._writing):
        checksums.write(path, pattern="*/**/*")

  def finish(self) -> None:
    """Waits until what `save` began is complete, with checksums of the last files."""
    self._manager.wait_until_finished()
    if self._writing is not None and processes.is_main() and not is_bucket(self._directory):
      checksums.complete(self._directory / str(self._writing))
    self._writing = None

  def latest(self) -> int | None:
    """Returns the iteration of the newest complete checkpoint; None without one."""
    self.finish()
    return self._manager.latest_step()

  def restore(self, like, recorded: int | None = None):
    """Returns (iteration, tree) of the newest checkpoint that can be read, or None if there is
    none.

    Newer ones are moved to `workdir/torn_checkpoint_<iteration>` with a warning, so that their
    iterations can be saved again, and the oldest beyond the number to keep are removed. If none can
    be read, nothing is moved or removed.

    Args:
      like: tree of shapes, dtypes and shardings.
      recorded: the last iteration whose metrics are complete. A newer checkpoint is left for one up
        to there, if that one can be read, so that the lines between are made again. None: any.

    Raises:
      TornCheckpointsError: checkpoints exist or were set aside, and none can be read.
    """
    steps = sorted(self._manager.all_steps(), reverse=True)
    recorded = max(steps, default=0) if recorded is None else recorded
    reasons = {i: f"is newer than the last whole line of metrics.jsonl, {recorded}," for i in steps
               if i > recorded}
    for iteration in sorted(steps, key=lambda i: (i > recorded, -i)):
      tree, torn = None, None
      damaged = self._damage(iteration)
      if damaged:
        reasons[iteration] = f"is damaged ({damaged})"
        continue
      try:
        tree = self._manager.restore(iteration, args=ocp.args.StandardRestore(like))
      except Exception as error:  # Orbax raises many types for a torn directory
        if is_exhausted(error):
          raise
        torn = first_line(error)
      # One process may find a torn file that others need not read.
      torn = next((text for text in processes.exchange("torn", torn) if text), None)
      if torn:
        reasons[iteration] = f"is torn ({torn})"
        continue
      if iteration > recorded:
        logger.warning("metrics.jsonl lacks lines up to that of iteration %d, and no older "
                       "checkpoint can be read: the lines stay lost", iteration)
      self._set_aside(reasons, iteration)
      self._remove_surplus()
      return iteration, tree
    self._refuse_torn(steps, reasons)
    return None

  def _damage(self, iteration: int) -> str | None:
    """Returns the damage of a checkpoint's files, None without any.

    Each process compares a share of them. A bucket has its own checksums.
    """
    if is_bucket(self._directory):
      return None
    try:
      damage = checksums.damage(self._directory / str(iteration),
                               slice(processes.index(), None, processes.count()))
    except OSError as error:
      damage = first_line(error)
    return next((text for text in processes.exchange("damage", damage) if text), None)

  def _set_aside(self, reasons: dict[int, str], resume_iteration: int) -> None:
    """Moves the checkpoints after the chosen one out of the way; `reasons` says why, of each."""
    newer = [iteration for iteration in reasons if iteration > resume_iteration]
    for iteration in newer if processes.is_main() else ():
      aside = self._directory.parent / f"torn_checkpoint_{iteration}"
      if aside.exists():
        folders.remove(aside)
      folders.move(self._directory / str(iteration), aside)
      logger.warning("checkpoint %s %s and was set aside; resuming from that of iteration %d",
                     self._directory / str(iteration), reasons[iteration], resume_iteration)
    if newer:
      processes.exchange("set aside", None)
      self._manager.reload()

  def _remove_surplus(self) -> None:
    """Removes the oldest beyond the number to keep: a run that was killed after it wrote its last
    one, and before it removed another, would leave one too many for good.
    """
    surplus = sorted(self._manager.all_steps())[:-self._keep]
    for iteration in surplus if processes.is_main() else ():
      folders.remove(self._directory / str(iteration))
    if surplus:
      processes.exchange("removed", None)
      self._manager.reload()

  def _refuse_torn(self, steps: list[int], reasons: dict[int, str]) -> None:
    """Refuses to start anew next to checkpoints that could not be read."""
    aside = sorted(path.name for path in self._directory.parent.glob("torn_checkpoint_*"))
    if steps:
      raise TornCheckpointsError(
          f"{self._directory}: none of the checkpoints {steps} can be read; {steps[0]} "
          f"{reasons[steps[0]]}. Nothing was cut. Fix: put a copy of one back, start in a new "
          "--workdir, or remove this folder's checkpoints and metrics.jsonl to begin again.")
    if aside:
      raise TornCheckpointsError(
          f"{self._directory} is empty, beside {', '.join(aside)}, which could not be read. "
          "Nothing was cut. Fix: put a copy of a checkpoint back, start in a new --workdir, or "
          "remove these folders and metrics.jsonl to begin again.")

  def close(self) -> None:
    """Waits as `finish`, and ends the thread."""
    try:
      self.finish()
    finally:
      self._manager.close()


def first_line(error: BaseException) -> str:
  """Returns the type and the first line of an error's text, which Orbax makes long."""
  text = (str(error).strip() or repr(error)).split("\n")[0][:200]
  return f"{type(error).__name__}: {text}"


def save_params(path: Path, params) -> None:
  """Writes parameters, completely or not at all, in place of what was there."""
  # Not ocp.StandardCheckpointer: it saves in a thread, which logs the tracebacks of errors.
  with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
    if storage := storage_of(path):
      processes.from_main("params before", lambda: storage.discard(path_of(path)))
    checkpointer.save(path_of(path).resolve(), args=ocp.args.StandardSave(params), force=True)
  if processes.is_main() and not is_bucket(path):
    checksums.write(Path(path).resolve())


def complete(path: Path) -> bool:
  """Returns whether what `save_params` wrote is complete. In a bucket a part may be missing."""
  storage = storage_of(path)
  return path.exists() if storage is None else storage.complete(path_of(path))


def iterations(workdir: str | Path, folder: str = "checkpoints") -> list[int]:
  """Returns iterations with a complete checkpoint, in order. Orbax gives unfinished ones another
  name.

  Args:
    folder: "checkpoints", or `BEST`.
  """
  directory = path_of(workdir) / folder
  if storage := storage_of(directory):
    return storage.iterations(directory)
  if not directory.is_dir():
    return []
  return sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())


def restore_part(path: Path, like, fix: str):
  """Reads the entries of a saved tree that `like` has, and no others.

  Args:
    path: what `save_params` wrote, or `checkpoints/<iteration>/default`.
    like: tree of shapes, dtypes and shardings.
    fix: what to do if it cannot be read, for the message.

  Raises:
    TornCheckpointsError: it cannot be read, is damaged, or lacks a leaf of `like` because it was
      written under another configuration.
  """
  path = path_of(path)
  if not is_bucket(path):
    _refuse_damaged(path, fix)
  args = ocp.args.PyTreeRestore(item=like,
                                restore_args=ocp.checkpoint_utils.construct_restore_args(like),
                                partial_restore=True)
  try:
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
      tree = checkpointer.restore(path.resolve(), args=args)
  except Exception as error:  # Orbax raises many types for a torn directory
    if is_exhausted(error):
      raise
    raise TornCheckpointsError(
        f"{path} cannot be read ({first_line(error)}). Fix: {fix}.") from error
  missing = [
      jax.tree_util.keystr(keys, simple=True, separator="/")
      for keys, leaf in jax.tree_util.tree_leaves_with_path(tree)
      if isinstance(leaf, jax.ShapeDtypeStruct)
  ]
  if missing:
    raise TornCheckpointsError(
        f"{path} lacks {', '.join(missing[:8])}: it was written under another configuration. "
        f"Fix: {fix}.")
  return tree


def _refuse_damaged(path: Path, fix: str) -> None:
  """Compares the files of a saved tree with their list, which lies there or one folder above."""
  folder = next((place for place in (path, path.parent) if (place / checksums.NAME).is_file()),
                None)
  try:
    damage = None if folder is None else checksums.damage(folder)
  except OSError as error:
    damage = first_line(error)
  if damage:
    raise TornCheckpointsError(f"{path} is damaged: {damage}. Fix: {fix}.")


def abstract(tree, shardings):
  """Returns `tree` as shapes and dtypes with these shardings: what `restore` and `restore_part`
  read.
  """
  def abstract_leaf(x, sharding):
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

  return jax.tree.map(abstract_leaf, tree, shardings)
