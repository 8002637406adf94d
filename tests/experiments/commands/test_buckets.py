"""Paths in a bucket, local copies of what is there, and the claim on a folder, by a stub server."""

import concurrent.futures
import json
import os
import socket
import subprocess
import sys
import threading
import time
import types

import bucket_stub
import numpy as np
import pytest

from experiments.commands.buckets import lease, paths
from experiments.commands.buckets.paths import BucketPath
from jaxrl_llm.config import ConfigError
from jaxrl_llm.reporting.writers import MetricsWriter
from jaxrl_llm.store import checkpoints, folders, lock


@pytest.fixture
def serve(monkeypatch, request):
  """Starts a stub, and has tensorstore use it."""
  def start(conditional: bool = True) -> bucket_stub.Bucket:
    server = bucket_stub.Bucket(conditional)
    monkeypatch.setenv(bucket_stub.VARIABLE, server.address)
    monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "none")  # looks for no credentials
    paths.forget()
    request.addfinalizer(paths.forget)
    return server

  return start


@pytest.fixture
def run_folder(serve):
  serve()
  return BucketPath("gs://test-runs/group/run")


def test_a_folder_is_what_its_objects_say(run_folder):
  assert not run_folder.exists() and str(run_folder.resolve()) == "gs://test-runs/group/run"
  (run_folder / "rollouts").mkdir(parents=True)
  assert (run_folder / "rollouts").is_dir() and not list((run_folder / "rollouts").iterdir())
  for number in range(12):  # more than a page of the listing
    (run_folder / "rollouts" / f"iteration_{number:02d}.jsonl").write_text(f"{number} é")
  assert (run_folder / "rollouts" / "iteration_07.jsonl").read_text() == "7 é"
  assert len(list((run_folder / "rollouts").iterdir())) == 12
  assert [path.name for path in run_folder.iterdir()] == ["rollouts"]
  assert [path.name for path in run_folder.glob("rollouts/iteration_1*")] == [
      "iteration_10.jsonl", "iteration_11.jsonl"]
  assert [path.name for path in run_folder.parent.glob("*/rollouts")] == ["rollouts"]
  folders.move(run_folder / "rollouts", run_folder / "aside")
  assert not (run_folder / "rollouts").exists()
  assert len(list((run_folder / "aside").iterdir())) == 12
  folders.remove(run_folder)
  assert not run_folder.parent.exists()
  with pytest.raises(FileNotFoundError, match="aside/iteration_07"):
    (run_folder / "aside" / "iteration_07.jsonl").read_bytes()


def test_an_error_leaves_the_object_before(run_folder):
  (run_folder / "a").write_text("before")
  with pytest.raises(RuntimeError):
    with (run_folder / "a").open("wb") as file:
      file.write(b"half")
      raise RuntimeError
  assert (run_folder / "a").read_text() == "before"
  with pytest.raises(OSError, match="never appended"):
    (run_folder / "a").open("a")


def test_metrics_are_written_whole(serve):
  server, path = serve(), "gs://test-runs/run"
  writer = MetricsWriter(path)
  for iteration in range(3):
    writer.write(iteration, {"loss": iteration / 2})
  writer.close()
  again = MetricsWriter(path)
  again.cut_back(1)
  again.write(2, {"loss": 9.0})
  lines = [json.loads(line) for line in
           server.objects["test-runs", "run/metrics.jsonl"].content.decode().splitlines()]
  assert [(line["iteration"], line["loss"]) for line in lines] == [(0, 0.0), (1, 0.5), (2, 9.0)]


def test_parameters_are_there_when_they_are_complete(run_folder):
  like = {"a": np.arange(6.0), "b": {"c": np.ones((3, 4), np.float32)}}
  path = run_folder / "best" / "3"
  for value in (1.0, 2.0):  # in place of what was there
    checkpoints.save_params(path, {**like, "a": like["a"] + value})
  assert checkpoints.complete(path) and checkpoints.iterations(run_folder, "best") == [3]
  tree = checkpoints.restore_part(path, {"a": like["a"]}, "none")
  np.testing.assert_array_equal(tree["a"], like["a"] + 2.0)
  (path / "commit_success.txt").unlink()  # as if the writer had been killed
  assert not checkpoints.complete(path) and checkpoints.iterations(run_folder, "best") == []


