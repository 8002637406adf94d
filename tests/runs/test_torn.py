"""What was saved and cannot be read is named in one line, and nothing that can be read is lost."""

import errno
import json
import logging
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.commands import disk, saved
from jaxrl_llm.config import CheckpointConfig, ConfigError, from_dict, to_dict
from jaxrl_llm.reporting.reader import read_metrics
from jaxrl_llm.reporting.writers import MetricsWriter
from jaxrl_llm.store import workdir
from jaxrl_llm.store.checkpoints import Checkpoints, TornCheckpointsError, restore_part, save_params
from jaxrl_llm.wiring import setup

LIKE = {"x": jax.ShapeDtypeStruct((3,), jnp.float32,
                                  sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))}


@pytest.fixture
def folder(tmp_path):
  """A workdir with checkpoints of iterations 2 and 4, whose `x` is the iteration."""
  checkpoints = Checkpoints(tmp_path, CheckpointConfig())
  for iteration in (2, 4):
    checkpoints.save(iteration, {"x": jnp.full(3, float(iteration))})
  checkpoints.close()
  return tmp_path


def restored(folder, recorded=None):
  """The iteration of the restored checkpoint, whose content is checked; None without one."""
  checkpoints = Checkpoints(folder, CheckpointConfig())
  try:
    checkpoint = checkpoints.restore(LIKE, recorded)
    if checkpoint is None:
      return None
    np.testing.assert_array_equal(checkpoint[1]["x"], checkpoint[0])
    checkpoints.save(checkpoint[0] + 2, {"x": jnp.zeros(3)})  # the way is free
    return checkpoint[0]
  finally:
    checkpoints.close()


def empty(folder, iteration):
  shutil.rmtree(folder / "checkpoints" / str(iteration))
  (folder / "checkpoints" / str(iteration)).mkdir()


def test_an_emptied_checkpoint_gives_way_to_the_intact_one_before(folder, caplog):
  empty(folder, 4)
  assert restored(folder) == 2
  assert "checkpoints/4 is torn" in caplog.text and "resuming from that of iteration 2" in (
      caplog.text)
  assert (folder / "torn_checkpoint_4").is_dir()


def test_a_surplus_that_a_kill_left_is_removed(folder):
  """The oldest goes after the newest is complete; a finished run saves none that would take it."""
  shutil.copytree(folder / "checkpoints" / "2", folder / "checkpoints" / "1")
  checkpoints = Checkpoints(folder, CheckpointConfig())
  try:
    assert checkpoints.restore(LIKE)[0] == 4
  finally:
    checkpoints.close()
  assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["2", "4"]


def test_where_none_can_be_read_nothing_is_moved_and_every_start_is_refused(folder):
  empty(folder, 4)
  (folder / "checkpoints" / "2" / "default" / "_METADATA").write_text("{")
  for _ in range(2):
    with pytest.raises(TornCheckpointsError, match=r"none of the checkpoints \[4, 2\]") as error:
      restored(folder)
    assert "\n" not in str(error.value) and "Fix: " in str(error.value)
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == ["2", "4"]
  assert not list(folder.glob("torn_*"))


def test_checkpoints_that_were_set_aside_are_not_forgotten(folder):
  (folder / "checkpoints" / "4").rename(folder / "torn_checkpoint_4")
  shutil.rmtree(folder / "checkpoints" / "2")
  with pytest.raises(TornCheckpointsError, match="torn_checkpoint_4"):
    restored(folder)
  shutil.rmtree(folder / "torn_checkpoint_4")
  assert restored(folder) is None


def test_lost_lines_of_metrics_are_made_again_from_an_older_checkpoint(folder, caplog):
  assert restored(folder, recorded=3) == 2
  assert "newer than the last whole line of metrics.jsonl, 3" in caplog.text


def test_lines_that_no_checkpoint_precedes_stay_lost_with_a_warning(folder, caplog):
  assert restored(folder, recorded=1) == 4
  assert "the lines stay lost" in caplog.text


