"""Estimators that compare the rows of a group: worked numbers, fixed points, and wrong forms."""

import dataclasses

import contracts
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxrl_llm.config import AdvantageConfig, AggregationConfig, EstimatorConfig
from jaxrl_llm.objective import advantages, estimators
from jaxrl_llm.objective.aggregation import loss_weights
from jaxrl_llm.objective.estimators import common
from jaxrl_llm.ops import masked
from jaxrl_llm.types import AdvantageInputs

# Two groups: rows of two, one and two tokens, and rows of one token. S: sum of a row's log-probs.
MASK = np.array([[1, 1], [1, 0], [1, 1], [1, 0], [1, 0]], bool)
ANCHOR = np.array([[-.5, -.5], [-1., 0], [-.4, -.6], [-2., 0], [-2., 0]])
MOVE = np.array([[.1, .1], [-.2, 0], [0, 0], [.3, 0], [-.1, 0]])  # log pi - log anchor
GROUP = np.array([7, 7, 7, -3, -3])
REWARD = np.array([1., 0, 0, 1, 0])
# S_anchor of the first group is -1 for all rows, so that q is softmax(R / eta) =
# (e, 1, 1) / 4.71828, and p is that of the moves .2, -.2, 0: (1.22140, .81873, 1) / 3.04013. In the
# second group q is (e, 1) / 3.71828, and p that of .3, -.1: (1.34986, .90484) / 2.25470.
E = np.e
TPO = np.r_[np.array([E, 1, 1]) / (E + 2) - np.array([1.221403, .818731, 1]) / 3.040134,
            np.array([E, 1]) / (E + 1) - np.array([1.349859, .904837]) / 2.254696]
# beta .1: s = .02, -.02, 0 (mean 0), R - mean = 2/3, -1/3, -1/3; then s = .03, -.01 and +-.5.
GVPO = np.r_[.05 * (np.array([2, -1, -1]) / 3 - [.02, -.02, 0]),
             .1 * (np.array([.5, -.5]) - [.02, -.02])]
# beta .1, beta_value 1: V = log((e + 2) / 3) = .45283 and log((e + 1) / 2) = .62011.
OAPL = .2 * np.r_[np.array([1, 0, 0]) - .452832 - [.02, -.02, 0],
                  np.array([1, 0]) - .620115 - [.03, -.01]]
# tau .5: s = .1, -.2, 0 and .3, -.1 are means. Positive side e^-.2 / (1 + e^-.2) / tau; negative
# e^-.4 and 1 over 1 + their sum.
REAL = 2 * np.r_[.818731 / 1.818731, -.670320 / 2.670320, -1 / 2.670320,
                 .548812 / 1.548812, -.818731 / 1.818731]
# beta .1: quantiles 1, 2/3, 2/3 and 1, 1/2. Targets log u + .1 log 11 = log u + .239790, so that
# the target of 1/2 is the published -.4534.
QRPO = .2 * np.r_[np.array([.239790, -.165676, -.165676]) - [.02, -.02, 0],
                  np.array([.239790, -.453358]) - [.03, -.01]]
WORKED = {"tpo": ({}, TPO), "gvpo": ({}, GVPO), "real": ({}, REAL), "qrpo": ({}, QRPO),
          "oapl": ({"beta": 0.1, "beta_value": 1.0}, OAPL)}


def coefficients(name, numbers=None, *, move=MOVE, reward=REWARD, group=GROUP, mask=MASK,
                 anchor=ANCHOR, estimator=None):
  """The coefficient of each row, [B], in float64; the reference is the anchor."""
  with jax.enable_x64(True):
    cfg = EstimatorConfig(name, **numbers or {})
    call = estimator or estimators.get_estimator(name)
    columns = {"group_id": jnp.asarray(group)}
    if "ref_log_probs" in estimators.required(cfg):
      columns["ref_log_probs"] = jnp.asarray(anchor)
    spread = jnp.asarray(np.broadcast_to(reward[:, None], mask.shape))

    def loss(log_probs):
      out = call(log_probs, jnp.asarray(anchor), spread, jnp.asarray(mask), cfg, **columns)
      return jnp.sum(out.per_token_loss)

    gradient = -np.asarray(jax.grad(loss)(jnp.asarray(anchor + move)))
  assert np.all(gradient[~mask] == 0)
  np.testing.assert_allclose(gradient[mask], (gradient[:, :1] * mask)[mask])
  return gradient[:, 0]


