"""Energies of tokens: norms against a gradient for each token, and their summary."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from experiments.smollm2 import token_energy
from jaxrl_llm.config import ModelConfig
from jaxrl_llm.models import Model

CONFIG = ModelConfig(vocab_size=11, width=16, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8,
                     mlp_width=24)
PROMPT, COUNT = 4, 50


def test_norms_are_those_of_each_token_and_prefix():
  """Wrong: the state at the token itself, which has read it."""
  model = Model(CONFIG)
  params = model.init(jax.random.key(0))
  tokens = jax.random.randint(jax.random.key(1), (PROMPT + COUNT,), 0, CONFIG.vocab_size)
  columns = jnp.arange(PROMPT, PROMPT + COUNT)

  def log_p(params, shift):
    row = tokens[None]
    hidden, _ = model.hidden(params, row, jnp.arange(row.shape[1])[None], jnp.ones_like(row))
    by_token = jax.nn.log_softmax(hidden[0] @ model.head(params))
    return by_token[columns - shift, tokens[columns]]

  def norms(shift):
    # One gradient at a time: of 50 at once, in one program, jaxlib 0.10.2 fuses a norm's backward
    # pass on CPUs (YNNPACK) so that the last 13 are wrong by some percent.
    jacobian = jax.tree.leaves(lax.map(
        lambda i: jax.grad(lambda params: log_p(params, shift)[i])(params), jnp.arange(COUNT)))
    each = sum(jnp.sum(x.reshape(COUNT, -1)**2, 1) for x in jacobian)
    prefix = [sum(jnp.sum(x[:t].sum(0)**2) for x in jacobian) for t in token_energy.ENDS]
    return each, jnp.stack(prefix)

  chosen, proxy, each, prefix = token_energy.energies(model, params, tokens, columns)
  np.testing.assert_allclose(chosen, log_p(params, 1), rtol=1e-5)
  np.testing.assert_allclose(each, norms(1)[0], rtol=1e-4)
  np.testing.assert_allclose(prefix, norms(1)[1], rtol=1e-4)
  assert not np.allclose(each, norms(0)[0], rtol=0.1)
  assert proxy.shape == (COUNT,) and (proxy >= 0).all()


def planted(noise: float) -> dict:
  rng = np.random.default_rng(0)
  proxy = rng.uniform(0.01, 1, (30, token_energy.TOKENS))
  true = proxy * np.exp(noise * rng.standard_normal(proxy.shape))
  prefix = np.cumsum(true, 1)[:, np.array(token_energy.ENDS) - 1]
  return token_energy.summary(np.log(1 - proxy / 2), proxy, true, prefix)


def test_what_ranks_alike_has_correlation_1_and_noise_less():
  exact, noisy, lost = (planted(noise)["correlation"] for noise in (0.0, 1.0, 30.0))
  assert exact["value"] == pytest.approx(1) == exact["low"]
  assert 0.4 < noisy["low"] < noisy["value"] < noisy["high"] < 0.9
  assert abs(lost["value"]) < 0.2
