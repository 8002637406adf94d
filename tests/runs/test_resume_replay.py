"""A run on groups of mixed ages, killed three times: started again it is the run that was never
killed, the kept groups included.
"""

import command
import jax
import numpy as np
import pytest
import tiny
from test_resume import assert_same_run, kill_when

pytestmark = pytest.mark.slow
REPLAY = ("updates.replay=3", "updates.replay_rule=recency", "updates.replay_decay=0.8",
          "checkpoint.every=1")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  workdir = tmp_path_factory.mktemp("replay") / "whole"
  command.succeed(command.start(workdir, *REPLAY, interpreter=True))
  return workdir


def test_batches_are_of_several_ages(whole):
  lines = command.metrics_lines(whole)[1:]
  assert [line["replay/age_max"] for line in lines] == [0, 1, 2, 3, 3, 3]
  assert 0 < lines[-1]["replay/new"] < 1 and lines[-1]["rollout/staleness"] > 1
  assert all(line["optimizer/grad_norm"] > 0 for line in lines)


def test_a_run_killed_three_times_equals_the_whole_run(whole):
  workdir = whole.parent / "killed"
  for lines in (2, 3, 5):
    reached = lambda lines=lines: len(command.metrics_lines(workdir)) >= lines
    kill_when(command.start(workdir, *REPLAY, environment=command.hold(lines)), reached, 0.05)
  command.succeed(command.start(workdir, *REPLAY))
  assert_same_run(workdir, whole)
  kept, expected = (command.last_tree(folder)[1]["replay"] for folder in (workdir, whole))
  jax.tree.map(np.testing.assert_array_equal, kept, expected)
  assert set(kept["iteration"]) == set(range(tiny.ITERATIONS - 2, tiny.ITERATIONS + 1))