@pytest.mark.parametrize("name", WORKED)
def test_coefficients_worked_out_by_hand(name):
  numbers, expected = WORKED[name]
  np.testing.assert_allclose(coefficients(name, numbers), expected, atol=1e-5)
  one_group = coefficients(name, numbers, group=np.zeros(5, int))  # takes the batch for the group
  assert np.abs(one_group - expected).max() > 1e-3


def test_published_targets_of_qrpo():
  """u = 1/2, beta .1: log -.4534, identity -.2697, and normal 0 - 1 / (2 beta)."""
  still = {"move": 0 * MOVE}
  for transform, target in (("log", -.4534), ("identity", -.2697), ("normal", -5.0)):
    values = coefficients("qrpo", {"transform": transform}, **still)
    assert values[4] / 0.2 == pytest.approx(target, abs=1e-4)


# --- what each has to do, and forms that do not


def given(coefficient):
  """An estimator with the row coefficient `coefficient(S, S_anchor, R, group_id)`."""

  def call(log_probs, anchor, advantages, mask, cfg, group_id, **further):
    rows = (lax.stop_gradient(jnp.sum(masked.masked(x, mask), -1)) for x in (log_probs, anchor))
    c = coefficient(*rows, masked.row_mean(advantages, mask)[:, 0], group_id)[:, None]
    return common.output(-c * masked.masked(log_probs, mask), {})

  return call


def softmax(values, group_id):
  powers = jnp.exp(values)
  return powers / masked.group_sum(powers, group_id)


def without_the_anchor(score, anchor, reward, group_id):
  return softmax(reward, group_id) - softmax(score, group_id)


def without_matching(score, anchor, reward, group_id):
  return softmax(anchor + reward, group_id) - softmax(anchor, group_id)


def over_the_batch(score, anchor, reward, group_id):
  return softmax(anchor + reward, 0 * group_id) - softmax(score, 0 * group_id)


def rests_at_the_target(estimator=None) -> bool:
  """A policy whose row log-probs have moved by R / eta, up to a constant of the group, is left."""
  move = np.where(MASK, ((REWARD / 0.5 + [.3, .3, .3, -1, -1]) / MASK.sum(1))[:, None], 0)
  anchor = ANCHOR + np.array([0, -.7, .4, .2, 0])[:, None] * MASK
  values = coefficients("tpo", {"eta": 0.5}, move=move, anchor=anchor, estimator=estimator)
  return bool(np.abs(values).max() < 1e-12)


def halved_temperature(coefficient):
  return given(lambda score, anchor, reward, group: coefficient(score, anchor, 2 * reward, group))


def test_tpo_rests_at_its_target():
  assert rests_at_the_target()
  for wrong in (without_the_anchor, without_matching, over_the_batch):
    assert not rests_at_the_target(halved_temperature(wrong)), wrong.__name__


def test_tpo_on_the_policy_of_the_anchor():
  """It begins as q - p of the rewards alone, and in a group of equal rewards with nothing."""
  values = coefficients("tpo", move=0 * MOVE, reward=np.array([1., 0, 0, 1, 1]))
  np.testing.assert_allclose(values[:3], np.array([E, 1, 1]) / (E + 2) - 1 / 3, rtol=1e-6)
  assert np.abs(values[3:]).max() < 1e-15
  moved = coefficients("tpo", reward=np.ones(5))
  assert moved[0] < 0 < moved[1] and np.sign(moved[3]) == -1  # back to the anchor


