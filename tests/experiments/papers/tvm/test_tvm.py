"""experiments/papers/tvm: the page says what the results say; these meet the claims."""

import functools
from pathlib import Path

import experiment_files
import numpy as np
import pytest

from experiments.papers.tvm import walks
from experiments.tables_lib import seed_results

FOLDER = Path(__file__).parents[4] / "experiments" / "papers" / "tvm"
toy = experiment_files.load(FOLDER / "toy.py")


def committed():
  return seed_results.load(FOLDER, toy.SEEDS)


def fits(results) -> bool:
  """Each seed's correlation is at least 0.9, and the mean error that of outcome labels at most."""
  prefix, outcome = ([one["fit"][name] for one in results] for name in ("prefix", "outcome"))
  error = [np.mean([one["error"] for one in of]) for of in (prefix, outcome)]
  return min(one["correlation"] for one in prefix) >= 0.9 and error[0] <= error[1]


def searches(results) -> bool:
  """With trained values it beats plain sampling, with exact ones it rises with K."""
  count = toy.HELD_OUT * len(results)
  exact = np.mean([one["exact"] for one in results], 0)
  error = np.sqrt(exact * (1 - exact) / count)
  rises = np.diff(exact) >= -2 * np.hypot(error[1:], error[:-1])
  plain, nothing = (np.array(accuracies) for accuracies in (
      [one["accuracy"]["plain"] for one in results], [one["constant"] for one in results]))
  # 8 samples per prompt against 2.
  spread = np.sqrt(plain.mean() * (1 - plain.mean()) / count * (1 / 2 + 1 / 8))
  return (rises.all() and all(one["gain"][0] > 0 for one in results)
          and abs(plain.mean() - nothing.mean()) < 3 * spread)


@pytest.mark.parametrize("check, change", [
    (fits, lambda one: one["fit"].update(prefix=one["fit"]["prefix"] | {"correlation": 0.89})),
    (fits, lambda one: one["fit"].update(prefix=one["fit"]["prefix"] | {"error": 0.1})),
    (searches, lambda one: one.update(gain=[-0.01, 0.02])),
    (searches, lambda one: one.update(exact=one["exact"][::-1])),
    (searches, lambda one: one.update(constant=0.5)),
])
def test_the_results_meet_what_was_asked_and_others_would_not(check, change):
  results = committed()
  assert len(results) == 5 and check(results)
  for one in results:
    change(one)
  assert not check(results)


@pytest.mark.slow
def test_searches_run_again_give_the_committed_numbers():
  prompts, entry = walks.prompts(True)[:toy.HELD_OUT], committed()[0]
  exact = functools.partial(walks.exact_score, toy.CASE)
  again = toy.right(prompts, toy.searched(exact, prompts, toy.CANDIDATES[0], 0)).mean()
  assert again == entry["exact"][0]
  beams = toy.searched(toy.constant, prompts, toy.BEAMS, 0)
  assert np.mean([toy.right(prompts, beams, i) for i in range(toy.BEAMS)]) == pytest.approx(
      entry["constant"])
