"""Accuracy over seeds: runs that ended early, collapses, and what a row says."""

import numpy as np

from jaxrl_llm.analysis import accuracy


def run(*values: float) -> dict:
  return {"iterations": [5 * i for i in range(len(values))], "accuracy": list(values),
          "entropy": 0.5, "gradient_norm": 1.0, "without_gradient": 0.25}


def test_a_run_that_ended_early_keeps_its_last_policy():
  iterations, values = accuracy.curves([run(0.2, 0.9), run(0.2, 0.5, 1.0, 0.6)])
  np.testing.assert_array_equal(iterations, [0, 5, 10, 15])
  np.testing.assert_array_equal(values, [[0.2, 0.9, 0.9, 0.9], [0.2, 0.5, 1.0, 0.6]])


def test_a_row_has_a_cell_for_each_column():
  cells = dict(zip(accuracy.HEADER, accuracy.row([run(0.2, 1.0, 0.0), run(0.2, 1.0, 0.9)]),
                   strict=True))
  assert cells["collapsed"] == "1 of 2"
  assert cells["best accuracy"] == "1 ± 0" and cells["final accuracy"].startswith("0.45 ± ")
  assert cells["mean over the run"].startswith("0.55 ± ")
  assert cells["without gradient, %"] == "25 ± 0"
  assert accuracy.best_to_final(run(0.2, 1.0, 0.0)) == "1.00 -> 0.00"
