"""Slopes along random directions against gradients, and noise of planted groups."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.smollm2 import baseline_noise
from jaxrl_llm.config import ModelConfig
from jaxrl_llm.models import Model

CONFIG = ModelConfig(vocab_size=11, width=16, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8,
                     mlp_width=24)


def test_the_mean_square_of_slopes_is_the_gradient_s_square():
  """Wrong: slopes of the sum over rows, which mix them."""
  model = Model(CONFIG)
  params = model.init(jax.random.key(0))
  tokens = jax.random.randint(jax.random.key(1), (2, 9), 0, CONFIG.vocab_size)
  columns = jnp.tile(jnp.arange(4, 9), (2, 1))
  along, log_p, squares = baseline_noise.slopes(model, params, tokens, columns,
                                                jax.random.split(jax.random.key(2), 3000))

  def chosen(params):
    return baseline_noise.log_probs(model, params, tokens, columns)[0]

  jacobian = jax.tree.leaves(jax.jacrev(chosen)(params))
  norms = sum(jnp.sum(x.reshape(*log_p.shape, -1)**2, -1) for x in jacobian)
  np.testing.assert_allclose(np.mean(along**2, 0) / norms, 1, atol=0.12)
  assert along.shape == (3000, 2, 5) and (squares > 0).all() and (squares < 1).all()
  mixed = np.mean(np.square(along.sum(1)), 0) / norms[0]
  assert np.abs(mixed - 1).max() > 0.3


def planted():
  """Rows of two tokens with independent slopes, of which a row's reward says nothing; reward 1 in
  most rows, so that no baseline at all is the noisiest.
  """
  rng = np.random.default_rng(0)
  rows = 400 * baseline_noise.ROWS
  along = rng.standard_normal((3, rows, 2)) * np.array([1.0, 4.0])
  log_p = np.log(np.tile([0.9, 0.3], (rows, 1)))
  return along, log_p, np.exp(2 * log_p) + 0.01, np.ones((rows, 2), bool), (
      (rng.random(rows) < 0.8).astype(np.float32))


def test_noise_without_a_baseline_is_larger_and_halves_with_twice_the_rows():
  of = baseline_noise.summary(*planted())
  noise = of["noise"]["32"]
  assert noise["rloo"]["value"] == 1 == noise["rloo"]["low"]
  assert noise["none"]["low"] > 3  # mean of squares .8 over variance .16
  # x (n / (n - 1))^2 of the group mean gives RLOO's gradient exactly
  assert noise["group mean"]["value"] == pytest.approx(1, rel=1e-5)
  # RLOO's baseline has the variance of 3 rows: noise 4/3 of the best there, 32/31 here
  assert noise["rloo"]["of_4"] == pytest.approx(32 / 31 / (4 / 3), rel=0.1)
  text = baseline_noise.text(of)
  assert all(text.count(f"| {name} ") == 2 for name in baseline_noise.BASELINES)
