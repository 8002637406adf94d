"""KL estimators: value and expected gradient, by enumeration of a vocabulary in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxrl_llm.config import ConfigError, KLConfig
from jaxrl_llm.objective import divergences

NAMES = ("k1", "k2", "k3", "k1+", "k3+")


@pytest.fixture(scope="module")
def problem():
  """(logits of the policy, log-probs of the reference, of the behavior policy), 5 tokens each."""
  with jax.enable_x64(True):
    rng = np.random.default_rng(0)
    ref, behavior = (jax.nn.log_softmax(jnp.asarray(rng.standard_normal(5))) for _ in range(2))
    yield jnp.asarray(rng.standard_normal(5)), ref, behavior


def per_token(name, log_probs, ref):
  return divergences.get_divergence(name)(log_probs[None], ref[None],
                                          jnp.ones((1, log_probs.size), bool))[0]


def forward(z, ref):
  log_p = jax.nn.log_softmax(z)
  return jnp.sum(jnp.exp(log_p) * (log_p - ref))


def backward(z, ref):
  return jnp.sum(jnp.exp(ref) * (ref - jax.nn.log_softmax(z)))


@pytest.mark.parametrize("name, target", [("k1", lambda z, ref: 0.0 * jnp.sum(z)), ("k2", forward),
                                          ("k3", backward), ("k1+", forward), ("k3+", forward)])
def test_expected_gradient_in_the_loss(name, target, problem):
  """Tokens drawn from the current policy, their probabilities constants as in a loss on samples."""
  z, ref, _ = problem
  probs = lax.stop_gradient(jax.nn.softmax(z))
  got = jax.grad(lambda z: jnp.sum(probs * per_token(name, jax.nn.log_softmax(z), ref)))(z)
  np.testing.assert_allclose(got, jax.grad(target)(z, ref), rtol=1e-10, atol=1e-12)
  other = backward if target is forward else forward
  assert np.abs(got - jax.grad(other)(z, ref)).max() > 1e-2, "the other direction would pass too"


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_with_the_ratio_it_is_right_off_policy(name, problem):
  """Tokens of the behavior policy: ratio times divergence is KL(pi || ref), and so its gradient."""
  z, ref, behavior = problem

  def loss(z):
    log_p = jax.nn.log_softmax(z)
    return jnp.sum(jnp.exp(behavior) * jnp.exp(log_p - behavior) * per_token(name, log_p, ref))

  np.testing.assert_allclose(loss(z), forward(z, ref), rtol=1e-12)
  np.testing.assert_allclose(jax.grad(loss)(z), jax.grad(forward)(z, ref), rtol=1e-10, atol=1e-12)
  without = lambda z: jnp.sum(jnp.exp(behavior) * per_token(name, jax.nn.log_softmax(z), ref))
  assert abs(without(z) - forward(z, ref)) > 1e-2


def test_k1_in_the_reward_has_the_gradient_through_the_policy(problem):
  z, ref, _ = problem
  log_p = jax.nn.log_softmax(z)
  weight = lax.stop_gradient(jnp.exp(log_p) * per_token("k1", log_p, ref))
  got = jax.grad(lambda z: jnp.sum(weight * jax.nn.log_softmax(z)))(z)
  np.testing.assert_allclose(got, jax.grad(forward)(z, ref), rtol=1e-10, atol=1e-12)


def test_values(problem):
  z, ref, _ = problem
  log_p = jax.nn.log_softmax(z)
  mean = {name: float(jnp.sum(jnp.exp(log_p) * per_token(name, log_p, ref))) for name in NAMES}
  for name in ("k1", "k3", "k1+", "k3+"):
    np.testing.assert_allclose(mean[name], forward(z, ref), rtol=1e-12)
  assert abs(mean["k2"] - forward(z, ref)) > 1e-2
  assert np.all(per_token("k3", log_p, ref) >= 0)
  for name in ("k1", "k3"):
    np.testing.assert_array_equal(per_token(name + "+", log_p, ref), per_token(name, log_p, ref))


@pytest.mark.parametrize("name", NAMES)
def test_finite_and_masked(name):
  log_probs = jnp.asarray([[-90.0, -1.0, jnp.nan, -1e-6]], jnp.float32)
  ref = jnp.asarray([[-1.0, -90.0, -1.0, jnp.inf]], jnp.float32)
  mask = jnp.asarray([[True, True, False, False]])
  value, gradient = jax.value_and_grad(
      lambda x: jnp.sum(divergences.get_divergence(name)(x, ref, mask)))(log_probs)
  assert np.isfinite(value) and np.all(np.isfinite(gradient))
  np.testing.assert_array_equal(gradient[~mask], 0.0)
  np.testing.assert_array_equal(divergences.get_divergence(name)(log_probs, ref, mask)[~mask], 0.0)
  assert divergences.get_divergence(name)(log_probs.astype(jnp.bfloat16), ref,
                                          mask).dtype == jnp.float32


def test_names():
  assert set(NAMES) == set(KLConfig.__dataclass_fields__["name"].metadata["choices"]) == set(
      divergences._TABLE)
  with pytest.raises(ConfigError, match="allowed are k1, k2, k3, k1\\+, k3\\+"):
    divergences.get_divergence("k4")
