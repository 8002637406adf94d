"""ARCA's weights against closed forms, and weights that its checks reject."""

import cases
import jax.numpy as jnp
import numpy as np
import pytest
import test_advantages

from experiments.papers.arca import token_credit
from experiments.papers.arca.residual import COLUMN
from experiments.papers.arca.token_credit import Arca, token_signal, token_weights
from jaxrl_llm.config import AdvantageConfig
from jaxrl_llm.objective import advantages
from jaxrl_llm.ops import masked
from jaxrl_llm.types import AdvantageInputs


def inputs(residual, mask=None, **others) -> AdvantageInputs:
  """Two rows of a group, of which the first is right."""
  residual = np.asarray(residual, np.float32)
  mask = np.ones(residual.shape, bool) if mask is None else np.asarray(mask)
  return AdvantageInputs(jnp.asarray([1.0, 0.0]), jnp.asarray(mask),
                         jnp.zeros(mask.shape, jnp.int32), jnp.zeros(2, jnp.int32),
                         columns={COLUMN: jnp.asarray(np.where(mask, residual, np.nan))}, **others)


def check(weigh) -> None:
  """What A5 asks of the weights."""
  rng = np.random.default_rng(0)
  mask = rng.random((2, 9)) < 0.7
  residual = rng.exponential(size=(2, 9))
  weights = np.asarray(weigh(inputs(residual, mask), Arca()))
  count = mask.sum(1)
  np.testing.assert_allclose(weights.sum(1) / count, 1, rtol=1e-5, err_msg="the mean is not 1")
  np.testing.assert_array_equal(weights[~mask], 0, err_msg="a masked token has a weight")
  expected = np.where(mask, residual, 0) * (count / np.where(mask, residual, 0).sum(1))[:, None]
  np.testing.assert_allclose(weights, expected, rtol=1e-5, err_msg="not in proportion to u")
  scaled = weigh(inputs(1000 * residual, mask), Arca())
  np.testing.assert_allclose(scaled, weights, rtol=1e-5, err_msg="the scale of u matters")
  zero = weigh(inputs(0 * residual, mask), Arca())
  np.testing.assert_array_equal(zero, mask, err_msg="adapters of 0 do not weigh all tokens alike")


def _over_the_batch(given, cfg):
  signal = token_signal(given, cfg.signal)
  total = jnp.sum(signal)
  weights = jnp.where(total < cfg.smallest, 1, jnp.sum(given.mask) * signal / (total + 1e-8))
  return masked.masked(weights, given.mask)


def _sum_of_one(given, cfg):
  return token_weights(given, cfg) / jnp.sum(given.mask, -1, keepdims=True)


def _nothing_without_a_signal(given, cfg):
  signal = token_signal(given, cfg.signal)
  count = jnp.sum(given.mask, -1, keepdims=True)
  return count * signal / (jnp.sum(signal, -1, keepdims=True) + 1e-8)


def _softmax(given, cfg):
  signal = jnp.where(given.mask, given.columns[COLUMN], -jnp.inf)
  rest = jnp.exp(signal - jnp.max(signal, -1, keepdims=True))
  return jnp.sum(given.mask, -1, keepdims=True) * rest / jnp.sum(rest, -1, keepdims=True)


def test_the_weights():
  check(token_weights)
  for wrong in (_over_the_batch, _sum_of_one, _nothing_without_a_signal, _softmax):
    with pytest.raises(AssertionError):
      check(wrong)


@pytest.mark.parametrize("weights, gini, effective", [
    ([1, 1, 1, 1], 0, 1), ([0, 7, 0, 0], 3 / 4, 1 / 4), ([1, 3], 1 / 4, 16 / 20), ([5], 0, 1),
    ([], 0, 0)])
def test_closed_forms_of_the_diagnostics(weights, gini, effective):
  mask = np.arange(6) < len(weights)
  mask = mask[None, ::-1]  # what is masked comes first, and is NaN
  row = np.full((1, 6), np.nan, np.float32)
  row[mask] = weights
  for measure, expected in ((token_credit.row_gini, gini), (token_credit.row_share, effective)):
    np.testing.assert_allclose(measure(jnp.asarray(row), jnp.asarray(mask))[0], expected,
                               atol=1e-6)


