"""Weightings by hand, and the identities of the balanced one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.config import AggregationConfig, ConfigError
from jaxrl_llm.objective.aggregation import loss_weights, regularizer_weights

# The weight of a token in a row of three tokens and in one of a single token.
MODES = {"token": (1 / 4, 1 / 4), "token_sum": (1, 1), "sequence": (1 / 6, 1 / 2),
         "sequence_sum": (1 / 2, 1 / 2), "fixed": (1 / 20, 1 / 20)}
BALANCED = AggregationConfig("balanced")


@pytest.mark.parametrize("name", MODES)
def test_weights_by_hand(name):
  mask = jnp.asarray([[1, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0]], bool)
  keep = jnp.asarray([True, True, True, False])
  cfg = AggregationConfig(name, fixed_length=10)
  weights = loss_weights(mask, None, None, cfg, keep)
  expected = np.asarray(mask) * np.array([*MODES[name], 0, 0])[:, None]
  np.testing.assert_allclose(weights, expected, rtol=1e-6)
  padded = loss_weights(jnp.pad(mask, ((0, 2), (0, 3))), None, None, cfg, jnp.pad(keep, (0, 2)))
  np.testing.assert_allclose(padded[:4, :4], weights, rtol=1e-6)
  np.testing.assert_array_equal(loss_weights(jnp.zeros_like(mask), None, None, cfg), 0.0)
  np.testing.assert_array_equal(regularizer_weights(mask, cfg, keep), weights)


def test_what_a_mode_lacks_is_an_error():
  mask = jnp.ones((2, 2), bool)
  with pytest.raises(ConfigError, match="fixed_length"):
    loss_weights(mask, None, None, AggregationConfig("fixed"))
  with pytest.raises(ValueError, match="needs advantages and group_id"):
    loss_weights(mask, None, None, BALANCED)


# Group 7: sides + - + 0 -, a row without a token, one that is not kept. Group 2: positive rows
# only.
LENGTHS = np.array([3, 1, 1, 2, 2, 0, 4, 1, 3])
SIGNS = np.array([1, -1, 1, 0, -1, 1, 1, 1, 1.0])
GROUP = np.array([7, 7, 7, 7, 7, 7, 7, 2, 2])
KEPT = np.array([1, 1, 1, 1, 1, 1, 0, 1, 1], bool)
#                 rows of the side / rows of the group / tokens of the side / groups
PER_ROW = np.array(
    [2 / 5 / 4 / 2, 2 / 5 / 3 / 2, 2 / 5 / 4 / 2, 0, 2 / 5 / 3 / 2, 0, 0, 1 / 4 / 2, 1 / 4 / 2])


def by_hand(weights_of):
  mask = np.arange(5) < LENGTHS[:, None]
  advantages = np.where(mask, SIGNS[:, None], np.nan)
  advantages[0, :3] = [5, -1, -1]  # the side is that of the mean, for all tokens of the row
  advantages[6] = np.nan
  order = np.array([4, 7, 0, 5, 8, 2, 6, 1, 3])
  arrays = [jnp.asarray(x[order]) for x in (mask, advantages, GROUP, KEPT)]
  got = weights_of(*arrays[:3], BALANCED, arrays[3])
  np.testing.assert_allclose(got, (mask * PER_ROW[:, None])[order], rtol=1e-6)


def over_the_batch(mask, advantages, group_id, cfg, keep):
  """Wrong: takes the batch for one group."""
  return loss_weights(mask, advantages, jnp.zeros_like(group_id), cfg, keep)


def by_token(mask, advantages, group_id, cfg, keep):
  """Wrong: each token is on the side of its own advantage."""
  signs = jnp.where(mask, jnp.sign(advantages), 0)
  sides = [loss_weights(mask & (signs == s), signs, group_id, cfg, keep) for s in (1, -1)]
  return sides[0] + sides[1]


def test_balanced_by_hand():
  by_hand(loss_weights)
  for wrong in (over_the_batch, by_token):
    with pytest.raises(AssertionError):
      by_hand(wrong)


@pytest.mark.slow
def test_balanced_edges():
  mask = jnp.asarray([[True, True], [True, False], [True, False]])
  group = jnp.asarray([1, 1, 1])
  weights = loss_weights(mask, jnp.zeros((3, 2)), group, BALANCED)
  np.testing.assert_array_equal(weights, 0.0)
  np.testing.assert_array_equal(
      loss_weights(jnp.zeros_like(mask), jnp.ones((3, 2)), group, BALANCED), 0.0)
  np.testing.assert_allclose(regularizer_weights(mask, BALANCED), np.asarray(mask) / 4)
  wide = loss_weights(jnp.pad(mask, ((0, 1), (0, 2))), jnp.ones((4, 4)), jnp.asarray([1, 1, 1, 9]),
                      BALANCED)
  # an empty group is none
  np.testing.assert_allclose(wide[:3, :2], np.asarray(mask) / 4, rtol=1e-6)


def binary(lengths, correct):
  """(mask, f64 GRPO advantages with the population's std) of one group."""
  correct = np.asarray(correct, float)
  mask = np.arange(8) < np.asarray(lengths)[:, None]
  return mask, (correct - correct.mean()) / correct.std()


def of_mode(name, lengths, correct):
  mask, advantages = binary(lengths, correct)
  with jax.enable_x64(True):
    group = jnp.zeros(len(lengths), jnp.int32)
    values = jnp.asarray(np.broadcast_to(advantages[:, None], mask.shape))
    weights = np.asarray(loss_weights(jnp.asarray(mask), values, group, AggregationConfig(name)),
                         np.float64)
  return weights, weights.sum(1) * advantages


def masses(name, lengths, correct):
  mass = of_mode(name, lengths, correct)[1]
  return mass[mass > 0].sum(), -mass[mass < 0].sum()


def test_both_sides_have_the_same_mass():
  lengths, correct = [8, 5, 1, 2, 6], [1, 1, 0, 0, 0]
  k, size = 2, 5
  positive, negative = masses("balanced", lengths, correct)
  np.testing.assert_allclose([positive, negative], np.sqrt(k * (size - k)) / size, rtol=1e-12)
  np.testing.assert_allclose(*masses("sequence", lengths, correct), rtol=1e-6)
  positive, negative = masses("token", lengths, correct)  # lengths couple to signs
  np.testing.assert_allclose(positive / negative, np.mean([8, 5]) / np.mean([1, 2, 6]), rtol=1e-6)


@pytest.mark.parametrize(("lengths", "other", "apart"), [
    # Mean lengths of the sides agree; lengths inside each side agree.
    ([6, 2, 1, 4, 7], "token", [6, 3, 1, 4, 7]), ([6, 6, 2, 2, 2], "sequence", [6, 5, 2, 2, 2])])
def test_where_balanced_equals_another_mode(lengths, other, apart):
  def difference(lengths):
    balanced, others = (of_mode(name, lengths, [1, 1, 0, 0, 0])[0] for name in ("balanced", other))
    return np.abs(balanced - others).max()

  assert difference(lengths) < 1e-7
  assert difference(apart) > 1e-3


def test_splitting_a_group_changes_balanced_weights():
  mask, advantages = binary([8, 5, 1, 2], [1, 0, 1, 0])
  values = jnp.asarray(np.broadcast_to(advantages[:, None], mask.shape), jnp.float32)
  weigh = lambda rows: loss_weights(jnp.asarray(mask[rows]), values[rows],
                                    jnp.zeros(4, jnp.int32)[rows], BALANCED)
  full, *halves = map(weigh, (slice(0, 4), slice(0, 2), slice(2, 4)))
  assert np.abs(np.concatenate(halves) / 2 - full).max() > 1e-2