def test_the_length_of_a_row_counts_in_the_sum_only():
  """Twice the tokens of the same log-probs: the mean is as before, and p with it."""
  twice = {"anchor": np.repeat(ANCHOR, 2, 1), "move": np.repeat(MOVE, 2, 1),
           "mask": np.repeat(MASK, 2, 1)}
  mean, total = ({"normalize": how} for how in ("mean", "sum"))
  np.testing.assert_allclose(coefficients("tpo", mean, **twice), coefficients("tpo", mean))
  assert np.abs(coefficients("tpo", total, **twice) - coefficients("tpo", total)).max() > 1e-3


SHIFTS = np.array([3., 3, 3, -2, -2])


@pytest.mark.parametrize("name", ["tpo", "gvpo", "oapl", "qrpo"])
def test_a_constant_of_the_group_in_the_rewards_changes_nothing(name):
  numbers = WORKED[name][0]
  np.testing.assert_allclose(coefficients(name, numbers, reward=REWARD + SHIFTS),
                             coefficients(name, numbers), atol=1e-9)
  plain = given(lambda score, anchor, reward, group: reward - (score - anchor))
  moved = coefficients(name, numbers, reward=REWARD + SHIFTS, estimator=plain)
  assert np.abs(moved - coefficients(name, numbers, estimator=plain)).max() > 1


def test_gvpo_is_at_rest_where_log_ratios_differ_as_rewards_do():
  move = np.where(MASK, ((REWARD + SHIFTS) / 0.1 / MASK.sum(1))[:, None], 0)
  assert np.abs(coefficients("gvpo", move=move / 4)).max() > 1e-3
  assert np.abs(coefficients("gvpo", {"beta": 0.4}, move=move / 4)).max() < 1e-9
  alone = coefficients("gvpo", group=np.arange(5))
  assert np.all(alone == 0)


def test_oapl_is_dro_of_the_sequence_with_a_soft_baseline():
  """Times 2 beta; dr_grpo's baseline, its limit for a large beta_value, is another one."""
  inputs = AdvantageInputs(jnp.asarray(REWARD), jnp.asarray(MASK), jnp.zeros(MASK.shape, int),
                           jnp.asarray(GROUP))
  with jax.enable_x64(True):
    opmd = advantages.get_advantage("opmd")(inputs, AdvantageConfig("opmd", tau=1.0))[:, 0]
    mean = advantages.get_advantage("dr_grpo")(inputs, AdvantageConfig("dr_grpo"))[:, 0]
  cfg = EstimatorConfig("dro", span="sequence", beta=0.1)

  def dro(*arrays, **further):
    return estimators.get_estimator("dro")(*arrays[:4], cfg)

  by_baseline = {name: coefficients("oapl", reward=np.asarray(reward, np.float64), estimator=dro)
                 for name, reward in (("opmd", opmd), ("mean", mean))}
  np.testing.assert_allclose(coefficients("oapl", WORKED["oapl"][0]), 0.2 * by_baseline["opmd"],
                             atol=1e-6)
  far = coefficients("oapl", {"beta": 0.1, "beta_value": 1e4})
  np.testing.assert_allclose(far, 0.2 * by_baseline["mean"], atol=1e-4)
  assert np.abs(by_baseline["mean"] - by_baseline["opmd"]).max() > 0.05


def test_the_coefficient_of_real_is_bounded():
  """By 1 / tau in sum over a side of a group, however far the rows are; the ratio's is not."""
  rng = np.random.default_rng(0)
  case = {"move": 8 * rng.standard_normal((12, 3)), "mask": np.ones((12, 3), bool),
          "anchor": -np.ones((12, 3)), "group": np.repeat([0, 1], 6),
          "reward": rng.choice([-1., 1.], 12)}
  values = coefficients("real", **case)
  for group in (0, 1):
    for sign in (-1, 1):
      side = (case["group"] == group) & (case["reward"] == sign)
      assert np.abs(values[side]).sum() < 2 and np.all(np.sign(values[side]) == sign)
  ratio = given(lambda score, anchor, reward, group: reward * jnp.exp(score - anchor))
  assert np.abs(coefficients("real", **case, estimator=ratio)).max() > 2


