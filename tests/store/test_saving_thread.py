"""Checkpoints are written in a thread while the run goes on, and hold what was there before."""

import errno
import os
import threading
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxrl_llm.config import CheckpointConfig
from jaxrl_llm.runs.outputs import Outputs
from jaxrl_llm.store import checkpoints as checkpoints_lib
from jaxrl_llm.store.checkpoints import Checkpoints

MESH = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
SIZE = 1 << 16
update = jax.jit(lambda x: 3 * x + 1, donate_argnums=0)


@pytest.fixture
def held(monkeypatch):
  """An event; until it is set, no checkpoint gets its name, which makes it complete."""
  event, rename = threading.Event(), os.rename

  def wait(source, target, **options):
    if "checkpoints" in str(target):
      assert event.wait(600)
    return rename(source, target, **options)

  monkeypatch.setattr(os, "rename", wait)
  yield event
  event.set()


@pytest.mark.parametrize("spec", [PartitionSpec(), PartitionSpec("data")])
def test_updates_go_on_while_a_checkpoint_is_written(held, tmp_path, spec):
  """The updates donate what is being written, as those of a run do."""
  x = update(jax.device_put(jnp.arange(SIZE, dtype=jnp.float32), NamedSharding(MESH, spec)))
  expected = np.array(x)
  like = {"x": jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)}
  checkpoints = Checkpoints(tmp_path, CheckpointConfig())
  checkpoints.save(1, {"x": x})
  assert checkpoints_lib.iterations(tmp_path) == []
  for _ in range(5):
    x = update(x)
  assert not np.array_equal(x, expected)
  held.set()
  assert checkpoints.latest() == 1
  assert checkpoints_lib.iterations(tmp_path) == [1]
  np.testing.assert_array_equal(checkpoints.restore(like)[1]["x"], expected)
  checkpoints.close()


@pytest.mark.parametrize(("backend", "complete"), [("cpu", [1]), ("tpu", [])])
def test_a_large_tree_is_complete_on_return_where_the_copy_is_the_array(
    held, tmp_path, monkeypatch, backend, complete):
  monkeypatch.setattr(checkpoints_lib, "jax", SimpleNamespace(
      default_backend=lambda: backend, tree=jax.tree, Array=jax.Array))
  checkpoints = Checkpoints(tmp_path, CheckpointConfig())
  if complete:
    threading.Timer(0.5, held.set).start()
  checkpoints.save(1, {"x": jnp.zeros(2**26 + 1)})
  assert checkpoints_lib.iterations(tmp_path) == complete
  held.set()
  checkpoints.close()


def test_a_failure_in_the_thread_is_raised_by_the_next_call(tmp_path, monkeypatch):
  checkpoints = Checkpoints(tmp_path, CheckpointConfig())
  rename = os.rename

  def full(source, target, **options):
    if "checkpoints" in str(target):
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
    return rename(source, target, **options)

  monkeypatch.setattr(os, "rename", full)
  checkpoints.save(1, {"x": jnp.ones(3)})
  with pytest.raises(OSError, match="No space left"):
    checkpoints.finish()
  monkeypatch.setattr(os, "rename", rename)
  checkpoints.close()


class _Best:
  """Notes which checkpoints were complete at each call."""

  def __init__(self, folder):
    self.folder, self.seen = folder, []

  def prune(self):
    self.seen.append(checkpoints_lib.iterations(self.folder))


def saved_with(save, folder, held):
  """What `_Best` saw when two checkpoints were saved with `save`, the second one to the end."""
  best, checkpoints = _Best(folder), Checkpoints(folder, CheckpointConfig())
  outputs = SimpleNamespace(checkpoints=checkpoints, best=best, directory=folder)
  save(outputs, 1, {"x": jnp.ones(3)})
  held.set()
  save(outputs, 2, {"x": jnp.ones(3)}, wait=True)
  checkpoints.close()
  return best.seen


def _at_once(outputs, iteration, tree, wait=False):
  """A wrong one: it removes the best parameters before the checkpoint that replaces them is there.
  """
  outputs.checkpoints.save(iteration, tree)
  outputs.best.prune()


def test_best_parameters_are_removed_when_the_checkpoint_is_complete(held, tmp_path):
  assert saved_with(Outputs.save, tmp_path / "right", held) == [[], [1], [1, 2]]
  held.clear()
  assert saved_with(_at_once, tmp_path / "wrong", held)[0] == []
