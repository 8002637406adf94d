"""The command beside torn files, on a full disk, and on another number of devices."""

import shutil

import command
import numpy as np
import programs
import pytest
import tiny

pytestmark = pytest.mark.slow

ROUNDING = 1e-5
FOUR = {"XLA_FLAGS": f"{programs.FLAGS} --xla_force_host_platform_device_count=4"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """Folder of a run that nothing interrupted."""
  workdir = tmp_path_factory.mktemp("torn_run") / "whole"
  command.succeed(command.start(workdir))
  return workdir


@pytest.fixture
def copy(whole, tmp_path):
  return shutil.copytree(whole, tmp_path / "copy")


def contents(workdir):
  """metrics.jsonl and all rollouts, as they stand."""
  return [(workdir / "metrics.jsonl").read_bytes(), *command.rollout_contents(workdir).values()]


def timeless(workdir):
  return [{k: v for k, v in line.items() if not k.startswith("time/")}
          for line in command.metrics_lines(workdir)]


def refused(process):
  """The one line that the command ended with; Orbax's own text in it may say "error:", too."""
  done = command.finish(process)
  assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
  assert sum(line.startswith("error: ") for line in done.stderr.splitlines()) == 1, done.stderr
  last = done.stderr.splitlines()[-1]
  assert last.startswith("error: ") and "Fix: " in last, done.stderr
  return last


def test_where_nothing_can_be_read_nothing_is_cut(copy):
  for path in (copy / "checkpoints").iterdir():
    shutil.rmtree(path)
    path.mkdir()
  before = contents(copy)
  for _ in range(2):
    error = refused(command.start(copy))
    assert "none of the checkpoints [6, 4] can be read" in error
  assert contents(copy) == before


def test_a_lost_folder_of_checkpoints_cuts_nothing(copy):
  shutil.rmtree(copy / "checkpoints")
  before = contents(copy)
  assert "there is no checkpoint" in refused(command.start(copy))
  assert contents(copy) == before


@pytest.mark.parametrize("damage", ["empty", "garbled"])
def test_a_torn_warm_start_is_one_line_and_can_be_made_again(damage, copy, whole):
  for path in list((copy / "warm_start").rglob("*")):
    if path.is_file() and damage == "empty":
      path.unlink()
    elif path.is_file():
      path.write_bytes(b"garbled")
  before = contents(copy)
  error = refused(command.start(copy))
  expected = {"empty": "warm_start cannot be read", "garbled": "warm_start is damaged"}[damage]
  assert expected in error and "Fix: " in error
  assert contents(copy) == before
  if damage == "empty":
    shutil.rmtree(copy / "warm_start")
    command.succeed(command.start(copy))
    assert timeless(copy) == timeless(whole)


def test_a_torn_last_line_is_said_and_made_again(copy, whole):
  path = copy / "metrics.jsonl"
  path.write_bytes(path.read_bytes()[:-20])
  done = command.succeed(command.start(copy))
  assert "the last line was torn" in done.stderr
  assert timeless(copy) == timeless(whole)


def test_a_full_disk_is_one_line_and_the_run_goes_on(copy, whole):
  """A limit of file sizes, the nearest to a full disk that needs no rights."""
  newest = copy / "checkpoints" / str(tiny.ITERATIONS)
  shutil.rmtree(newest)
  size = (copy / "metrics.jsonl").stat().st_size
  error = refused(command.start(copy, environment={"FILE_BYTES": str(size // 2)}))
  assert "File too large" in error and "Fix: free space" in error
  command.succeed(command.start(copy))
  assert timeless(copy) == timeless(whole)


def test_other_devices_and_micro_batches_go_on_to_rounding(copy, whole):
  newest = copy / "checkpoints" / str(tiny.ITERATIONS)
  shutil.rmtree(newest)
  done = command.succeed(command.start(copy, "updates.micro_batches=2", "mesh.data=4",
                                       environment=FOUR))
  assert "4 x cpu, before 1 x cpu" in done.stderr
  assert "updates.micro_batches: 1 in the workdir, 2 now" in done.stderr
  for ours, theirs in zip(timeless(copy), timeless(whole), strict=True):
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
      np.testing.assert_allclose(ours[name], value, rtol=ROUNDING, atol=ROUNDING, err_msg=name)
  differ = [line != other for line, other in zip(timeless(copy), timeless(whole), strict=True)]
  assert any(differ[-2:]) and not any(differ[:-2])
