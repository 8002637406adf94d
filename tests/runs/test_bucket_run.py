"""A run whose folder is in a bucket: killed, refused, and read by the other commands."""

import json
import os
import random
import signal
import time

import bucket_stub
import command
import pytest

WORKDIR = "gs://test-runs/group/run"
CHANGES = ("checkpoint.best=eval/accuracy", "iterations=6", "checkpoint.every=1",
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


# A process is killed in a phase: after at most so many of its own writes of such a name, within at
# most so many seconds. Rows are sampled after a line of metrics, trained on after their own file.
PHASES = {
    "start": (r"/lock$", 1, 0.5),
    "rollout": (r"/metrics\.jsonl$", 1, 0.1),
    "update": (r"/rollouts/.*\.jsonl$", 1, 0.1),
    "checkpoint": (r"/checkpoints/\d+/", 12, 0.0),
    "end": (r"/report\.html$", 2, 0.1),
}
KILLS = ("start", "rollout", "update", "checkpoint", "checkpoint", "end")


def kill_at(process, server, phase: str, chance: random.Random) -> None:
  """Kills a command in a phase, after whose writes the server holds those that follow."""
  command.wait_for(lambda: server.left <= 0, process)
  time.sleep(chance.uniform(0, PHASES[phase][2]))
  os.kill(process.pid, signal.SIGKILL)
  status = command.finish(process).returncode
  server.let_go()
  assert status == -signal.SIGKILL, f"it ended before its {phase}"


def unfinished(server) -> set[str]:
  """Checkpoints of which a part is in the bucket."""
  parts = {name.split("/")[3] for _, name in server.objects if "run/checkpoints/" in name}
  return {part for part in parts if part and
          not content(server, f"checkpoints/{part}/default/commit_success.txt")}


@pytest.fixture(scope="module")
def runs(served, tmp_path_factory):
  """(server, environment, folder of the same run on disk); that in the bucket was killed."""
  server, environment = served
  on_disk = tmp_path_factory.mktemp("bucket") / "run"
  command.succeed(command.start(on_disk, *CHANGES))
  chance, torn = random.Random(5), []
  start = lambda: command.start(WORKDIR, *CHANGES, environment=environment)
  for turn, phase in enumerate(KILLS):
    pattern, most, _ = PHASES[phase]
    server.hold_after(pattern, chance.randint(1, most))
    begin, process = len(server.writes), start()
    if turn == 1:
      command.wait_for(lambda begin=begin: any(
          name.endswith("/lock") for name in server.writes[begin:]), process)
      assert f"process {process.pid} on" in command.refuse(start())
    kill_at(process, server, phase, chance)
    torn.append(unfinished(server))
  assert any(torn), "no checkpoint was killed within its writes"
  command.succeed(start())
  return server, environment, on_disk


@pytest.mark.slow
def test_a_killed_run_is_that_of_a_folder_byte_for_byte(runs):
  server, _, on_disk = runs
  assert lines(content(server, "metrics.jsonl")) == lines((on_disk / "metrics.jsonl").read_bytes())
  for path in command.rollout_files(on_disk):
    assert content(server, f"rollouts/{path.name}") == path.read_bytes()
  names = {name.split("/")[2] for _, name in server.objects}
  assert names >= {path.name for path in on_disk.iterdir()}
  saved = {name.split("/")[3] for _, name in server.objects if "run/checkpoints/" in name}
  assert saved - {""} == {"5", "6"}


@pytest.mark.nightly
def test_other_commands_read_it_there(runs, tmp_path):
  _, environment, on_disk = runs
  compared = command.launch("compare", WORKDIR, str(on_disk), f"--out={tmp_path / 'compared'}",
                            environment=environment)
  assert "2" in command.succeed(compared).stdout
  both = [command.succeed(command.launch("replay", str(workdir), environment=environment)).stdout
          .replace(str(workdir), "") for workdir in (WORKDIR, on_disk)]
  assert both[0] == both[1]
  command.succeed(command.launch("evaluate", f"--workdir={WORKDIR}", "--samples=1",
                                 f"--out={tmp_path / 'samples'}", environment=environment))
  assert (tmp_path / "samples" / "samples.jsonl").stat().st_size
  for name, workdir in (("bucket", WORKDIR), ("disk", on_disk)):
    command.succeed(command.launch("export", f"--workdir={workdir}", f"--out={tmp_path / name}",
                                   environment=environment))
  weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("bucket", "disk")]
  assert weights[0] == weights[1]


@pytest.mark.slow
def test_other_services_are_refused_by_name():
  assert "--workdir=s3://a/b" in command.refuse(command.start("s3://a/b"))
