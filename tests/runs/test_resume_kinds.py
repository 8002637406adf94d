"""Runs with kept groups, completions in the making and tools are killed, and go on as if never."""

import signal

import command
import pytest
import tiny
from processes import gone, until
from test_resume import assert_same_run, killed_at


@pytest.mark.nightly
def test_a_killed_run_on_groups_of_mixed_ages_equals_the_whole_run(tmp_path):
  flags = ("updates.replay=3", "updates.replay_rule=recency", "updates.replay_decay=0.8",
           "checkpoint.every=1")
  full, killed = tmp_path / "whole", tmp_path / "killed"
  command.succeed(command.start(full, *flags, interpreter=True))
  lines = command.metrics_lines(full)[1:]
  assert [line["replay/age_max"] for line in lines] == [0, 1, 2, 3, 3, 3]
  assert 0 < lines[-1]["replay/new"] < 1 and lines[-1]["rollout/staleness"] > 1
  assert all(line["optimizer/grad_norm"] > 0 for line in lines)
  kept = command.last_tree(full)[1]["replay"]["iteration"]
  assert set(kept) == set(range(tiny.ITERATIONS - 2, tiny.ITERATIONS + 1))
  killed_at(killed, 5, *flags)
  assert_same_run(killed, full)


TOOLS = {"config": "tests/runs/tiny_tools.py"}
IN_FLIGHT = ("updates.in_flight=True", "rollout.slots=16", "rollout.chunk=3",
             f"iterations={tiny.ITERATIONS}")


def killed_within_a_program(workdir, call: int) -> None:
  """Runs until its `call`-th program is in flight, and kills the command there."""
  flag, temporary = workdir.with_name("flag"), workdir.with_name("temporary")
  temporary.mkdir()
  process = command.start(workdir, *IN_FLIGHT, **TOOLS, environment={
      "STALL": f"{flag}:{call}", "TMPDIR": str(temporary)})
  try:
    command.wait_for(lambda: flag.exists() and flag.read_text(), process)
    assert until(lambda: len(command.descendants(process.pid)) >= 5), (
        "supervisor and server of two workers, and the program")
    below = command.descendants(process.pid)
    assert {int(pid) for pid in flag.read_text().split()} < set(below)
  finally:
    process.kill()
    process.communicate()
  assert process.returncode == -signal.SIGKILL
  assert gone(below), "a process outlived the trainer"
  names = [path.name for path in temporary.iterdir()]
  assert not [name for name in names if "sandbox" in name or "gone" in name]


@pytest.mark.slow
def test_a_run_in_flight_killed_within_a_program_equals_the_whole_run(tmp_path):
  full, killed = tmp_path / "whole", tmp_path / "killed"
  command.succeed(command.start(full, *IN_FLIGHT, **TOOLS, interpreter=True))
  lines = command.metrics_lines(full)[1:]
  assert all(line["tool/tokens"] > 20 and line["optimizer/grad_norm"] > 0 for line in lines)
  assert len({line["policy/entropy"] for line in lines}) == tiny.ITERATIONS
  assert max(line["in_flight/versions_max"] for line in lines) >= 2
  assert min(line["in_flight/unfinished_tokens"] for line in lines) > 0
  killed_within_a_program(killed, 40)
  assert 0 < len(command.metrics_lines(killed)) < 1 + tiny.ITERATIONS
  command.succeed(command.start(killed, *IN_FLIGHT, **TOOLS))
  assert_same_run(killed, full)