def test_gini_is_that_of_all_pairs():
  weights = np.random.default_rng(1).exponential(size=(3, 7)).astype(np.float32)
  pairs = np.abs(weights[:, :, None] - weights[:, None]).sum((1, 2))
  got = token_credit.row_gini(jnp.asarray(weights), jnp.ones(weights.shape, bool))
  np.testing.assert_allclose(got, pairs / (2 * 7 * weights.sum(1)), rtol=1e-5)


def test_the_metrics_leave_out_rows_that_are_dropped_or_empty():
  given = inputs([[1, 3, 0], [1, 1, 1]], [[True, True, False], [True, True, True]])
  metrics = advantages.metrics(given.replace(keep=jnp.asarray([True, False])),
                               AdvantageConfig("arca"))
  assert {name: float(one.total / one.count) for name, one in metrics.items()} == pytest.approx(
      {"credit/gini": 1 / 4, "credit/effective_tokens": 16 / 20})
  empty = given.replace(mask=jnp.zeros((2, 3), bool))
  assert all(float(one.count) == 0 for one in advantages.metrics(
      empty, AdvantageConfig("arca")).values())
  assert advantages.metrics(given, AdvantageConfig("grpo")) == {}


def test_it_is_grpo_times_the_weights():
  given = cases.on_device(cases.make(keep=np.ones(len(cases.GROUPS), bool)))
  grpo = advantages.get_advantage("grpo")(given, AdvantageConfig("grpo"))
  run = advantages.get_advantage("arca")
  np.testing.assert_allclose(run(given, AdvantageConfig("arca")),
                             grpo * token_weights(given, Arca()), rtol=1e-6)
  without = given.replace(columns={COLUMN: jnp.where(given.mask, 0, jnp.nan)})
  for smallest in (1e-6, 0.0):
    np.testing.assert_array_equal(run(without, AdvantageConfig("arca", smallest=smallest)), grpo)


def test_a_dropped_row_is_never_read():
  keep = np.arange(len(cases.GROUPS)) != 1
  given = cases.on_device(cases.make(keep=keep))
  broken = given.replace(columns={COLUMN: jnp.where(keep[:, None], given.columns[COLUMN], jnp.nan)})
  expected, without = (advantages.get_advantage("arca")(one, AdvantageConfig("arca"))
                       for one in (given, broken))
  np.testing.assert_array_equal(without, expected)
  assert not np.asarray(without[1]).any() and np.asarray(without).any()


def test_the_other_signals():
  log_probs = jnp.asarray([[-1.0, -3, -2, jnp.nan], [-1, -1, -1, -1]])
  mask = jnp.asarray([[True, True, True, False], [True, False, True, True]])
  given = inputs(np.ones((2, 4)), mask, anchor_log_probs=log_probs, ref_log_probs=log_probs + 0.5,
                 entropy=jnp.asarray([[1.0, 0.25, 0.5, jnp.nan], [1, 9, 0.25, 0]]))
  np.testing.assert_allclose(token_signal(given, "surprisal"), [[1, 3, 2, 0], [1, 0, 1, 1]])
  np.testing.assert_allclose(token_signal(given, "reference_gap"),
                             [[0.5, 0.5, 0.5, 0], [0.5, 0, 0.5, 0.5]])
  # The masked entropy of 9 is skipped, and a rise counts as no drop.
  np.testing.assert_allclose(token_signal(given, "entropy_drop"),
                             [[0, 0.75, 0, 0], [0, 0, 0.75, 0.25]])


def test_a_signal_that_is_not_given_is_named():
  lacking = inputs(np.ones((2, 3))).replace(columns=None)
  with pytest.raises(ValueError, match="signal = 'adapter_residual' reads adapter_residual"):
    advantages.get_advantage("arca")(lacking, AdvantageConfig("arca"))


@pytest.mark.parametrize("signal", ["adapter_residual", "surprisal", "entropy_drop",
                                    "reference_gap"])
def test_what_holds_for_every_advantage(signal, monkeypatch):
  monkeypatch.setitem(test_advantages.EVERY, "arca", AdvantageConfig("arca", signal=signal))
  test_advantages.test_every_advantage("arca")
  test_advantages.test_constants_without_gradient("arca")
