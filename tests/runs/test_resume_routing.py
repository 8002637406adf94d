"""A run of a mixture of experts with routing replay, killed and started again; and what the replay
takes out of the gap between an int8 sampler and the trainer.
"""

import command
import jax
import numpy as np
import pytest
from test_resume import assert_same_run, kill_when

pytestmark = pytest.mark.slow
MIXTURE = ("model.num_experts=8", "model.experts_per_token=2", "model.expert_width=8",
           "model.num_layers=2", "model.width=32", "rollout.quantization=int8",
           "rollout.meter_rows=64", "checkpoint.every=1")
REPLAY = (*MIXTURE, "rollout.routing=True", "updates.replay=1")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  workdir = tmp_path_factory.mktemp("routing") / "whole"
  command.succeed(command.start(workdir, *REPLAY, interpreter=True))
  return workdir


def test_a_killed_run_equals_the_whole_run(whole):
  workdir = whole.parent / "killed"
  for lines in (2, 4):
    reached = lambda lines=lines: len(command.metrics_lines(workdir)) >= lines
    kill_when(command.start(workdir, *REPLAY, environment=command.hold(lines)), reached, 0.05)
  command.succeed(command.start(workdir, *REPLAY))
  assert_same_run(workdir, whole)
  kept, expected = (command.last_tree(folder)[1]["replay"] for folder in (workdir, whole))
  jax.tree.map(np.testing.assert_array_equal, kept, expected)
  routing = kept["rollout"].routing
  assert routing.shape[2:] == (2, 2) and set(np.unique(routing)) > {-1, 0, 1}


def test_the_mismatch_metrics_with_and_without_replay(whole):
  numbers = {}
  for name, flags in (("with", ("rollout.routing=True",)), ("without", ())):
    workdir = whole.parent / name
    command.succeed(command.start(workdir, *MIXTURE, *flags, interpreter=True))
    lines = command.metrics_lines(workdir)[1:]
    numbers[name] = {key: np.mean([line[key] for line in lines])
                     for key in ("mismatch/absolute", "mismatch/k3", "mismatch/row")}
  print(numbers)
  for key, value in numbers["with"].items():
    assert value < numbers["without"][key], key
