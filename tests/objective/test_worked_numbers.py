"""Worked numbers of the methods of 2025-26: each coefficient by hand, and what would not give it.

The inputs: mu = .2 with A = 1, then mu = .4 with A = -1, each with the ratios .5, .9, 1.1, 1.5. The
eight tokens are one row each, and one optimizer batch.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.config import EstimatorConfig
from jaxrl_llm.objective import estimators
from jaxrl_llm.objective.estimators.suffix import future_weight

RATIOS = np.array([0.5, 0.9, 1.1, 1.5] * 2)
MU = np.array([0.2] * 4 + [0.4] * 4)
SIGNS = np.array([1.0] * 4 + [-1.0] * 4)
TOLERANCE = 1e-4

TABLE = [
    ("ppo", {"clip_high": 0.28}, [.5, .9, 1.1, 0, 0, -.9, -1.1, -1.5]),
    ("m2po", {}, [.5, .9, 1.1, 0, 0, -.9, -1.1, -1.5]),
    ("m2po", {"m2_scope": "all"}, [0, .9, 1.1, 0, 0, -.9, -1.1, 0]),
    # at .5 and 1.5 with mu = .2, |pi - mu| is .1 itself: rounding decides, so they are left out
    ("ipo", {}, [None, .9002, 1.0998, None, .0014, -.8998, -1.1002, -.0008]),
    ("kpop", {"phi": 0.02, "kl_tau": 0.0}, [0, .9, 1.1, 0, 0, -.9, -1.1, 0]),
    ("ce_gppo", {"beta_low": 0.25, "clip_high": 0.28}, [.5, .9, 1.1, 1.28, -.2, -.9, -1.1, -1.5]),
    ("drpo", {}, [.504, .9014, 1.0982, 1.488, -.492, -.8971, -1.1035, -1.524]),
    ("drpo", {"eps": 0.15}, [.8333, 1.02, .9533, .5, .1667, -.66, -1.3933, -3.5]),
    ("drpo", {"eps": 0.2, "weighted": False}, [1.75, 1.35, .55, -2.25, .75, -.45, -1.65, -5.25]),
    ("aspo", {}, [2, 1.1111, .9091, 0, 0, -.9, -1.1, -1.5]),
    ("delight", {}, [.9091, .8475, .8197, .7692, -.1667, -.2647, -.3056, -.375]),
    ("rec", {"clip": "ring"}, [0, 1, 1, 0, 0, -1, -1, 0]),
    ("dro", {}, [1.0693, 1.0105, .9905, .9595, -.9307, -.9895, -1.0095, -1.0405]),
]


def coefficients(cfg, log_ratios, mu, advantages):
  """The coefficient of each token of [B, L] rows, in float64."""
  with jax.enable_x64(True):
    anchor = jnp.asarray(np.log(mu))
    mask = jnp.ones(anchor.shape, bool)
    log_probs = anchor + jnp.asarray(log_ratios)
    columns = estimators.stand_ins(cfg, anchor, mask)

    def loss(log_probs):
      return jnp.sum(estimators.get_estimator(cfg.name)(log_probs, anchor, jnp.asarray(advantages),
                                                        mask, cfg, **columns).per_token_loss)

    return -np.asarray(jax.grad(loss)(log_probs))


@pytest.mark.parametrize(("name", "numbers", "expected"), TABLE)
def test_coefficients_of_single_tokens(name, numbers, expected):
  column = slice(None), None
  values = coefficients(EstimatorConfig(name, **numbers), np.log(RATIOS)[column], MU[column],
                        SIGNS[column])[:, 0]
  known = [i for i, value in enumerate(expected) if value is not None]
  difference = np.abs(values[known] - [expected[i] for i in known])
  assert difference.max() < TOLERANCE
  assert np.abs(values[known] - (RATIOS * SIGNS)[known]).max() > 1e-3  # not the plain ratio


PREFIXES = {
    0.0: [.5, .6708, .791, .9283],
    0.25: [.5, .622, .7346, .9001],
    0.5: [.5, .5686, .6663, .8617],
    1.0: [.5, .45, .495, .7425],
}


def prefix_row(name, **numbers):
  bounds = {"log_low": None, "log_high": None, "log_dual": None}
  return coefficients(EstimatorConfig(name, **bounds | numbers), np.log(RATIOS)[None, :4],
                      MU[None, :4], SIGNS[None, :4])[0]


@pytest.mark.parametrize("alpha", PREFIXES)
def test_prefixes_between_the_mean_and_the_product(alpha):
  row = prefix_row("prefix_power", alpha=alpha)
  assert np.abs(row - PREFIXES[alpha]).max() < TOLERANCE
  others = [np.abs(row - PREFIXES[other]).max() for other in PREFIXES if other != alpha]
  assert min(others) > 100 * TOLERANCE


def test_the_ends_of_the_prefix_family_are_the_two_estimators_bit_for_bit():
  np.testing.assert_array_equal(prefix_row("prefix_power", alpha=1.0), prefix_row("ctpo"))
  np.testing.assert_array_equal(prefix_row("prefix_power", alpha=0.0), prefix_row("ctpo_geomean"))
  rng = np.random.default_rng(0)
  case = (0.03 * rng.standard_normal((6, 20)), np.full((6, 20), 0.3), rng.standard_normal((6, 20)))
  for alpha, name in ((1.0, "ctpo"), (0.0, "ctpo_geomean")):
    family = coefficients(EstimatorConfig("prefix_power", alpha=alpha), *case)
    np.testing.assert_array_equal(family, coefficients(EstimatorConfig(name), *case))
    assert 0 < np.mean(family == 0) < 1
  steps = [prefix_row("prefix_power", alpha=alpha)[1:] for alpha in (0.0, 0.25, 0.5, 0.75, 1.0)]
  assert (np.diff(steps, axis=0) < 0).all()  # L < 0 here: the weight falls with alpha


def future(log_ratios, **numbers):
  cfg = estimators.resolve(EstimatorConfig("fipo", half_life=2.0, high_only=False, **numbers))
  log_ratios = jnp.asarray([log_ratios])
  return np.asarray(future_weight(log_ratios, jnp.ones_like(log_ratios),
                                  jnp.ones(log_ratios.shape, bool), cfg))[0]


def test_future_weights_of_fipo():
  """F = .1086, .0121, .3 for a half-life of 2; a forward scan would begin with .1."""
  np.testing.assert_allclose(future([.1, -.2, .3]), [1.1147, 1.0122, 1.2], atol=TOLERANCE)
  np.testing.assert_allclose(np.log(future([.1, -.2, .3], width=9.0)), [.1086, .0121, .3],
                             atol=TOLERANCE)
  # a token above the dual clip leaves the sum, and ages the rest all the same
  capped = future([.1, 3.0, .3], width=9.0, dual_clip=2.0)
  np.testing.assert_allclose(np.log(capped), [.1 + .3 / 2, .3 / math.sqrt(2), .3], atol=TOLERANCE)
