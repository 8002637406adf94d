"""experiments/papers/budgets: what the policy's gradient is, and what a reward is compared with."""

from pathlib import Path

import experiment_files
import jax
import jax.numpy as jnp
import numpy as np
import pytest

FOLDER = Path(__file__).parents[4] / "experiments" / "papers" / "budgets"


def loaded():
  return experiment_files.load(FOLDER / "run.py")


# --- the policy


def gradient_of(surrogate, policy, actions, rewards, target):
  return jax.grad(surrogate)(policy, actions, rewards, target)


def unbiased(surrogate) -> bool:
  """Whether its mean over many actions is minus the gradient of the expected reward.

  The reward is c . a for a linear c, and a^2 of one layer: the exact expectations are c . mean and
  mean^2 + spread^2.
  """
  run = loaded()
  policy = run.start_policy() | {"mean": jnp.linspace(-1, 1, run.LAYERS),
                                 "slope": jnp.linspace(0.5, -0.5, run.LAYERS)}
  c, target = jnp.arange(1.0, run.LAYERS + 1), 0.15

  def expected(policy):
    mean = run.mean_of(policy, target)
    return c @ mean + mean[0]**2 + jnp.exp(2 * policy["log_spread"][0])

  noise = np.random.default_rng(0).normal(size=(400_000, run.LAYERS))
  noise = np.concatenate([noise, -noise])
  actions = jnp.asarray(run.mean_of(policy, target) + jnp.exp(policy["log_spread"]) * noise)
  rewards = actions @ c + actions[:, 0]**2
  found = gradient_of(surrogate, policy, actions, rewards - rewards.mean(), target)
  exact = jax.grad(expected)(policy)
  return all(np.allclose(-found[name], exact[name], atol=0.1) for name in exact)


@pytest.mark.slow
def test_the_surrogate_has_the_gradient_of_the_expected_reward():
  run = loaded()
  assert unbiased(run.surrogate)
  spread_fixed = lambda policy, *given: run.surrogate(
      policy | {"log_spread": jax.lax.stop_gradient(policy["log_spread"])}, *given)
  wrong_sign = lambda *given: -run.surrogate(*given)
  other_target = lambda policy, actions, advantages, target: run.surrogate(
      policy, actions, advantages, run.TARGET)
  for wrong in (spread_fixed, wrong_sign, other_target):
    assert not unbiased(wrong)


def test_a_reward_is_compared_with_the_others():
  rewards = np.array([1.0, 2.0, 6.0])
  others = np.array([1 - 4, 2 - 3.5, 6 - 1.5])
  np.testing.assert_allclose(loaded().leave_one_out(rewards), others / rewards.std())
  np.testing.assert_array_equal(loaded().leave_one_out(np.full(4, 0.3)), np.zeros(4))


def known(run):
  """A case whose loss is known: a channel of layer l costs the more, the larger l."""

  class Known(run.Pruned):
    def losses(self, kept, rows):
      missing = run.CHANNELS - np.stack(kept)
      return 1e-3 * (missing**2) @ 2.0**np.arange(run.LAYERS)

  return Known({}, np.zeros((run.LAYERS, run.CHANNELS)), [])
