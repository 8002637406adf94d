"""A run whose folder is in a bucket: killed, refused, and read by the other commands."""

import json
import os
import random
import signal
import time

import bucket_stub
import command
import pytest

pytestmark = pytest.mark.slow

WORKDIR = "gs://test-runs/group/run"
CHANGES = ("checkpoint.best=eval/accuracy", "iterations=4", "checkpoint.every=1",
           "evaluation.every=2")


@pytest.fixture(scope="module")
def served():
  """(server, environment of commands that use it)."""
  server = bucket_stub.Bucket()
  yield server, {bucket_stub.VARIABLE: server.address, "GOOGLE_AUTH_TOKEN_FOR_TESTING": "none"}
  server.shutdown()


def content(server, name: str) -> bytes:
  stored = server.objects.get(("test-runs", f"group/run/{name}"))
  return b"" if stored is None else stored.content


def lines(text: bytes) -> list[dict]:
  return [{key: value for key, value in json.loads(line).items() if not key.startswith("time/")}
          for line in text.decode().splitlines()]


def kill_at(process, server, count: int, delay: float) -> None:
  """Kills a command some time after metrics.jsonl has so many lines."""
  end = time.monotonic() + 120
  while len(lines(content(server, "metrics.jsonl"))) < count and time.monotonic() < end:
    assert process.poll() is None, command.finish(process).stderr
    time.sleep(0.02)
  time.sleep(delay)
  os.kill(process.pid, signal.SIGKILL)
  command.finish(process)


@pytest.fixture(scope="module")
def runs(served, tmp_path_factory):
  """(server, environment, folder of the same run on disk); the one in the bucket was killed twice,
  and another trainer was refused meanwhile.
  """
  server, environment = served
  on_disk = tmp_path_factory.mktemp("bucket") / "run"
  command.succeed(command.start(on_disk, *CHANGES))
  rng = random.Random(5)
  start = lambda: command.start(WORKDIR, *CHANGES, environment=environment)
  kill_at(start(), server, 1, rng.uniform(0, 0.5))
  process = start()
  while not content(server, "lock") or json.loads(content(server, "lock"))["pid"] != process.pid:
    time.sleep(0.02)
  assert f"process {process.pid} on" in command.refuse(start())
  kill_at(process, server, 3, rng.uniform(0, 0.5))
  command.succeed(start())
  return server, environment, on_disk


def test_a_killed_run_is_that_of_a_folder_byte_for_byte(runs):
  server, _, on_disk = runs
  assert lines(content(server, "metrics.jsonl")) == lines((on_disk / "metrics.jsonl").read_bytes())
  for path in command.rollout_files(on_disk):
    assert content(server, f"rollouts/{path.name}") == path.read_bytes()
  names = {name.split("/")[2] for _, name in server.objects}
  assert names >= {path.name for path in on_disk.iterdir()}
  saved = {name.split("/")[3] for _, name in server.objects if "run/checkpoints/" in name}
  assert saved - {""} == {"3", "4"}


def test_other_commands_read_it_there(runs, tmp_path):
  _, environment, on_disk = runs
  compared = command.launch("compare", WORKDIR, str(on_disk), f"--out={tmp_path / 'compared'}",
                            environment=environment)
  assert "2" in command.succeed(compared).stdout
  both = [command.succeed(command.launch("replay", str(workdir), environment=environment)).stdout
          for workdir in (WORKDIR, on_disk)]
  assert both[0] == both[1]
  command.succeed(command.launch("evaluate", f"--workdir={WORKDIR}", "--samples=1",
                                 f"--out={tmp_path / 'samples'}", environment=environment))
  assert (tmp_path / "samples" / "samples.jsonl").stat().st_size
  for name, workdir in (("bucket", WORKDIR), ("disk", on_disk)):
    command.succeed(command.launch("export", f"--workdir={workdir}", f"--out={tmp_path / name}",
                                   environment=environment))
  weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("bucket", "disk")]
  assert weights[0] == weights[1]


def test_other_services_are_refused_by_name():
  assert "--workdir=s3://a/b" in command.refuse(command.start("s3://a/b"))
