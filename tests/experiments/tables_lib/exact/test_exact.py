"""What each weight is unbiased for, to 1e-10 in float64; each test would notice a wrong weight."""

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.tables_lib.exact import exact, exact_gradient, studies
from experiments.tables_lib.exact.moments import score_sum, single_sequence
from jaxrl_llm.config import AggregationConfig, EstimatorConfig
from jaxrl_llm.objective.estimators import common, register
from jaxrl_llm.ops import prefix
from jaxrl_llm.types import EstimatorOutput

DRIFTS = (0.0, 0.1, 0.6)
TOLERANCE = 1e-10


@pytest.fixture(scope="module")
def case():
  """Drifts x 8 instances; lengths vary, because one token ends the sequence."""
  return exact.random_case(exact.make_tree(3, 4, stop=True), DRIFTS, 8, seed=7)


@pytest.fixture(scope="module")
def targets(case):
  return studies.stated_targets(case)


@pytest.fixture(scope="module")
def mean_gradient(case):
  """f(estimator config, advantages=None, aggregation) -> E g; compiled once per pair of configs."""
  functions = {}

  def mean(estimator, advantages=None, aggregation=AggregationConfig("sequence_sum")):
    key = estimator, aggregation
    if key not in functions:
      functions[key] = exact_gradient.row_function(*key)
    return single_sequence(case, functions[key], advantages).mean

  return mean


def distance(mean, target):
  """||mean - target|| / ||target||: [drifts, instances]."""
  return np.linalg.norm(mean - target, axis=(-2, -1)) / np.linalg.norm(target, axis=(-2, -1))


def test_no_clamp_acts(case):
  pi, mu = (exact.token_log_probs(case.tree, x)
            for x in (case.target_logits, case.behavior_logits))
  assert np.abs(np.cumsum(pi - mu, -1)).max() < common.LOG_WEIGHT_BOUND


def test_policy_gradient_is_the_sum_of_scores(case, targets):
  probs = exact.sequence_probs(case.tree, case.target_logits)
  np.testing.assert_allclose(probs.sum(-1), 1, atol=TOLERANCE)
  coefficients = np.repeat((probs * case.rewards)[..., None], 4, -1)
  by_hand = score_sum(case.tree, case.target_logits, coefficients)
  assert distance(by_hand, targets["grad J"]).max() < TOLERANCE
  wrong = score_sum(case.tree, case.behavior_logits, coefficients)
  assert distance(wrong, targets["grad J"])[-1].min() > 1e-3


@pytest.mark.parametrize("aggregation, divisor", [(AggregationConfig("sequence_sum"), 1),
                                                  (AggregationConfig("fixed", fixed_length=4), 4)])
def test_full_sequence_is_unbiased_with_sampled_rewards(mean_gradient, targets, aggregation,
                                                        divisor):
  mean = divisor * mean_gradient(studies.WEIGHTS["full sequence"], aggregation=aggregation)
  assert distance(mean, targets["grad J"]).max() < TOLERANCE


def test_per_sequence_means_and_caps_are_biased(mean_gradient, targets):
  mean = mean_gradient(studies.WEIGHTS["full sequence"], aggregation=AggregationConfig("sequence"))
  assert distance(mean, targets["grad J"]).min() > 1e-3
  capped = mean_gradient(EstimatorConfig("seq_is", cap=1.0))
  assert distance(capped, targets["grad J"])[-1].min() > 1e-3


@pytest.mark.parametrize(
    "weight", ["none", "token", "gspo s", "prefix geometric mean", "minpro", "minpro, capped"])
def test_other_weights_are_not_unbiased(mean_gradient, targets, weight):
  assert distance(mean_gradient(studies.WEIGHTS[weight]), targets["grad J"])[1:].min() > 1e-3


