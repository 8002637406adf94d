"""Every flipped bit of a saved tree is noticed, and the checkpoint before is read."""

import random
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.config import CheckpointConfig
from jaxrl_llm.store import checksums
from jaxrl_llm.store.checkpoints import Checkpoints, TornCheckpointsError, restore_part, save_params

LEAF = jax.ShapeDtypeStruct((4000,), jnp.float32,
                            sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))
FLIPS = 60


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
  folder = tmp_path_factory.mktemp("saved")
  checkpoints = Checkpoints(folder, CheckpointConfig())
  for iteration in (2, 4):
    checkpoints.save(iteration, {"x": jax.random.normal(jax.random.key(iteration), (4000,))})
  checkpoints.close()
  return folder


def flipped(folder, number):
  """Flips the bit of a random place of a random file, which it returns."""
  rng = random.Random(number)
  files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
  path = rng.choice(files)
  content = bytearray(path.read_bytes())
  content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
  path.write_bytes(content)
  return path


def restored(folder):
  checkpoints = Checkpoints(folder, CheckpointConfig())
  try:
    return checkpoints.restore({"x": LEAF})
  finally:
    checkpoints.close()


def test_each_flipped_bit_is_noticed(saved, tmp_path):
  assert checksums.damage(saved / "checkpoints" / "4") is None
  for number in range(FLIPS):
    copy = shutil.copytree(saved / "checkpoints" / "4", tmp_path / str(number))
    path = flipped(copy, number)
    damage = checksums.damage(copy)
    assert damage and (str(path.relative_to(copy)) in damage or path.name == checksums.NAME or
                       "is missing" in damage), (number, path, damage)
    shutil.rmtree(copy)


def damage_an_array(folder):
  """Flips the last bit of the largest file: an array's, which no header protects."""
  path = max((path for path in folder.rglob("*") if path.is_file()),
             key=lambda path: path.stat().st_size)
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content)
  return path.name


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_read(saved, tmp_path, caplog):
  copy = shutil.copytree(saved, tmp_path / "copy")
  name = damage_an_array(copy / "checkpoints" / "4")
  iteration, tree = restored(copy)
  assert iteration == 2
  np.testing.assert_array_equal(tree["x"], jax.random.normal(jax.random.key(2), (4000,)))
  assert "checkpoints/4 is damaged" in caplog.text and name in caplog.text


def test_an_older_checkpoint_without_a_list_is_read_as_before(saved, tmp_path):
  """So the list is what notices: without it the damage is loaded in silence."""
  copy = shutil.copytree(saved, tmp_path / "copy")
  for path in copy.rglob(checksums.NAME):
    path.unlink()
  damage_an_array(copy / "checkpoints" / "4")
  try:
    iteration, tree = restored(copy)
  except TornCheckpointsError:
    pytest.fail("a checkpoint without a list is refused")
  assert iteration == 2 or not np.array_equal(
      tree["x"], jax.random.normal(jax.random.key(4), (4000,)))


@pytest.mark.parametrize("of_run", [False, True], ids=["parameters", "checkpoint"])
def test_damaged_parameters_are_one_line(saved, tmp_path, of_run):
  if of_run:
    folder = shutil.copytree(saved, tmp_path / "copy") / "checkpoints" / "4"
  else:
    folder = tmp_path / "warm_start"
    save_params(folder, {"x": jnp.arange(4000.0)})
  path = folder / "default" if of_run else folder
  np.testing.assert_equal(np.shape(restore_part(path, {"x": LEAF}, "a copy")["x"]), (4000,))
  damage_an_array(folder)
  with pytest.raises(TornCheckpointsError, match=r"is damaged: .* changed since .* Fix: a copy"):
    restore_part(path, {"x": LEAF}, "a copy")