def test_a_bucket_that_does_not_answer_ends_in_one_line(monkeypatch):
  """As without credentials, or with a wrong address: tensorstore tries for ten minutes."""
  with socket.create_server(("localhost", 0)) as server:  # takes connections, and says nothing
    monkeypatch.setenv(bucket_stub.VARIABLE, f"http://localhost:{server.getsockname()[1]}")
    monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "none")
    monkeypatch.setattr(paths, "FIRST_ANSWER", 0.2)
    paths.forget()
    with pytest.raises(OSError, match=r"no answer within 0\.2 s\. Fix: the name of") as error:
      BucketPath("gs://test-runs/run").exists()
  paths.forget()
  assert "gs://test-runs" in str(error.value) and "\n" not in str(error.value)


def claims_side_by_side(path, monkeypatch) -> int:
  """How many of eight trainers get the folder, if all read that it is free before any writes."""
  barrier, read = threading.Barrier(8), lease._read
  reads = threading.local()

  def read_together(path):
    content = read(path)
    if not hasattr(reads, "first"):
      reads.first = content
      barrier.wait()
    return content

  monkeypatch.setattr(lease, "_read", read_together)

  def claim(_):
    try:
      return lease.Lease(path)
    except lease.HeldError:
      return None

  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    won = [claimed for claimed in pool.map(claim, range(8)) if claimed]
  for claimed in won:
    claimed.release()
  return len(won)


@pytest.mark.parametrize("conditional", [True, False], ids=["conditional", "wrong"])
def test_one_of_eight_trainers_gets_the_folder(serve, monkeypatch, conditional):
  """Where a server ignores conditions, which is wrong, the test sees it."""
  serve(conditional)
  claims = claims_side_by_side(BucketPath("gs://test-runs/run/lock"), monkeypatch)
  assert claims == (1 if conditional else 8)


def test_a_second_trainer_is_refused_and_a_released_folder_is_free(run_folder):
  with lock.held(run_folder):
    lock.check(run_folder)
    with pytest.raises(ConfigError, match=f"process {os.getpid()} on .* is training there"):
      with lock.held(run_folder):
        pass
  with lock.held(str(run_folder)):
    assert json.loads((run_folder / "lock").read_text())["released"] is False


def test_a_dead_process_of_this_machine_holds_nothing(run_folder, monkeypatch):
  code = ("import os, sys; sys.path.insert(0, sys.argv[1])\n"
          "from experiments.commands.buckets import lease, paths\n"
          f"lease.Lease(paths.BucketPath('{run_folder}/lock')); os._exit(0)")
  subprocess.run([sys.executable, "-c", code, os.getcwd()], check=True)
  assert not json.loads((run_folder / "lock").read_text())["released"]

  def waits(_):
    raise AssertionError("it waits for a process that is gone")

  monkeypatch.setattr(lease, "time", types.SimpleNamespace(
      **{name: getattr(time, name) for name in ("monotonic", "strftime", "gmtime")}, sleep=waits))
  with lock.held(run_folder):
    pass


def test_a_claim_of_another_machine_is_void_only_when_it_is_not_renewed(run_folder, monkeypatch):
  monkeypatch.setattr(lease, "EVERY", 0.2)
  machine = lease._machine
  monkeypatch.setattr(lease, "_machine", lambda: "another")
  first = lease.Lease(run_folder / "lock")
  monkeypatch.setattr(lease, "_machine", machine)
  with pytest.raises(lease.HeldError):
    lease.Lease(run_folder / "lock")
  with first._guard:  # between two versions
    first._ended.set()  # it is suspended, or its network is gone
  monkeypatch.setattr(lease, "VOID", 1.0)
  second = lease.Lease(run_folder / "lock")
  first._ended.clear()
  monkeypatch.setattr(first, "_last", 0.0)
  with pytest.raises(lease.HeldError):
    first.check()
  second.check()
  second.release()