def test_cumulative_with_target_values_is_the_policy_gradient(case, mean_gradient, targets):
  q_pi, q_mu = (exact.action_values(case.tree, logits, case.rewards)
                for logits in (case.target_logits, case.behavior_logits))
  mean = mean_gradient(studies.WEIGHTS["cumulative"], q_pi)
  assert distance(mean, targets["grad J"]).max() < TOLERANCE
  for weight, values in (("token", q_pi), ("cumulative", q_mu)):
    mean = mean_gradient(studies.WEIGHTS[weight], values)
    assert distance(mean, targets["grad J"])[-1].min() > 1e-3


@pytest.mark.parametrize("weight, target, wrong", [
    ("cumulative", "prefix pi, Q^mu", "grad J"), ("token", "prefix mu, Q^mu", "prefix pi, Q^mu")])
def test_with_sampled_rewards_continuations_are_the_behavior_s(mean_gradient, targets, weight,
                                                               target, wrong):
  """The token's ratio corrects only the action."""
  mean = mean_gradient(studies.WEIGHTS[weight])
  assert distance(mean, targets[target]).max() < TOLERANCE
  assert distance(mean, targets[wrong])[-1].min() > 1e-4


def test_leaky_cumulative_sum_misses_its_target(case, mean_gradient, targets):
  @register("leaky")
  def leaky(log_probs, anchor_log_probs, advantages, mask, cfg):
    log_ratio = common.masked_log_ratio(log_probs, anchor_log_probs, mask)
    ratio = jnp.exp(prefix.cumulative_log_ratio(log_ratio, mask))
    return EstimatorOutput(jnp.where(mask, -ratio * advantages, 0), {})

  mean = mean_gradient(EstimatorConfig("leaky"))
  # at drift 0 too: earlier tokens are credited again
  assert distance(mean, targets["prefix pi, Q^mu"]).min() > 1e-3


def weights_of(case, name):
  """The weight of each token: its coefficient at advantage 1."""
  pi, mu = (exact.token_log_probs(case.tree, x)
            for x in (case.target_logits, case.behavior_logits))
  mask = case.tree.mask & np.ones_like(pi, bool)
  return exact_gradient.row_function(studies.WEIGHTS[name])(pi, mu, np.ones_like(pi), mask)[0]


def test_cumulative_ratio_has_mean_one_and_growing_variance():
  tree = exact.make_tree(3, 4)
  case = exact.random_case(tree, (0.1, 0.6), 8, seed=7)
  probs = exact.sequence_probs(tree, case.behavior_logits)[..., None]

  def moments(name):
    weights = weights_of(case, name)
    return np.sum(probs * weights, -2), np.sum(probs * weights**2, -2)

  mean, square = moments("cumulative")
  np.testing.assert_allclose(mean, 1, atol=TOLERANCE)
  variance = square - 1
  assert (np.diff(variance, axis=-1) >= -TOLERANCE).all()
  full = moments("full sequence")[1] - 1
  np.testing.assert_allclose(variance[..., -1], full[..., -1], atol=TOLERANCE)
  assert (variance[..., :-1] < full[..., :-1]).all()
  wrong_mean, wrong_square = moments("minpro")
  assert np.abs(wrong_mean - 1).max() > 1e-3
  assert (np.diff(wrong_square - np.square(wrong_mean), axis=-1) < 0).any()


@pytest.mark.parametrize("name", studies.as_published())
def test_on_policy_every_estimator_expects_reinforce(case, mean_gradient, targets, name):
  """But for those that declare another coefficient there; `clip_cov` finds no covariance in a
  batch of one row.
  """
  gap = distance(mean_gradient(EstimatorConfig(name)), targets["grad J"])[0].max()
  assert gap < TOLERANCE if name != "delight" else gap > 0.1


def test_on_policy_check_rejects_a_wrong_weight(mean_gradient, targets):
  @register("double")
  def double(log_probs, anchor_log_probs, advantages, mask, cfg):
    return EstimatorOutput(jnp.where(mask, -2 * log_probs * advantages, 0), {})

  assert distance(mean_gradient(EstimatorConfig("double")), targets["grad J"])[0].min() > 0.5
