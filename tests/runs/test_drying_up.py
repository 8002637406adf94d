"""Runs that cannot sample a batch keep the iterations that they finished."""

import command
import pytest

pytestmark = pytest.mark.slow
PATIENT = ("dynamic_sampling.enabled=True", "dynamic_sampling.max_draws=2",
           "checkpoint.every=100", "evaluation.every=100")


def test_finished_iterations_are_written_and_saved(tmp_path):
  """Nothing is due after iteration 3, whose line is pending when iteration 4 finds no group."""
  error = command.refuse(command.start(tmp_path, *PATIENT, "reward.name=drying",
                                       "plugins=tests/runs/drying_reward.py"))
  assert "0 of 32 groups in 2 draws" in error
  assert [line["iteration"] for line in command.metrics_lines(tmp_path)] == [0, 1, 2, 3]
  assert command.checkpoint_iterations(tmp_path)[-1] == 3


def test_an_update_that_is_not_finite_is_told_before_what_follows_from_it(tmp_path):
  """A policy of NaN answers nothing right, so that its groups dry up."""
  error = command.refuse(command.start(tmp_path, *PATIENT, "dynamic_sampling.max_draws=100",
                                       "optimizer.learning_rate=1e30"))
  assert "iteration 1, optimizer step 2: loss = " in error and "gradient norm = nan" in error
  assert [line["iteration"] for line in command.metrics_lines(tmp_path)] == [0, 1]
  assert command.checkpoint_iterations(tmp_path) == [0]
