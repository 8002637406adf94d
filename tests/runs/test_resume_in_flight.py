"""A run with tools whose completions go on under new weights, killed twice: started again it
is the run that was never killed, completions in the making included.
"""

import command
import jax
import numpy as np
import pytest
from test_resume import kill_when

pytestmark = pytest.mark.slow
CONFIG = "tests/runs/tiny_tools.py"
IN_FLIGHT = ("updates.in_flight=True", "rollout.slots=16", "iterations=6", "rollout.chunk=3")


def start(workdir, **options):
  return command.start(workdir, *IN_FLIGHT, config=CONFIG, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  workdir = tmp_path_factory.mktemp("in_flight") / "whole"
  command.succeed(start(workdir, interpreter=True))
  return workdir


def test_completions_in_the_making_call_tools(whole):
  lines = command.metrics_lines(whole)[1:]
  assert all(line["tool/calls"] > 0 for line in lines)
  assert max(line["in_flight/versions_max"] for line in lines) >= 2
  assert min(line["in_flight/unfinished_tokens"] for line in lines) > 0


def test_a_run_killed_twice_equals_the_whole_run(whole):
  workdir = whole.parent / "killed"
  for lines in (2, 4):
    reached = lambda lines=lines: len(command.metrics_lines(workdir)) >= lines
    kill_when(start(workdir, environment=command.hold(lines)), reached, 0.05)
  command.succeed(start(workdir))
  assert command.timeless(workdir) == command.timeless(whole)
  files = lambda folder: {path.name: path.read_bytes() for path in command.rollout_files(folder)}
  assert files(workdir) == files(whole) and len(files(whole)) == 6
  (iteration, state), (last, expected) = command.last_state(workdir), command.last_state(whole)
  assert iteration == last == 6
  jax.tree.map(np.testing.assert_array_equal, state, expected)
