"""Correction weights, rejection and the sequence mask, against tables by hand and slow loops."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.config import ConfigError, CorrectionConfig
from jaxrl_llm.objective import correction

MASK = np.array([[True, True, False, True], [True, False, False, False], [False] * 4,
                 [True, True, True, True]])
RATIOS = np.array([[0.5, 3.0, 9.0, 1.0], [2.5, 0.1, 0.1, 0.1], [7.0] * 4, [1.01, 0.99, 1.02, 0.98]],
                  np.float32)


def run(ratios=RATIOS, mask=MASK, **fields):
  """(weights, metrics as (total, count)) for given ratios anchor / behavior."""
  behavior = jnp.full(ratios.shape, -1.0)
  weights, metrics = correction.correction_weights(behavior + jnp.log(jnp.asarray(ratios)),
                                                   behavior, jnp.asarray(mask),
                                                   CorrectionConfig(**fields))
  return np.asarray(weights), {k: (float(m.total), float(m.count)) for k, m in metrics.items()}


def test_truncated_weights_by_hand():
  mask, ratios = MASK[:2], RATIOS[:2]
  weights, metrics = run(ratios, mask, level="none")
  np.testing.assert_array_equal(weights, 1.0)
  assert metrics["correction/weight"] == (4, 4) and metrics["correction/truncated"] == (0, 4)
  weights, metrics = run(ratios, mask, level="token", cap=2.0)
  np.testing.assert_allclose(weights, [[0.5, 2, 1, 1], [2, 1, 1, 1]], rtol=1e-6)
  assert metrics["correction/truncated"] == (2, 4)
  np.testing.assert_allclose(metrics["correction/weight_squared"], (0.25 + 4 + 1 + 4, 4), rtol=1e-6)
  weights, _ = run(ratios, mask, level="sequence", cap=2.0)
  np.testing.assert_allclose(weights, [[1.5, 1.5, 1, 1.5], [2, 1, 1, 1]], rtol=1e-6)
  weights, _ = run(ratios, mask, level="token", cap=None)
  np.testing.assert_allclose(weights, [[0.5, 3, 1, 1], [2.5, 1, 1, 1]], rtol=1e-6)


def test_icepop_drops_instead_of_truncating():
  weights, metrics = run(level="token", low=0.8, cap=2.7)
  np.testing.assert_allclose(weights, [[0, 0, 1, 1], [2.5, 1, 1, 1], [1] * 4, RATIOS[3]], rtol=1e-6)
  assert metrics["correction/truncated"] == (2, 8) and metrics["correction/rejected"] == (0, 8)
  weights, _ = run(level="sequence", low=0.99, cap=None)
  np.testing.assert_allclose(weights[[0, 1, 3], 0], [1.5, 2.5, np.prod(RATIOS[3])], rtol=1e-5)


def test_batch_normalize():
  weights, metrics = run(level="token", cap=2.0, batch_normalize=True)
  truncated = np.minimum(RATIOS, 2.0)
  np.testing.assert_allclose(weights, np.where(MASK, truncated / truncated[MASK].mean(), 1),
                             rtol=1e-6)
  np.testing.assert_allclose(metrics["correction/weight"][0], 8, rtol=1e-6)
  weights, _ = run(level="sequence", cap=2.0, batch_normalize=True)
  rows = np.array([1.5, 2.0, 0.0, np.prod(RATIOS[3])])
  expected = rows / (rows.sum() / 3)  # by rows that have a policy token, not by tokens
  np.testing.assert_allclose(weights, np.where(MASK, expected[:, None], 1), rtol=1e-5)
  weights, _ = run(level="token", batch_normalize=True, mask=np.zeros_like(MASK))
  np.testing.assert_array_equal(weights, 1.0)
  weights, _ = run(level="token", batch_normalize=True, reject=(("token_k1", None, 2.0),), cap=None)
  # rejection comes after
  np.testing.assert_allclose(weights[3], RATIOS[3] / RATIOS[MASK].mean(), rtol=1e-6)


def slow(name, low, high):
  """What a rule keeps, one token or row at a time."""
  reduction, statistic = name.rsplit("_", 1)
  kept = np.ones(MASK.shape, bool)
  inside = lambda x: (low is None or x >= low) and (high is None or x <= high)
  for b, row in enumerate(RATIOS.astype(np.float64)):
    ratios = row[MASK[b]]
    values = {"k1": ratios, "k2": np.log(ratios)**2 / 2,
              "k3": ratios - 1 - np.log(ratios)}[statistic]
    if not len(ratios):
      continue
    if reduction == "token":
      kept[b, MASK[b]] = [inside(v) for v in values]
      continue
    if reduction == "seq_max":
      good = all(inside(v) for v in values)
    elif statistic == "k1":
      good = inside(np.prod(values) ** (1 / len(values) if reduction == "seq_mean" else 1))
    else:
      good = inside(values.sum() if reduction == "seq_sum" else values.mean())
    kept[b, MASK[b]] = good
  return kept


BOUNDS = {"k1": [(None, 1.4), (1.0, None), (0.95, 1.6)], "k2": [(None, 0.2), (None, 0.4)],
          "k3": [(None, 0.2), (None, 0.5)]}
RULES = [(name, *bounds) for name in correction.RULES if name != correction.KPOP
         for bounds in BOUNDS[name[-2:]]]  # token_kpop: test_gates.py


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rules_equal_the_loop(rule):
  kept = slow(*rule)
  weights, metrics = run(level="none", reject=(rule,))
  np.testing.assert_array_equal(weights, kept)
  assert 0 < kept[MASK].sum() < 8 and metrics["correction/rejected"] == ((~kept).sum(), 8)
  assert metrics["correction/rejected_rows"] == (sum(
      MASK[b].any() and not kept[b][MASK[b]].any() for b in range(4)), 3)
  weights, _ = run(level="token", cap=2.0, reject=(rule,))
  np.testing.assert_allclose(weights, np.where(MASK, np.minimum(RATIOS, 2) * kept, 1), rtol=1e-6)


def test_bounds_are_on_anchor_over_behavior():
  """A ratio of 2 is beyond an upper bound of 1.5; its inverse would be below one of 0.6."""
  ratios, mask = np.full((1, 1), 2.0, np.float32), np.ones((1, 1), bool)
  for name in ("token_k1", "seq_sum_k1", "seq_mean_k1", "seq_max_k1"):
    assert run(ratios, mask, reject=((name, None, 1.5),))[0] == 0
    assert run(ratios, mask, reject=((name, 0.6, None),))[0] == 1
    assert run(1 / ratios, mask, reject=((name, 0.6, None),))[0] == 0


def test_rules_combine_and_the_narrow_geometric_band_holds():
  rules = (("seq_mean_k1", 0.99, 1.01), ("token_k1", 0.985, None))
  weights, _ = run(level="token", cap=2.0, reject=rules)
  np.testing.assert_allclose(weights, [[0, 0, 1, 0], [0, 1, 1, 1], [1] * 4, [1.01, 0.99, 1.02, 0]],
                             rtol=1e-6)


@pytest.mark.slow
def test_constants_and_finite_at_extremes():
  rng = np.random.default_rng(0)
  anchor, behavior = (
      jnp.asarray(rng.choice([-300.0, -1.0, 0.0], (3, 6)), jnp.float32) for _ in range(2))
  mask = jnp.asarray(rng.random((3, 6)) < 0.7)
  dirty = jnp.where(mask, anchor, jnp.nan)
  for level in correction.LEVELS:
    cfg = CorrectionConfig(level, None, reject=tuple((n, None, 1e9) for n in correction.RULES))
    f = lambda a, b, cfg=cfg: jnp.sum(correction.correction_weights(a, b, mask, cfg)[0])
    value, gradient = jax.value_and_grad(f)(dirty, behavior)
    assert np.isfinite(value)
    np.testing.assert_array_equal(gradient, 0.0)
  with jax.enable_x64(True):
    wide = jnp.asarray(np.asarray(anchor), jnp.float64)
    assert correction.correction_weights(wide, wide, mask,
                                         CorrectionConfig("token"))[0].dtype == jnp.float64


@pytest.mark.parametrize("fields, texts", [
    ({"level": "tokn"}, ["'tokn'", "none, token, sequence", "'token'"]),
    ({"low": 0.5}, ["correction.low", "level = 'none'", "Fix"]),
    ({"batch_normalize": True}, ["correction.batch_normalize", "Fix"]),
    ({"level": "token", "low": 3.0, "cap": 2.0}, ["correction.low = 3.0", "correction.cap = 2.0"]),
    ({"reject": (("seq_avg_k1", None, 2.0),)}, ["'seq_avg_k1'", ", ".join(correction.RULES)]),
    ({"reject": ("token_k1", 0.5, 2.0)}, ["'token_k1'", "(name, low, high)"]),
    ({"reject": (("token_k1", None, None),)}, ["bounds nothing"]),
    ({"reject": (("token_k1", 2.0, 0.5),)}, ["low exceeds high"]),
    ({"reject": (("token_k1", None, math.inf),)}, ["inf", "finite number"]),
    ({"reject": (("seq_max_k3", 0.0, 0.5),)}, ["from above only", "('seq_max_k3', None, high)"]),
])
def test_refused(fields, texts):
  for call in (lambda: correction.check(CorrectionConfig(**fields)), lambda: run(**fields)):
    with pytest.raises(ConfigError) as error:
      call()
    for text in texts:
      assert text in str(error.value)


def test_sequence_mask_by_hand():
  """Rows: far below, negative; far below, positive; near, negative; without a token; above."""
  drop = np.array([0.3, 0.3, 0.1, 0.3, -0.9])[:, None]
  mask = np.array([[True, True, False]] * 3 + [[False] * 3] + [[True, True, False]])
  anchor = jnp.full((5, 3), -1.0)
  current = anchor - jnp.asarray(drop * [0.5, 1.5, 50.0], jnp.float32)  # mean of tokens: drop
  signs = np.array([-1.0, 1.0, -1.0, -1.0, -1.0])[:, None]
  advantages = jnp.asarray(signs * [2.0, -1.0, -9.0], jnp.float32)  # mean of tokens: half the sign

  def gate(log_probs, delta):
    return correction.sequence_mask(log_probs, anchor, advantages, jnp.asarray(mask),
                                    CorrectionConfig(sequence_delta=delta))

  np.testing.assert_array_equal(gate(current, 0.2)[:, 0], [0, 1, 1, 1, 1])
  np.testing.assert_array_equal(gate(current, 0.05)[:, 0], [0, 1, 0, 1, 1])
  np.testing.assert_array_equal(gate(current, None), 1.0)
  assert gate(current, 0.2).shape == mask.shape
  np.testing.assert_array_equal(jax.grad(lambda x: jnp.sum(gate(x, 0.2)))(current), 0.0)
