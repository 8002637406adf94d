"""The network: whole rows and cached ones, causality, segments, and choices of execution."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.config import ModelConfig
from jaxrl_llm.models import Model, kv_cache, transformer

CONFIG = ModelConfig(vocab_size=11, width=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8,
                     mlp_width=24)


@functools.cache
def hidden(model):
  return jax.jit(model.hidden)


def inputs(rows=3, length=10):
  ids = jax.random.randint(jax.random.key(1), (rows, length), 0, CONFIG.vocab_size)
  positions = jnp.broadcast_to(jnp.arange(length), ids.shape)
  return ids, positions, jnp.ones_like(ids)


@pytest.mark.parametrize("jitted, calls", [(True, 1), (False, 5)])
def test_equal_blocks_are_traced_once(monkeypatch, jitted, calls):
  """Wrong: each layer by itself."""
  traced = []
  block = transformer.Block.__call__
  monkeypatch.setattr(transformer.Block, "__call__",
                      lambda *arguments: traced.append(1) or block(*arguments))
  if not jitted:
    monkeypatch.setattr(transformer, "_block", transformer._block.__wrapped__)
  # A width of this test alone: what another one has traced would not be traced again.
  model = Model(dataclasses.replace(CONFIG, num_layers=5, width=12))
  jax.eval_shape(model.hidden, model.shapes(), *inputs(2, 7))
  assert len(traced) == calls


@pytest.mark.parametrize("scan", [False, True])
def test_cached_equals_whole(scan):
  model = Model(dataclasses.replace(CONFIG, scan_layers=scan))
  params = model.init(jax.random.key(0))
  expected, _ = hidden(model)(params, *inputs())
  cache, parts = kv_cache.empty(model.config, 3, 6), []
  for start, end in ((0, 6), (6, 7), (7, 10)):
    cache = kv_cache.grow(cache, max(6, end))
    part, cache = hidden(model)(params, *(x[:, start:end] for x in inputs()), cache=cache)
    parts.append(part)
  np.testing.assert_allclose(jnp.concatenate(parts, 1), expected, atol=2e-5)


def test_causality_by_gradient():
  """Position t of the output depends on the embeddings up to t, and on no later one."""
  model = Model(CONFIG)
  params = model.init(jax.random.key(0))
  ids, positions, segments = inputs(rows=1)
  embedded = params["embedding"][ids]

  @jax.jit
  @jax.grad
  def at(embedded, t):
    hidden, _ = model.hidden(params, embedded, positions, segments)
    return jnp.sum(jnp.sin(hidden[0, t]))

  for t in (0, 4, 9):
    gradient = at(embedded, t)
    moved = np.any(np.asarray(gradient[0]) != 0, -1)
    np.testing.assert_array_equal(moved, np.arange(10) <= t)


@pytest.mark.parametrize("tie", [True, False])
def test_embeddings_of_ids_are_the_same_input(tie):
  model = Model(dataclasses.replace(CONFIG, tie_head=tie))
  params = model.init(jax.random.key(0))
  ids, positions, segments = inputs()
  table = model.embedding(params)
  by_ids, _ = hidden(model)(params, ids, positions, segments)
  np.testing.assert_array_equal(hidden(model)(params, table[ids], positions, segments)[0], by_ids)
  other, _ = hidden(model)(params, table[ids] + 0.01, positions, segments)
  assert np.max(np.abs(other - by_ids)) > 1e-2


def test_segments_do_not_see_each_other():
  model = Model(CONFIG)
  params = model.init(jax.random.key(0))
  ids, _, _ = inputs(rows=1)
  positions = jnp.asarray([[0, 1, 2, 3, 0, 1, 2, 3, 4, 0]])
  segments = jnp.asarray([[1, 1, 1, 1, 2, 2, 2, 2, 2, 0]])
  packed, _ = hidden(model)(params, ids, positions, segments)
  for start, end in ((0, 4), (4, 9)):
    single, _ = hidden(model)(params, ids[:, start:end], positions[:, start:end],
                              jnp.ones((1, end - start), jnp.int32))
    np.testing.assert_allclose(packed[:, start:end], single, atol=2e-5)


def test_padding_changes_nothing():
  model = Model(CONFIG)
  params = model.init(jax.random.key(0))
  ids, positions, segments = inputs()
  padded = [jnp.pad(x, ((0, 0), (0, 4)), constant_values=c)
            for x, c in ((ids, 7), (positions, 3), (segments, 0))]
  longer, _ = hidden(model)(params, *padded)
  shorter, _ = hidden(model)(params, ids, positions, segments)
  np.testing.assert_allclose(longer[:, :10], shorter, atol=2e-5)
  assert np.all(np.isfinite(longer))


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"scan_layers": True}, {"remat": "full"}, {"remat": "dots"},
                                    {"remat": "offload"}, {"scan_layers": True, "remat": "full"},
                                    {"scan_layers": True, "remat": "offload"}], ids=str)
def test_execution_choices_change_neither_value_nor_gradient(change):
  model, other = Model(CONFIG), Model(dataclasses.replace(CONFIG, **change))
  params = model.init(jax.random.key(0))
  theirs = params
  if other.config.scan_layers:
    blocks = params["blocks"]
    blocks = jax.tree.map(lambda *x: jnp.stack(x), *(blocks[i] for i in sorted(blocks)))
    theirs = {**params, "blocks": blocks}

  def run(model):
    return jax.jit(jax.value_and_grad(lambda p: jnp.sum(jnp.sin(model.hidden(p, *inputs())[0]))))

  value, gradient = run(model)(params)
  other_value, other_gradient = run(other)(theirs)
  np.testing.assert_allclose(other_value, value, rtol=1e-5)
  np.testing.assert_allclose(other_gradient["embedding"], gradient["embedding"], atol=1e-4)


def test_axes_cover_the_parameters():
  for change in ({}, {"scan_layers": True}, {"tie_head": False}):
    model = Model(dataclasses.replace(CONFIG, **change))
    params = jax.eval_shape(model.init, jax.random.key(0))
    ranks = jax.tree.map(lambda x, axes: len(x.shape) == len(axes), params, model.logical_axes())
    assert all(jax.tree.leaves(ranks))
  head = model.head(model.init(jax.random.key(0)))
  assert head.shape == (CONFIG.width, CONFIG.vocab_size)


def test_positions_are_relative():
  """Rotary attention depends only on differences of positions."""
  model = Model(CONFIG)
  params = model.init(jax.random.key(0))
  ids, positions, segments = inputs()
  moved, _ = hidden(model)(params, ids, positions + 17, segments)
  np.testing.assert_allclose(moved, hidden(model)(params, ids, positions, segments)[0], atol=1e-4)
  stretched, _ = hidden(model)(params, ids, positions * 2, segments)
  assert np.max(np.abs(stretched - moved)) > 1e-4
