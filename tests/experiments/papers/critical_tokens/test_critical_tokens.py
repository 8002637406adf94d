"""experiments/papers/critical_tokens: the page says what the results say."""

from pathlib import Path

import experiment_files
import jax
import numpy as np
import pytest

from experiments.tables_lib import chains, seed_results

FOLDER = Path(__file__).parents[4] / "experiments" / "papers" / "critical_tokens"
toy = experiment_files.load(FOLDER / "toy.py")
policies = toy.policies


def committed():
  return seed_results.load(FOLDER, toy.SEEDS)


def finds(results) -> bool:
  """The planted token is mostly the lowest, and the prober finds it or an earlier one."""
  shares = [toy.of(results, "planted", *path).mean() for path in (
      ("contrastive", "lowest"), ("contrastive", "lowest three"), ("probed",))]
  return all(share >= least for share, least in zip(shares, (0.7, 0.9, 0.95), strict=True))


def improves(results) -> bool:
  """cDPO is right more often on each seed, and the chosen responses' log-prob does not fall."""
  base, after = ([one["trained"][name] for one in results] for name in ("base", "cDPO"))
  better = [b["sampled"] > a["sampled"] for a, b in zip(base, after, strict=True)]
  rise = np.mean([b["chosen"] - a["chosen"] for a, b in zip(base, after, strict=True)])
  return all(better) and rise >= 0


@pytest.mark.parametrize("check, change", [
    (finds, lambda one: one["planted"]["contrastive"].update({"lowest": 0.6})),
    (finds, lambda one: one["planted"].update(probed=0.94)),
    (improves, lambda one: one["trained"]["cDPO"].update(sampled=0.2)),
    (improves, lambda one: one["trained"]["cDPO"].update(chosen=-9.0)),
])
def test_the_results_meet_what_was_asked_and_others_would_not(check, change):
  results = committed()
  assert len(results) == 5 and check(results)
  for one in results:
    change(one)
  assert not check(results)


def plants_one_error(corrupted) -> bool:
  """Whether each response is right but for one sum, which the later ones follow from."""
  asked = chains.prompts(200, 3, True)
  rows, at = corrupted(asked, 0)
  steps = np.diff(rows[:, :chains.TERMS], axis=1) % 10 != asked[:, 2:]
  first = (rows[:, 0] != asked[:, 1])[:, None]
  wrong = np.concatenate([first, steps], 1)
  return bool((wrong == (np.arange(chains.TERMS) == at[:, None])).all()
              and (rows[:, -1] == chains.END).all() and not chains.correct(asked, rows).any()
              and set(at) == set(range(1, chains.TERMS)))


def changes_one_digit(asked, seed):
  responses, at = chains.corrupted(asked, seed)
  right = chains.responses(asked)
  later = np.arange(chains.RESPONSE) > at[:, None]
  return np.where(later, right, responses), at


def test_a_planted_response_has_one_error():
  assert plants_one_error(chains.corrupted)
  assert not plants_one_error(changes_one_digit)
  asked = chains.prompts(50, 3, False)
  assert chains.correct(asked, chains.responses(asked)).all()


def test_careless_responses_have_the_stated_rate_of_errors():
  asked = chains.prompts(4000, 3, False)
  responses = chains.careless(asked, 0.12, np.random.default_rng(0))
  wrong = np.diff(responses[:, :chains.TERMS], axis=1) % 10 != asked[:, 2:]
  error = np.sqrt(0.12 * 0.88 / len(asked))
  assert (np.abs(wrong.mean(0) - 0.12) < 4 * error).all() and (responses[:, 0] == asked[:, 1]).all()


def test_no_question_is_on_both_sides():
  sides = [set(map(tuple, chains.prompts(3000, 1, held_out))) for held_out in (False, True)]
  assert not sides[0] & sides[1] and min(map(len, sides)) > 2900


@pytest.mark.nightly
def test_training_on_pairs_moves_adapted_weights_only(monkeypatch):
  """Two small updates; the given parameters stay as they are."""
  monkeypatch.setattr(policies, "DPO_STEPS", 2)
  monkeypatch.setattr(policies, "BATCH", 8)
  policies.stepper.cache_clear()
  start = policies.MODEL.init(jax.random.key(0))
  asked = chains.prompts(6, 0, False)
  right, wrong = (np.column_stack([asked, responses]) for responses in (
      chains.responses(asked), chains.corrupted(asked, 0)[0]))
  ones = np.ones(right.shape)
  chosen, rejected = policies.sides(start, right, ones), policies.sides(start, wrong, ones / 2)
  batches = policies.pair_batches(chosen, rejected, np.random.default_rng(0))
  params = policies.train("cDPO", start, batches, jax.random.key(1))
  np.testing.assert_array_equal(params["embedding"], start["embedding"])
  for part, name in (("mlp", "up"), ("attention", "query")):
    change = params["blocks"][0][part][name] - start["blocks"][0][part][name]
    assert float(np.abs(change).max()) > 0
  policies.stepper.cache_clear()
