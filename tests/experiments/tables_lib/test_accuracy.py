"""Accuracy over seeds: runs that ended early, collapses, and tokens up to an evaluation."""

import json
import types

import numpy as np

from experiments.tables_lib import accuracy


def run(*values: float) -> dict:
  return {"iterations": [5 * i for i in range(len(values))], "accuracy": list(values),
          "entropy": 0.5, "gradient_norm": 1.0, "without_gradient": 0.25}


def test_a_run_that_ended_early_keeps_its_last_policy():
  iterations, values = accuracy.curves([run(0.2, 0.9), run(0.2, 0.5, 1.0, 0.6)])
  np.testing.assert_array_equal(iterations, [0, 5, 10, 15])
  np.testing.assert_array_equal(values, [[0.2, 0.9, 0.9, 0.9], [0.2, 0.5, 1.0, 0.6]])


def test_a_gradient_that_is_not_finite_is_a_collapse():
  """Whatever the last evaluation before it was; the numbers of that step are left out."""
  series = {"eval/accuracy": ([0, 5], [0.2, 1.0]),
            "policy/entropy": ([1, 5, 8], [0.5, 0.5, np.nan]),
            "optimizer/grad_norm": ([1, 5, 8], [1.0, 1.0, np.nan]),
            "clip/dropped": ([1, 5, 8], [0.25, 0.25, 0.25]),
            "kl/current_behavior": ([1, 5, 8], [0.1, 0.1, np.inf]),
            "rollout/length": ([1, 5, 8], [3.0, 3.0, 3.0])}
  numbers = accuracy.measure(types.SimpleNamespace(
      series=lambda name: tuple(map(np.array, series[name]))))
  assert json.loads(json.dumps(numbers, allow_nan=False))["diverged"] is True
  cells = dict(zip(accuracy.HEADER, accuracy.row([numbers, run(0.2, 1.0)]), strict=True))
  assert cells["collapsed"] == "1 of 2" and cells["gradient norm"] == "1 ± 0"


def recorded(tokens, dynamic=None):
  """A run of three iterations, evaluated before the first and after the second and third."""
  series = {"eval/accuracy": ([0, 2, 3], [0.25, 0.5, 0.75]), "rollout/tokens": ([1, 2, 3], tokens),
            "dynamic_sampling/tokens": ([1, 2, 3], dynamic)}
  return types.SimpleNamespace(
      config={"dynamic_sampling": {"enabled": dynamic is not None}},
      series=lambda name: tuple(map(np.array, series[name])))


def test_tokens_add_up_to_each_evaluation():
  assert accuracy.with_tokens(recorded([10, 20, 40])) == {
      "iterations": [0, 2, 3], "accuracy": [0.25, 0.5, 0.75], "tokens": [0, 30, 70]}
  dropped = accuracy.with_tokens(recorded([10, 20, 40], dynamic=[10, 60, 80]))
  assert dropped["tokens"] == [0, 70, 150], "tokens of groups that were dropped count"
