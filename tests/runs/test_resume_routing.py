"""A run of a mixture of experts with routing replay, killed and started again; and what the replay
takes out of the gap between an int8 sampler and the trainer.
"""

import command
import numpy as np
import pytest
from test_resume import assert_same_run, killed_at

MIXTURE = ("model.num_experts=8", "model.experts_per_token=2", "model.expert_width=8",
           "model.num_layers=2", "model.width=32", "rollout.quantization=int8",
           "rollout.meter_rows=64", "checkpoint.every=1")
REPLAY = (*MIXTURE, "rollout.routing=True", "updates.replay=1")


@pytest.mark.nightly
def test_a_killed_run_equals_the_whole_run(tmp_path):
  full, killed = tmp_path / "whole", tmp_path / "killed"
  command.succeed(command.start(full, *REPLAY, interpreter=True))
  killed_at(killed, 3, *REPLAY)
  assert_same_run(killed, full)
  routing = command.last_tree(full)[1]["replay"]["rollout"].routing
  assert routing.shape[2:] == (2, 2) and set(np.unique(routing)) > {-1, 0, 1}


@pytest.mark.nightly
def test_the_mismatch_metrics_with_and_without_replay(tmp_path):
  """Both runs keep their weights, so that they sample and score the same rows."""
  numbers = {}
  for name, flags in (("with", ("rollout.routing=True",)), ("without", ())):
    command.succeed(command.start(tmp_path / name, *MIXTURE, *flags, "warm_start.steps=0",
                                  "optimizer.learning_rate=1e-12", "rollout.prompts=64",
                                  "rollout.meter_rows=256", interpreter=True))
    lines = command.metrics_lines(tmp_path / name)[1:]
    numbers[name] = {key: np.mean([line[key] for line in lines]) for key in lines[0]
                     if key.startswith("mismatch/") or key == "moe/replaced"}
    numbers[name]["rows"] = [line["rollout/tokens"] for line in lines]
  print(numbers)
  assert numbers["with"]["rows"] == numbers["without"]["rows"]
  assert 0 < numbers["with"]["moe/replaced"] < 0.1 and "moe/replaced" not in numbers["without"]
  for run in numbers.values():
    run["mismatch/largest"] = max(-run["mismatch/range/min"], run["mismatch/range/max"])
  for key in ("mismatch/absolute", "mismatch/k3", "mismatch/row", "mismatch/largest"):
    assert numbers["with"][key] < numbers["without"][key], key