@pytest.mark.parametrize("name", WORKED)
def test_a_row_without_tokens_is_in_no_group(name):
  numbers = WORKED[name][0]
  wide = {"mask": np.vstack([MASK, [[False, False]]]), "reward": np.append(REWARD, 9.0),
          "move": np.vstack([MOVE, [[5., 5.]]]), "anchor": np.vstack([ANCHOR, [[-9., 0.]]]),
          "group": np.append(GROUP, 7)}
  values = coefficients(name, numbers, **wide)
  np.testing.assert_allclose(values[:5], coefficients(name, numbers), atol=1e-12)
  present = wide | {"mask": np.vstack([MASK, [[True, False]]])}
  assert np.abs(coefficients(name, numbers, **present)[:5] - values[:5]).max() > 1e-6


def in_each_micro_batch(name):
  def call(*arrays, weights=None, **columns):
    return estimators.get_estimator(name)(*arrays, **columns)

  call.prepare = estimators.get_estimator(name).prepare
  return call


@pytest.mark.parametrize("name", WORKED)
def test_groups_that_a_micro_batch_splits_are_whole(name):
  cfg = EstimatorConfig(name, **WORKED[name][0])
  contracts.CHECKS["micro_batches"](estimators.get_estimator(name), cfg)
  with pytest.raises(AssertionError, match="micro-batches"):
    contracts.CHECKS["micro_batches"](in_each_micro_batch(name), cfg)


def published(name, log_probs):
  """The loss of the paper: mean over groups (tpo, gvpo), as a function of log-probs, [B, L]."""
  score = jnp.sum(jnp.where(MASK, log_probs, 0), -1)
  anchor = jnp.sum(jnp.where(MASK, ANCHOR, 0), -1)
  total = 0.0
  for group in (7, -3):
    rows = np.flatnonzero(GROUP == group)
    s, a, r = score[rows], anchor[rows], REWARD[rows]
    if name == "tpo":
      total -= jnp.sum(jax.nn.softmax(a + r) * jax.nn.log_softmax(s)) / 2
    else:
      move = 0.1 * (s - a)
      residual = (move - jnp.mean(move)) - (r - r.mean())
      total += jnp.sum(residual**2) / 2 / (len(rows) - 1) / 2
  return total


@pytest.mark.parametrize("name", ["tpo", "gvpo"])
def test_the_gradient_is_that_of_the_published_loss(name):
  """With sequence_sum, up to groups / rows, which the learning rate takes; not with another one."""
  with jax.enable_x64(True):
    expected = jax.grad(lambda x: published(name, x))(jnp.asarray(ANCHOR + MOVE))
    weights = {how: np.asarray(loss_weights(jnp.asarray(MASK), jnp.asarray(ANCHOR), None,
                                            AggregationConfig(how)))
               for how in ("sequence_sum", "sequence")}
  values = coefficients(name)[:, None] * MASK
  np.testing.assert_allclose(-weights["sequence_sum"] * values * 5 / 2, expected, atol=1e-7)
  assert np.abs(-weights["sequence"] * values * 5 / 2 - expected).max() > 1e-3


def test_values_as_large_as_log_probs_can_be():
  for name, (numbers, _) in WORKED.items():
    for size in (1e4, -1e4):
      case = contracts.case(3)
      far = dataclasses.replace(case, log_probs=(case.log_probs - 1e4).astype(np.float32),
                                anchor=(case.anchor - 1e4 + min(size, 0)).astype(np.float32))
      value, gradient = contracts.weighted(estimators.get_estimator(name),
                                           EstimatorConfig(name, **numbers), far)
      assert np.isfinite(value) and np.all(np.isfinite(gradient))
