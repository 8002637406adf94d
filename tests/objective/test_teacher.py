"""Distillation from a teacher: the advantage against the loop, the loss term by its gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import advantages_2026 as reference

from jaxrl_llm.config import AdvantageConfig
from jaxrl_llm.objective import advantages, divergences
from jaxrl_llm.types import AdvantageInputs

REWARDS = (1.0, 0.0, 0.25)


def arrays():
  """(teacher, anchor, mask), [3, 5]; the last completion is a token shorter, padding is NaN."""
  rng, mask = np.random.default_rng(0), np.ones((3, 5), bool)
  mask[2, 4] = False
  teacher, anchor = (np.where(mask, rng.uniform(-4, 0, mask.shape), np.nan) for _ in range(2))
  return teacher, anchor, mask


def reverse_kl(**numbers):
  teacher, anchor, mask = arrays()
  inputs = AdvantageInputs(
      jnp.asarray(REWARDS), jnp.asarray(mask), jnp.zeros(mask.shape, jnp.int32),
      jnp.zeros(3, jnp.int32), anchor_log_probs=jnp.asarray(anchor),
      columns={"teacher_log_probs": jnp.asarray(teacher)})
  return np.asarray(advantages.get_advantage("reverse_kl")(
      inputs, AdvantageConfig("reverse_kl", **numbers)))


def largest_difference(loop, **numbers) -> float:
  teacher, anchor, mask = arrays()
  of_rows = [[x[i][mask[i]].tolist() for i in range(3)] for x in (teacher, anchor)]
  expected = loop(*of_rows, list(REWARDS), **numbers)
  advantage = reverse_kl(**numbers)
  assert (advantage[~mask] == 0).all()
  return max(np.max(np.abs(advantage[i][mask[i]] - row)) for i, row in enumerate(expected))


@pytest.mark.parametrize("numbers", [{}, {"coef": 0.5, "reward": 2.0}, {"bound": 1.0}])
def test_the_advantage_equals_the_loop(numbers):
  assert largest_difference(reference.reverse_kl, **numbers) < 1e-5

  def forward(teacher, anchor, rewards, **options):
    """The other direction."""
    return reference.reverse_kl(anchor, teacher, rewards, **options)

  assert largest_difference(forward, **numbers) > 0.5


def policy_gradient(estimate):
  """Gradient at logits of sum_a sg(pi(a)) estimate(log pi(a), log q(a)), over all tokens."""
  logits, teacher = jnp.asarray([0.3, -1.0, 0.8]), jax.nn.log_softmax(jnp.asarray([1.0, 0.0, -1.0]))

  def loss(x):
    log_probs = jax.nn.log_softmax(x)
    weights = jax.lax.stop_gradient(jnp.exp(log_probs))
    return jnp.sum(weights * estimate(log_probs[None], teacher[None], jnp.ones((1, 3), bool))[0])

  def reverse(x):
    log_probs = jax.nn.log_softmax(x)
    return jnp.sum(jnp.exp(log_probs) * (log_probs - teacher))

  return np.asarray(jax.grad(loss)(logits)), np.asarray(jax.grad(reverse)(logits))


def test_the_term_s_default_has_the_gradient_of_the_reverse_divergence():
  gradient, expected = policy_gradient(divergences.get_divergence("k1+"))
  np.testing.assert_allclose(gradient, expected, atol=1e-6)
  gradient, expected = policy_gradient(divergences.get_divergence("k3"))
  assert np.abs(gradient - expected).max() > 0.05
