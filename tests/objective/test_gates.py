"""The entropy gate, the interpolated anchor, the step's scale and KPop's rejection by numpy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.config import ConfigError, CorrectionConfig
from jaxrl_llm.objective import anchor, correction, gates
from jaxrl_llm.objective.step_size import ess_step_scale


def batch(seed=0, rows=6, length=9):
  rng = np.random.default_rng(seed)
  mask = rng.random((rows, length)) < 0.7
  mask[-1] = False
  return rng.uniform(0, 3, mask.shape).astype(np.float32), mask


# --- entropy gate


def gated(entropy, mask, share):
  return np.asarray(gates.entropy_share(jnp.asarray(entropy), jnp.asarray(mask), share))


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.93])
def test_entropy_gate_is_the_quantile_of_the_batch(share):
  entropy, mask = batch()
  expected = mask & (entropy >= np.quantile(entropy[mask].astype(np.float64), 1 - share) - 1e-6)
  gate = gated(np.where(mask, entropy, np.nan), mask, share)
  np.testing.assert_array_equal(gate, expected)
  order = np.random.default_rng(1).permutation(len(mask))
  np.testing.assert_array_equal(gated(entropy[order], mask[order], share), gate[order])
  rows = [mask[i] & (entropy[i] >= np.quantile(entropy[i][mask[i]], 1 - share))
          for i in range(len(mask) - 1)]
  assert not np.array_equal(np.stack(rows), gate[:-1])  # ASPO's quantile, of the row, is another


def test_entropy_gate_at_its_ends():
  entropy, mask = batch()
  np.testing.assert_array_equal(gated(entropy, mask, 1.0), mask)
  np.testing.assert_array_equal(gated(np.ones_like(entropy), mask, 0.2), mask)  # ties stay
  assert not gated(entropy, np.zeros_like(mask), 0.2).any()
  with pytest.raises(ValueError, match="at most 1 is allowed"):
    gated(entropy, mask, 0.0)


# --- interpolated anchor


def between(log_probs, behavior, versions, version):
  return np.asarray(anchor.interpolated(*map(jnp.asarray, (log_probs, behavior, versions)),
                                        version))


def test_anchor_by_lag():
  """Lags 1, 2, 3 and 4: shares 0, 1/2, 2/3 and 3/4; unknown and future versions: 0."""
  log_probs, behavior = np.full((1, 6), -1.0), np.full((1, 6), -3.0)
  anchors = between(log_probs, behavior, np.array([[9, 8, 7, 6, -1, 12]]), 10)
  np.testing.assert_allclose(anchors[0], [-3, -2, -3 + 4 / 3, -1.5, -3, -3], rtol=1e-6)
  linear = np.log((np.exp(-3) + np.exp(-1)) / 2)
  assert abs(anchors[0, 1] - linear) > 0.1  # the other published form mixes probabilities


def test_anchor_splits_the_ratio_and_has_no_gradient():
  rng = np.random.default_rng(0)
  log_probs, behavior = (-rng.exponential(1, (3, 5)).astype(np.float32) for _ in range(2))
  versions = rng.integers(0, 8, (3, 5))
  anchors = between(log_probs, behavior, versions, 8)
  np.testing.assert_allclose((log_probs - anchors) + (anchors - behavior), log_probs - behavior,
                             atol=1e-6)
  assert np.abs(anchors - behavior).max() > 0.1 and np.abs(anchors - log_probs).max() > 0.1
  gradient = jax.grad(lambda x: anchor.interpolated(x, jnp.asarray(behavior), jnp.asarray(versions),
                                                    8).sum())(jnp.asarray(log_probs))
  np.testing.assert_array_equal(gradient, 0.0)
  np.testing.assert_array_equal(between(log_probs, behavior, np.full((3, 5), 7), 8), behavior)


# --- scale of the step


def test_step_scale_by_hand():
  weights = jnp.log(jnp.asarray([1.0, 2.0, 4.0, 8.0]))
  assert float(ess_step_scale(weights)) == pytest.approx(0.8135, abs=1e-4)
  assert float(ess_step_scale(weights, power=1.0)) == pytest.approx(0.6618, abs=1e-4)
  assert float(ess_step_scale(weights, power=1.0, reference=0.55)) == 1.0
  half = float(ess_step_scale(weights, reference=0.9))
  assert half == pytest.approx(math.sqrt(0.6618 / 0.9), abs=1e-4)


@pytest.mark.parametrize("log_weights", [[3.0], [5.0, 5.0, 5.0], [0.0, 0.0], [1e4, 1e4]])
def test_equal_weights_take_a_whole_step(log_weights):
  assert float(ess_step_scale(jnp.asarray(log_weights))) == pytest.approx(1)


def overflowing(log_weights):
  weights = jnp.exp(log_weights)
  return jnp.sqrt(jnp.square(weights.sum()) / jnp.square(weights).sum() / len(weights))


def check_one_dominates(scale):
  """One weight is all: the share is 1 / B, however large the weight is."""
  for largest in (50.0, 1e4):
    share = float(scale(jnp.asarray([largest, 0.0, -largest, 1.0])))
    assert share == pytest.approx(0.5, abs=1e-3)


def test_one_dominating_weight_in_log_space():
  check_one_dominates(ess_step_scale)
  with pytest.raises(AssertionError):
    check_one_dominates(overflowing)


# --- token_kpop


def kept(policy, behavior, bound):
  cfg = CorrectionConfig(level="token", cap=None, reject=(("token_kpop", None, bound),))
  policy, behavior = (np.log(np.asarray([x], np.float32)) for x in (policy, behavior))
  mask = np.ones(policy.shape, bool)
  weights, metrics = correction.correction_weights(*map(jnp.asarray, (policy, behavior, mask)), cfg)
  assert np.isfinite(weights).all()
  return np.asarray(weights)[0], metrics


def test_kpop_rejects_by_both_directions():
  """D(.99, .5) = .637 and D(.5, .99) = 1.614: the larger one counts, whichever comes first."""
  policy, behavior = [0.99, 0.5, 0.5, 1e-6], [0.5, 0.99, 0.45, 1e-3]
  weights, metrics = kept(policy, behavior, 1.6)
  np.testing.assert_allclose(weights, [0, 0, 0.5 / 0.45, 1e-3], rtol=1e-5)
  assert float(metrics["correction/rejected"].total) == 2
  np.testing.assert_allclose(kept(policy, behavior, 1.63)[0],
                             [1.98, 0.5 / 0.99, 0.5 / 0.45, 1e-3], rtol=1e-5)
  one_direction = 0.99 * math.log(0.99 / 0.5) + 0.01 * math.log(0.01 / 0.5)
  assert one_direction < 0.64  # alone it would keep the first token at 1.6


def test_kpop_near_certain_tokens_are_finite():
  policy, behavior = [1.0, 1.0, 1.0 - 1e-7], [1.0, 0.1, 1.0]
  weights, _ = kept(policy, behavior, 2.0)
  np.testing.assert_allclose(weights, [1, 0, 1], rtol=1e-5)


def test_kpop_has_an_upper_bound_only():
  for bounds in ((0.1, 2.0), (None, None)):
    with pytest.raises(ConfigError, match="bounded from above only"):
      correction.check(CorrectionConfig(reject=(("token_kpop", *bounds),)))
