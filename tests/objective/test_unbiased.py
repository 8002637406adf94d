"""What each weight is unbiased for (objective/README.md): exact expectations over all completions,
in float64.

Two tokens, three steps, one table of logits per prefix; the expectation over the behavior policy is
a weighted sum over the eight completions, and the estimators see it as a batch whose rows are
weighted by their probability.
"""

import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.config import EstimatorConfig
from jaxrl_llm.objective import estimators
from jaxrl_llm.ops import prefix

STEPS = 3
ROWS = np.array(list(itertools.product((0, 1), repeat=STEPS)))
# State before step t of each row: 0; then 1, 2; then 3 .. 6.
STATES = np.array(
    [[2**t - 1 + int("0" + "".join(map(str, row[:t])), 2) for t in range(STEPS)] for row in ROWS])
CLIP = {"clip_low": None, "clip_high": None}
WINDOW = {"log_low": None, "log_high": None, "log_dual": None}
OPEN = {"ppo": CLIP, "gspo": CLIP, "ctpo": WINDOW, "ctpo_geomean": WINDOW, "seq_is": {},
        "minpro": {}, "reinforce": {}}


def log_probs(logits):
  return jax.nn.log_softmax(logits)[STATES, ROWS]


def action_values(logits, rewards):
  """Q of each row's token at each step, when the policy of `logits` continues."""
  rows = jnp.exp(log_probs(logits))
  values = []
  for t in range(STEPS):
    after = jnp.prod(rows[:, t + 1:], -1)
    same = (ROWS[:, None, :t + 1] == ROWS[None, :, :t + 1]).all(-1)
    values.append(same @ (after * rewards))
  return jnp.stack(values, -1)


@pytest.fixture(scope="module")
def world():
  with jax.enable_x64(True):
    rng = np.random.default_rng(0)
    behavior = jnp.asarray(rng.standard_normal((7, 2)))
    current = behavior + jnp.asarray(rng.standard_normal((7, 2)))
    rewards = jnp.asarray(rng.standard_normal(len(ROWS)))
    expected_reward = lambda z: jnp.exp(log_probs(z).sum(-1)) @ rewards
    yield types.SimpleNamespace(
        behavior=behavior, current=current, rewards=rewards,
        weights=jnp.exp(log_probs(behavior).sum(-1)), q_pi=action_values(current, rewards),
        q_mu=action_values(behavior, rewards), gradient=jax.grad(expected_reward)(current))


def expected(world, name, advantages):
  """Expectation of minus the loss's gradient with respect to the logits."""
  cfg = EstimatorConfig(name, **OPEN[name])
  advantages = jnp.broadcast_to(advantages if advantages.ndim == 2 else advantages[:, None],
                                ROWS.shape)

  def objective(logits):
    out = estimators.get_estimator(name)(log_probs(logits), log_probs(world.behavior), advantages,
                                         jnp.ones(ROWS.shape, bool), cfg)
    return -jnp.sum(world.weights[:, None] * out.per_token_loss)

  return jax.grad(objective)(world.current)


def target(world, prefix_policy, values):
  """sum_t of E[value * grad log pi], prefixes of one policy, tokens of the current one."""
  before = jnp.cumsum(log_probs(prefix_policy), -1) - log_probs(prefix_policy)
  # Each (prefix, token) stands in the rows that begin with it: divide by their number.
  share = jnp.exp(before + log_probs(world.current)) / 2.0 ** (STEPS - 1 - np.arange(STEPS))
  return jax.grad(lambda z: jnp.sum(share * values * log_probs(z)))(world.current)


def equal(a, b):
  np.testing.assert_allclose(a, b, rtol=0, atol=1e-13)


def differ(a, b, by=1e-2):
  assert np.linalg.norm(a - b) > by * np.linalg.norm(b)


def test_the_targets_are_what_they_are_called(world):
  equal(target(world, world.current, world.q_pi), world.gradient)
  differ(target(world, world.current, world.q_mu), world.gradient)
  differ(target(world, world.behavior, world.q_mu), world.gradient)


def test_the_full_ratio_has_the_policy_gradient_with_sampled_rewards(world):
  equal(expected(world, "seq_is", world.rewards), world.gradient)
  # a constant baseline changes nothing
  equal(expected(world, "seq_is", world.rewards - 0.7), world.gradient)


def test_the_cumulative_ratio_has_its_two_targets_and_not_the_policy_gradient(world):
  equal(expected(world, "ctpo", world.q_pi), world.gradient)
  sampled = expected(world, "ctpo", world.rewards)
  equal(sampled, target(world, world.current, world.q_mu))
  differ(sampled, world.gradient)


def test_the_token_ratio_corrects_the_token_alone(world):
  sampled = expected(world, "ppo", world.rewards)
  equal(sampled, target(world, world.behavior, world.q_mu))
  differ(sampled, world.gradient)
  differ(expected(world, "ppo", world.q_pi), world.gradient)


@pytest.mark.parametrize("name", ["gspo", "ctpo_geomean", "minpro", "reinforce"])
@pytest.mark.parametrize("advantage", ["rewards", "q_pi", "q_mu"])
def test_the_others_have_none_of_these(name, advantage, world):
  got = expected(world, name, getattr(world, advantage))
  differ(got, world.gradient)
  for policy in (world.current, world.behavior):
    differ(got, target(world, policy, world.q_mu))


def test_mean_and_variance_of_the_cumulative_ratio(world):
  log_ratio = log_probs(world.current) - log_probs(world.behavior)
  ratio = jnp.exp(prefix.cumulative_log_ratio(log_ratio, jnp.ones(ROWS.shape, bool)))
  equal(world.weights @ ratio, 1.0)
  variance = world.weights @ jnp.square(ratio) - 1
  assert np.all(np.diff(variance) > 0)
  equal(variance[-1], world.weights @ jnp.exp(2 * log_ratio.sum(-1)) - 1)
