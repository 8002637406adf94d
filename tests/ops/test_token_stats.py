"""Chunked token statistics against the whole softmax."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.ops import masked, token_stats


def arrays(seed=0, rows=3, length=37, width=8, vocabulary=19):
  rng = np.random.default_rng(seed)
  return (jnp.asarray(rng.standard_normal((rows, length, width)), jnp.float32),
          jnp.asarray(rng.standard_normal((width, vocabulary)), jnp.float32),
          jnp.asarray(rng.integers(0, vocabulary, (rows, length))))


def whole(hidden, head, targets, temperature):
  log_p = jax.nn.log_softmax(hidden @ head / temperature)
  return jnp.take_along_axis(log_p, targets[..., None], -1)[..., 0], -jnp.sum(jnp.exp(log_p) * log_p, -1)


@pytest.mark.parametrize("chunk", [1, 10, 64, 4096])
def test_chunks_change_neither_values_nor_gradients(monkeypatch, chunk):
  monkeypatch.setattr(token_stats, "CHUNK", chunk)
  hidden, head, targets = arrays()
  weights = jnp.cos(jnp.arange(targets.size)).reshape(targets.shape)

  def chunked(hidden, head):
    out = token_stats.token_stats(hidden, head, targets, temperature=0.7, stats=frozenset({"entropy"}),
                                  entropy_gradient=True)
    return jnp.sum(weights * (out.log_probs + 0.3 * out.entropy))

  def direct(hidden, head):
    log_probs, entropy = whole(hidden, head, targets, 0.7)
    return jnp.sum(weights * (log_probs + 0.3 * entropy))

  got, expected = (jax.value_and_grad(f, (0, 1))(hidden, head) for f in (chunked, direct))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), got, expected)


def test_logged_entropy_has_no_gradient():
  hidden, head, targets = arrays()
  entropy = lambda h, on: jnp.sum(token_stats.token_stats(h, head, targets, temperature=1.0, entropy_gradient=on,
                                                          stats=frozenset({"entropy"})).entropy)
  assert np.all(jax.grad(entropy)(hidden, False) == 0)
  assert np.any(jax.grad(entropy)(hidden, True) != 0)


def test_no_array_of_batch_by_vocabulary(monkeypatch):
  monkeypatch.setattr(token_stats, "CHUNK", 64)
  hidden, head, targets = arrays(rows=4, length=64, vocabulary=101)
  loss = lambda h, w: jnp.sum(token_stats.token_stats(h, w, targets, temperature=1.0).log_probs)
  text = jax.jit(jax.grad(loss, (0, 1))).lower(hidden, head).compile().as_text()
  biggest = max(math.prod(map(int, shape.split(","))) for shape in re.findall(r"f32\[([0-9,]+)\]", text))
  assert biggest < targets.size * head.shape[1], "an array as large as the batch's logits exists"


def test_unknown_statistic_is_refused():
  with pytest.raises(ValueError, match="allowed are"):
    token_stats.token_stats(*arrays(), temperature=1.0, stats=frozenset({"nonsense"}))


def test_masked_helpers():
  values, mask = jnp.asarray([[1.0, jnp.nan], [jnp.nan, jnp.nan]]), jnp.asarray([[True, False], [False, False]])
  np.testing.assert_array_equal(masked.row_mean(values, mask), [[1.0], [0.0]])
  assert np.all(np.isfinite(jax.grad(lambda v: jnp.sum(masked.row_mean(v, mask)))(values)))
  groups = jnp.asarray([7, -2, 7, 5])
  np.testing.assert_array_equal(masked.group_sum(jnp.asarray([1.0, 2.0, 3.0, 4.0]), groups), [4.0, 2.0, 4.0, 4.0])
  histogram = masked.histogram(jnp.asarray([-1.0, 0.0, 5.0, 9.0]), jnp.asarray([True, True, True, False]), (0.0, 1.0))
  np.testing.assert_array_equal(histogram.counts, [1.0, 1.0, 1.0])
