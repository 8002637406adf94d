"""The faster attention and products give the values and gradients of the plain ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.models import attention, layers


def operands(length: int, rows=2, heads=4, kv_heads=2, size=8):
  rng = np.random.default_rng(length)

  def normal(*shape):
    return rng.normal(size=shape).astype(np.float32)

  columns = np.arange(length)
  # Two segments, then padding.
  segments = (columns >= length // 3).astype(int) + 1 - 2 * (columns >= length - 5)
  same = (segments[:, None] == segments[None]) & (segments[:, None] > 0)
  visible = np.broadcast_to(same & (columns[:, None] >= columns[None]), (rows, length, length))
  return (normal(rows, length, heads, size), normal(rows, kv_heads, size, length),
          normal(rows, kv_heads, length, size), visible, normal(rows, length, heads, size))


def value_and_gradients(function, queries, keys, values, visible, weights):
  seen = np.any(visible, -1)[..., None, None]  # the output at padding is not read

  def loss(*x):
    return jnp.sum(jnp.where(seen, function(*x, visible), 0) * weights)

  return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(queries, keys, values)


@pytest.mark.parametrize(("length", "blocks"), [(95, 1), (193, 2), (400, 4)])
def test_attention_in_blocks_is_attention(length, blocks):
  given = operands(length)
  program = jax.make_jaxpr(attention.attend_earlier)(*given[:4]).pretty_print()
  assert program.count("dot_general[") == 2 * blocks
  got, expected = (value_and_gradients(f, *given)
                   for f in (attention.attend_earlier, attention.attend))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5), got, expected)


def test_a_mask_that_looks_ahead_is_not_for_blocks():
  queries, keys, values, visible, weights = operands(193)
  ahead = np.swapaxes(visible, 1, 2)
  got, expected = (value_and_gradients(f, queries, keys, values, ahead, weights)[0]
                   for f in (attention.attend_earlier, attention.attend))
  assert abs(got - expected) > 1


@pytest.mark.parametrize("shape", [(6, 9), (9, 6), (7, 7)])
def test_gradients_of_a_product(shape):
  rng = np.random.default_rng(0)
  x, matrix = rng.normal(size=(2, 5, shape[0])), rng.normal(size=shape)
  weights = rng.normal(size=(2, 5, shape[1]))

  def gradients(product):
    return jax.grad(lambda x, m: jnp.sum(jnp.sin(product(x, m)) * weights), (0, 1))(x, matrix)

  with jax.enable_x64(True):
    got, expected = gradients(layers.product), gradients(lambda x, m: x @ m)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-12), got, expected)
  wrong = jax.tree.map(lambda a: a[::-1], got)
  assert all(np.max(np.abs(a - b)) > 1e-3 for a, b in zip(wrong, expected, strict=True))


class Matrix:
  """What `multiply` reads of a parameter."""

  def __init__(self, entries):
    self.entries = entries

  def get_value(self):
    return self.entries

  def __getitem__(self, key):
    return self.entries[key]


@pytest.mark.parametrize("shape, by_head", [((12, 3, 4), True), ((3, 4, 6), False),
                                            ((12, 6), False)])
def test_a_tpu_multiplies_by_head(shape, by_head, monkeypatch):
  """The entries are those of the flat product, for queries, for outputs and for an MLP."""
  rng = np.random.default_rng(0)
  x, entries = (jnp.asarray(rng.normal(size=size), jnp.float32) for size in ((2, 5, 12), shape))

  def run(x, entries):
    out = layers.multiply(x, Matrix(entries), None)
    return jnp.sum(jnp.sin(out)), out

  def on(platform):
    monkeypatch.setattr(layers, "platform_of", lambda constrain: platform)
    return jax.value_and_grad(run, (0, 1), has_aux=True)(x, entries)

  ((value, out), gradients), ((flat_value, flat_out), flat_gradients) = on("tpu"), on("cpu")
  assert (out.ndim == 4) == by_head and flat_out.ndim == 3
  np.testing.assert_allclose(value, flat_value, rtol=1e-5)
  np.testing.assert_allclose(out.reshape(flat_out.shape), flat_out, atol=1e-5)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), gradients, flat_gradients)