@pytest.mark.parametrize("tail, kept, message", [
    ('{"iteration": 2, "a": 1', 1, "was torn and was dropped"),
    ('{"iteration": 2, "a": 1.0}', 2, "was completed"),
    ("", 1, ""),
])
def test_a_torn_last_line_is_mended_and_said(tail, kept, message, tmp_path, caplog):
  path = tmp_path / "metrics.jsonl"
  path.write_text('{"iteration": 1, "a": 1.0}\n' + tail)
  writer = MetricsWriter(tmp_path)
  assert [line["iteration"] for line in read_metrics(path)] == list(range(1, kept + 1))
  writer.write(3, {"a": 3.0})
  writer.close()
  assert [line["iteration"] for line in read_metrics(path)] == [*range(1, kept + 1), 3]
  assert message in caplog.text and bool(caplog.text) == bool(message)


@pytest.mark.parametrize("damage", ["empty", "garbled"])
def test_a_torn_folder_of_parameters_is_one_line(damage, tmp_path):
  save_params(tmp_path / "warm_start", {"x": jnp.ones(3)})
  for path in (tmp_path / "warm_start").rglob("*"):
    if path.is_file() and damage == "empty":
      path.unlink()
    elif path.is_file():
      path.write_bytes(b"garbled")
  message = r"warm_start (cannot be read|is damaged).* Fix: remove it\.$"
  with pytest.raises(TornCheckpointsError, match=message):
    restore_part(tmp_path / "warm_start", LIKE, "remove it")


@pytest.mark.parametrize("content", ["[]", "3", "null", "{", '{"plugins": 3}', "\xff" * 9])
def test_a_config_that_is_no_object_is_one_line(content, tmp_path):
  (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
  cfg = setup.resolve(from_dict({}))
  for read in (lambda: workdir.check(tmp_path, to_dict(cfg)), lambda: saved.read_config(tmp_path)):
    with pytest.raises(ConfigError, match=r"Fix: ") as error:
      read()
    assert "Traceback" not in str(error.value)


def test_plugins_of_a_foreign_folder_are_not_run(tmp_path):
  """Neither when it is read without leave, nor when another run is begun there."""
  trap = tmp_path / "trap.py"
  trap.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\n")
  (tmp_path / "config.json").write_text(json.dumps({"plugins": [str(trap)]}))
  for plugins in ("", "other.py"):
    with pytest.raises(ConfigError, match=r"trap\.py.*--plugins=run"):
      saved.read_config(tmp_path, plugins=plugins)
  with pytest.raises(ConfigError, match=r"plugins: .*trap\.py"):
    workdir.check(tmp_path, to_dict(setup.resolve(from_dict({}))))
  assert not (tmp_path / "sprung").exists()
  for plugins in ("run", str(trap)):
    saved.read_config(tmp_path, jax.devices()[:1], plugins)
    assert (tmp_path / "sprung").exists()


def test_another_division_of_rows_goes_on_and_is_said(tmp_path, caplog):
  before = setup.resolve(from_dict({}))
  after = setup.resolve(from_dict({"mesh": {"data": 1}, "updates": {"micro_batches": 2}}))
  workdir.claim(tmp_path, to_dict(before))
  workdir.claim(tmp_path, to_dict(after))
  assert "mesh.data: -1 in the workdir, 1 now" in caplog.text
  assert "updates.micro_batches: 1 in the workdir, 2 now" in caplog.text
  assert saved.read_config(tmp_path, jax.devices()[:1])[0].updates.micro_batches == 2
  caplog.clear()
  workdir.claim(tmp_path, to_dict(after))
  assert not caplog.text
  changed = setup.resolve(from_dict({"updates": {"optimizer_batches": 2}}))
  with pytest.raises(ConfigError, match=r"updates\.optimizer_batches"):
    workdir.claim(tmp_path, to_dict(changed))


@pytest.mark.parametrize("error", [
    OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), OSError(errno.EFBIG, "", "a/b"),
    ValueError("INTERNAL: write failed: No space left on device [os error 28]"),
])
def test_a_full_disk_is_one_line(error):
  with pytest.raises(disk.DiskError, match=r"--workdir=runs/a.*Fix: free space"):
    with disk.named("runs/a"):
      raise error
  with pytest.raises(PermissionError), disk.named("runs/a"):
    raise PermissionError(errno.EACCES, "no")


def test_the_other_writes_that_failed_are_not_logged(caplog):
  asyncio_log = logging.getLogger("asyncio")
  with pytest.raises(disk.DiskError), disk.named("runs/a"):
    raise OSError(errno.ENOSPC, "full")
  asyncio_log.error("never retrieved", exc_info=ValueError("No space left on device"))
  assert not caplog.text
  asyncio_log.error("never retrieved", exc_info=ValueError("something else"))
  assert "something else" in caplog.text
