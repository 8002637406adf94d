"""Means, noise and log-density of soft tokens."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from experiments.papers.soft_tokens import mixtures as soft_tokens
from experiments.papers.soft_tokens.mixtures import gaussian_step_logp, mean_input, noise_scale

SIGMA, TEMPERATURE = 0.3, 0.5


def policy(rows=5, width=8, vocabulary=11):
  """(logits, embedding, noise) of a few steps."""
  a, b, c = jax.random.split(jax.random.key(0), 3)
  return (jax.random.normal(a, (rows, vocabulary)), jax.random.normal(b, (vocabulary, width)),
          jax.random.normal(c, (rows, width)))


def relative_error(log_density) -> float:
  """Distance of its gradient from (h - h0)^T d h0 / sigma^2, with inputs made as in a rollout."""
  logits, embedding, noise = policy()
  mean = functools.partial(mean_input, temperature=TEMPERATURE)

  def total(logits, embedding):
    inputs = mean(logits, embedding) + SIGMA * noise
    return jnp.sum(log_density(inputs, mean(logits, embedding), SIGMA))

  expected = [jnp.tensordot(SIGMA * noise, jacobian, 2) / SIGMA**2
              for jacobian in jax.jacrev(mean, (0, 1))(logits, embedding)]
  gradients = jax.grad(total, (0, 1))(logits, embedding)
  return max(float(jnp.linalg.norm(x - y) / jnp.linalg.norm(y))
             for x, y in zip(gradients, expected, strict=True))


def test_the_gradient_is_the_residual_times_the_jacobian():
  assert relative_error(gaussian_step_logp) < 1e-4
  for wrong in (
      lambda h, h0, s: -jnp.sum((h - h0)**2, -1) / (2 * s**2),  # the inputs are no constants
      lambda h, h0, s: -jnp.sum((lax.stop_gradient(h) - h0)**2, -1) / s**2,
      lambda h, h0, s: -jnp.sum((lax.stop_gradient(h) - h0)**2, -1) / (2 * s),
      lambda h, h0, s: -jnp.mean((lax.stop_gradient(h) - h0)**2, -1) / (2 * s**2)):
    assert relative_error(wrong) > 1e-2


def test_a_density_without_noise_is_zero_and_has_no_gradient():
  logits, embedding, _ = policy()
  mean = mean_input(logits, embedding, TEMPERATURE)
  value, gradient = jax.value_and_grad(lambda h0: jnp.sum(gaussian_step_logp(mean, h0, 0.0)))(mean)
  assert value == 0 and not np.any(gradient)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_the_mean_is_the_weighted_sum_of_rows(temperature):
  logits, embedding, _ = policy()
  expected = []
  for row in np.asarray(logits, np.float64):
    weights = np.exp(row / temperature)
    expected.append(sum(w * e for w, e in zip(weights / weights.sum(), np.asarray(embedding),
                                              strict=True)))
  mean = mean_input(logits, embedding, temperature)
  np.testing.assert_allclose(mean, expected, atol=1e-5)
  assert np.max(np.abs(mean - mean_input(logits, embedding, 2.0))) > 1e-2
  assert mean_input(logits.astype(jnp.bfloat16), embedding, temperature).dtype == jnp.float32
  fuzzy = mean_input(logits, embedding, soft_tokens.FUZZY)
  np.testing.assert_allclose(fuzzy, embedding[jnp.argmax(logits, -1)], atol=1e-6)


def test_noise_is_about_gamma_times_as_long_as_an_embedding():
  embedding = 0.02 * jax.random.normal(jax.random.key(1), (50, 64))
  lengths = np.linalg.norm(embedding, axis=-1)
  noise = jax.random.normal(jax.random.key(2), (1000, 64))
  sigma = noise_scale(embedding, 0.33)
  ratio = np.mean(np.linalg.norm(sigma * noise, axis=-1)) / np.mean(lengths)
  assert 0.32 < ratio < 0.34
  assert sigma == pytest.approx(0.33 * np.sqrt(np.mean(np.square(embedding))), rel=1e-5)
  by_row = noise_scale(embedding, 0.33, "row")
  assert by_row == pytest.approx(0.33 * np.sqrt(np.mean(lengths**2)), rel=1e-5)
  assert by_row / sigma == pytest.approx(8.0, rel=1e-5), "the other reading: 8 = sqrt(64)"
  assert not np.any(jax.grad(noise_scale)(embedding)), "noise is a constant"


@pytest.mark.parametrize("call, words", [
    (lambda: noise_scale(policy()[1], 0.33, "column"), "'column'.*entry, row"),
    (lambda: soft_tokens.soft_thought(0.1, 0.0), "temperature=0.0.*hard_thought"),
    (lambda: soft_tokens.soft_thought(-0.1), "sigma=-0.1"),
    (lambda: soft_tokens.hard_thought(-1.0), "temperature=-1.0"),
])
def test_a_wrong_number_is_refused(call, words):
  with pytest.raises(ValueError, match=words):
    call()
