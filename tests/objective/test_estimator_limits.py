"""Estimators that are others at a limit of their numbers, and are not away from it."""

import dataclasses

import contracts
import jax
import numpy as np
import pytest

from jaxrl_llm.config import EstimatorConfig
from jaxrl_llm.objective import estimators

pytestmark = pytest.mark.slow

PPO = {"clip_low": 0.2, "clip_high": 0.2}
PLAIN = ("ppo", {"clip_low": None, "clip_high": None})
WIDE = {"row_low": None, "row_high": None}
# (name, numbers at the limit, numbers away from it, the estimator that it is there)
LIMITS = [
    ("ce_gppo", {"beta_low": 0.0, "beta_high": 0.0, "dual_clip": None}, {"dual_clip": None},
     ("ppo", PPO)),
    ("rec", {"clip": "one_side", "weight": "ratio"}, {"clip": "one_side"}, ("ppo", PPO)),
    ("rec", {"k2": 0.05}, {"k2": 0.5}, ("dro", {"beta": 0.1})),
    ("rec", {}, {"weight": "ratio"}, ("reinforce", {})),
    ("fipo", {"width": 0.0, "clip_high": 0.2, "max_dual": None}, {"clip_high": 0.2},
     ("ppo", PPO | {"dual_clip": 10.0})),
    ("bapo", {"target": 0.0}, {"target": 10.0},
     ("ppo", {"clip_low": 0.4, "clip_high": 0.2, "dual_clip": 3.0})),
    ("ipo", {"delta": None, "kl_tau": 0.0}, {"kl_tau": 0.0}, PLAIN),
    ("kpop", {"phi": None, "kl_tau": 0.0}, {"phi": 0.01, "kl_tau": 0.0}, PLAIN),
    ("drpo", {"eps": 1e9}, {"eps": 0.15}, PLAIN),
    ("kl_cov", {"coef": 0.0}, {}, PLAIN),
    ("m2po", {"tau": 1e9}, {}, PLAIN),
    ("m2po", {"tau": 1e9, "m2_rule": "cap"}, {"m2_rule": "cap"}, PLAIN),
    ("geo_mask", WIDE, {}, ("reinforce", {})),
    ("seq_mis", WIDE, {}, ("seq_is", {})),
    ("mis_po", WIDE | {"token_low": None, "token_high": None}, WIDE | {"token_high": 1.2},
     ("reinforce", {})),
    ("dppo_tv", {"mask_anchor": "ratio"}, {"mask_anchor": "recomputed"}, ("dppo_tv", {})),
    ("cppo", {"adaptive": True, "d_b": 0.0}, {"d_b": 0.1}, ("cppo", {"d_b": 0.0})),
]


def gradient(name, numbers, case):
  cfg = EstimatorConfig(name, **numbers)
  return contracts.weighted(estimators.get_estimator(name), cfg, case)[1]


@pytest.mark.parametrize(("name", "at", "away", "other"), LIMITS,
                         ids=[f"{name}-{i}" for i, (name, *_) in enumerate(LIMITS)])
def test_an_estimator_at_its_limit(name, at, away, other):
  case = contracts.case(1, drift=0.4)
  expected = gradient(*other, case)
  np.testing.assert_allclose(gradient(name, at, case), expected, atol=1e-6)
  assert np.abs(gradient(name, away, case) - expected).max() > 1e-4


def test_gppo_is_a_truncated_ratio_on_the_side_of_the_advantage():
  case = contracts.case(1, drift=0.4)
  ratio = np.exp(case.log_probs - case.anchor)
  clipped = np.where(case.advantages > 0, np.minimum(ratio, 1.2), np.maximum(ratio, 0.8))
  expected = -contracts.token_weights(case) * np.where(case.mask, clipped * case.advantages, 0)
  slope = gradient("ce_gppo", {"beta_low": 1.0, "dual_clip": None}, case)
  np.testing.assert_allclose(slope, expected, atol=1e-6)


def test_the_sign_of_drpo_changes_at_its_unit():
  """A = 1: at pi - mu = eps the coefficient is 0, below it pushes on, above it pulls back."""
  log_probs, anchor = np.log([[0.55, 0.49, 0.61]]), np.log([[0.4, 0.4, 0.4]])
  case = contracts.case(1).rows(slice(0, 1))
  case = dataclasses.replace(case, log_probs=log_probs, anchor=anchor, mask=np.ones((1, 3), bool),
                             advantages=np.ones((1, 3)))
  with jax.enable_x64(True):
    slope = -gradient("drpo", {"eps": 0.15}, case)[0]
  assert abs(slope[0]) < 1e-12 and slope[1] > 0.1 and slope[2] < -0.1


def test_turns_of_one_token_are_token_ratios_and_one_turn_is_the_row():
  case = contracts.case(1, drift=0.4)
  segment = PPO | {"span": "segment"}
  order = np.where(case.mask, np.cumsum(case.mask, 1), 0).astype(np.int32)
  alone = dataclasses.replace(case, turn_id=order)
  np.testing.assert_allclose(gradient("gspo", segment, alone), gradient("ppo", PPO, case),
                             atol=1e-6)
  one_turn = dataclasses.replace(case, turn_id=case.mask.astype(np.int32))
  np.testing.assert_allclose(gradient("gspo", segment, one_turn), gradient("gspo", PPO, case),
                             atol=1e-6)
  between = gradient("gspo", segment, case)
  for other in (gradient("ppo", PPO, case), gradient("gspo", PPO, case)):
    assert np.abs(between - other).max() > 1e-3


def test_the_two_spans_of_dro_agree_on_rows_of_one_token_only():
  case = contracts.case(1, drift=0.4)
  token, row = (gradient("dro", {"span": span}, case) for span in ("token", "sequence"))
  single = case.mask.sum(1) == 1
  np.testing.assert_allclose(row[single], token[single], atol=1e-7)
  assert np.abs(row - token).max() > 1e-3


def test_the_random_tokens_of_clip_cov_follow_from_row_and_place():
  """Another row id chooses others; as many are chosen, and the same again with the same ids."""
  numbers = {"share": 0.2, "cov_low": -9.0, "cov_high": 9.0, "clip_low": None, "clip_high": None}
  case = contracts.case(1)
  chosen = gradient("clip_cov", numbers, case) == 0
  other = gradient("clip_cov", numbers, dataclasses.replace(case, row_id=case.row_id + 1)) == 0
  count = int(0.2 * case.mask.sum())
  assert (chosen & case.mask).sum() == (other & case.mask).sum() == count
  assert not np.array_equal(chosen, other)
  np.testing.assert_array_equal(chosen, gradient("clip_cov", numbers, case) == 0)
