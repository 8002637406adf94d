"""Experts, biases, norms, frequencies and the value head against plain loops."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxrl_llm import parallel
from jaxrl_llm.config import MeshConfig, ModelConfig, RopeScalingConfig
from jaxrl_llm.fields import ConfigError
from jaxrl_llm.models import Model, kv_cache
from jaxrl_llm.models.moe import MoE
from jaxrl_llm.models.rope import frequencies
from jaxrl_llm.models.transformer import unconstrained
from jaxrl_llm.ops.experts import expert_load, replaced_experts

CONFIG = ModelConfig(vocab_size=11, width=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8,
                     num_experts=4, experts_per_token=2, expert_width=12)


def inputs(rows=2, length=6, seed=1):
  ids = jax.random.randint(jax.random.key(seed), (rows, length), 0, CONFIG.vocab_size)
  return ids, jnp.broadcast_to(jnp.arange(length), ids.shape), jnp.ones_like(ids)


@pytest.fixture(scope="module")
def params():
  """Weights large enough for the experts to differ."""
  return jax.tree.map(lambda x: 10 * x if x.ndim > 1 else x, Model(CONFIG).init(jax.random.key(0)))


@functools.cache
def run(model):
  return jax.jit(model.hidden_and_routing)


def silu(x):
  return x / (1 + np.exp(-x))


def loop(mlp, x, normalize):
  """One token at a time, one expert at a time, in numpy."""
  out = np.zeros_like(x)
  for t, token in enumerate(x):
    logits = token @ mlp["router"]
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    best = np.argsort(-shares)[:2]
    total = shares[best].sum() if normalize else 1.0
    for e in best:
      inner = silu(token @ mlp["gate"][e]) * (token @ mlp["up"][e])
      out[t] += shares[e] / total * (inner @ mlp["down"][e])
  return out


@pytest.mark.parametrize("normalize", [pytest.param(True, marks=pytest.mark.slow), False])
def test_experts_equal_a_loop_over_tokens(params, normalize):
  mlp = jax.device_get(params["blocks"][0]["mlp"])
  cfg = dataclasses.replace(CONFIG, normalize_router=normalize)
  x = np.asarray(jax.random.normal(jax.random.key(3), (2, 7, CONFIG.width)))

  def apply(mlp, x):
    module = MoE(cfg, nnx.Rngs(params=0))
    nnx.update(module, mlp)
    return module(x, unconstrained)[0]

  ours = np.asarray(jax.jit(apply)(mlp, x)).reshape(-1, CONFIG.width)
  flat = x.reshape(-1, CONFIG.width)
  np.testing.assert_allclose(ours, loop(mlp, flat, normalize), atol=1e-5)
  wrong = loop(mlp, flat, not normalize)
  assert np.abs(ours - wrong).max() > 1e-3, "the wrong normalisation must not pass"


@pytest.mark.slow
def test_a_token_depends_on_no_other_row(params):
  """No capacity: rows that crowd an expert change nothing for the others."""
  ids, positions, segments = inputs()
  both = run(Model(CONFIG))(params, ids, positions, segments)[0]
  crowd = jnp.concatenate([ids[:1], jnp.broadcast_to(ids[:1, :1], ids[:1].shape)])
  crowded = run(Model(CONFIG))(params, crowd, positions, segments)[0]
  np.testing.assert_allclose(crowded[0], both[0], atol=1e-5)


def test_routing_is_returned_by_mixtures_only(params):
  x = inputs()
  routing = run(Model(CONFIG))(params, *x)[2]
  assert routing.shape == (2, 2, 6, 2) and routing.dtype == jnp.int32
  assert np.all(routing[..., 0] != routing[..., 1]), "k different experts serve a token"
  dense = Model(dataclasses.replace(CONFIG, num_experts=0))
  assert run(dense)(dense.init(jax.random.key(0)), *x)[2] is None


@pytest.mark.slow
def test_cache_scan_and_mesh_change_nothing(params):
  model, x = Model(CONFIG), inputs(rows=4)
  hidden, _, routing = run(model)(params, *x)
  cache, parts = kv_cache.empty(CONFIG, 4, 6), []
  for start, end in ((0, 4), (4, 5), (5, 6)):
    part, cache, _ = run(model)(params, *(a[:, start:end] for a in x), cache=cache)
    parts.append(part)
  np.testing.assert_allclose(jnp.concatenate(parts, 1), hidden, atol=1e-4)
  blocks = params["blocks"]
  blocks = jax.tree.map(lambda *a: jnp.stack(a), *(blocks[i] for i in sorted(blocks)))
  scanned_model = Model(dataclasses.replace(CONFIG, scan_layers=True, remat="full"))
  scanned, _, same = run(scanned_model)({**params, "blocks": blocks}, *x)
  np.testing.assert_allclose(scanned, hidden, atol=1e-4)
  np.testing.assert_array_equal(same, routing)
  mesh = parallel.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
  sharded = Model(CONFIG, parallel.Layout(mesh))
  placed = jax.device_put(params, parallel.param_shardings(sharded, mesh))
  assert placed["blocks"][0]["mlp"]["gate"].sharding.spec == jax.sharding.PartitionSpec(
      "tensor", "fsdp", None)
  x_placed = jax.device_put(x, parallel.rows(mesh))
  np.testing.assert_allclose(run(sharded)(placed, *x_placed)[0], hidden, atol=1e-4)

  def slope(model):
    return jax.jit(jax.grad(lambda p, *x: jnp.sum(jnp.sin(model.hidden(p, *x)[0]))))

  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-3),
               slope(sharded)(placed, *x_placed),
               slope(model)(params, *x))


@pytest.mark.slow
def test_a_mesh_that_divides_neither_rows_nor_experts(params):
  cfg = dataclasses.replace(CONFIG, num_experts=3)
  mesh = parallel.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
  fewer = jax.tree.map(lambda x: x, params)
  for block in fewer["blocks"].values():
    mlp = block["mlp"]
    block["mlp"] = {name: mlp[name][:3] for name in ("gate", "up", "down")}
    block["mlp"]["router"] = mlp["router"][:, :3]
  x = inputs(rows=3)
  on_mesh = run(Model(cfg, parallel.Layout(mesh)))(fewer, *x)[0]
  np.testing.assert_allclose(on_mesh, run(Model(cfg))(fewer, *x)[0], atol=1e-4)


def test_gradients_reach_router_and_used_experts(params):
  model, x = Model(CONFIG), inputs(rows=1, length=1)

  @jax.jit
  @functools.partial(jax.grad, has_aux=True)
  def slope(params):
    hidden, _, routing = model.hidden_and_routing(params, *x)
    return jnp.sum(jnp.sin(hidden)), routing

  gradient, routing = slope(params)
  for layer in range(2):
    moved = np.any(np.asarray(gradient["blocks"][layer]["mlp"]["gate"]) != 0, (1, 2))
    np.testing.assert_array_equal(moved, np.isin(np.arange(4), routing[layer]))
  assert np.abs(gradient["blocks"][1]["mlp"]["router"]).max() > 0


def test_replaced_experts():
  """The order within the k does not count, nor what a masked token was sent to."""
  routing = jnp.asarray([[[[0, 1], [2, 3], [0, 1]]], [[[3, 1], [0, 2], [2, 3]]]])
  likely = jnp.asarray([[[[1, 0], [2, 1], [2, 3]]], [[[2, 0], [2, 0], [0, 1]]]])
  share = replaced_experts(routing, likely, jnp.asarray([[2, 1, 0]]))
  assert float(share.total) == 2 * 2 + 1 and float(share.count) == 2 * 2 * 3


def test_expert_load():
  routing = jnp.asarray([[[[0, 1], [0, 2], [3, 3]]]])
  load = expert_load(routing, jnp.asarray([[True, True, False]]), 4)
  np.testing.assert_allclose(load.total / load.count, [1.0, 0.5, 0.5, 0.0])


def test_frequencies():
  plain = np.asarray(frequencies(16, 1e4, RopeScalingConfig()))
  linear = frequencies(16, 1e4, RopeScalingConfig(name="linear", factor=4.0))
  np.testing.assert_allclose(linear, plain / 4, rtol=1e-6)
  scaling = RopeScalingConfig(name="llama3", factor=8.0, original_length=64)
  expected = []
  for f in plain.astype(np.float64):
    turns = 64 * f / (2 * np.pi)
    smooth = (turns - 1) / 3
    expected.append(f / 8 if turns < 1 else f if turns > 4 else (1 - smooth) * f / 8 + smooth * f)
  np.testing.assert_allclose(frequencies(16, 1e4, scaling), expected, rtol=1e-5)
  assert len({round(float(r), 3) for r in expected / plain}) > 2, "the three ranges are all met"
  with pytest.raises(ConfigError, match=r"high_frequency_factor = 1\.0"):
    frequencies(16, 1e4, dataclasses.replace(scaling, high_frequency_factor=1.0))


def test_biases_norms_and_value_head_are_parameters():
  cfg = dataclasses.replace(CONFIG, num_experts=0, qkv_bias=True, qk_norm=False, value_head=True,
                            tie_head=False)
  model, x = Model(cfg), inputs()
  params = model.init(jax.random.key(0))
  attention = params["blocks"][0]["attention"]
  assert set(attention) == {"query", "key", "value", "out", "query_bias", "key_bias", "value_bias"}
  apply = jax.jit(lambda p: model.hidden(p, *x)[0])
  hidden = apply(params)
  for name in ("query_bias", "key_bias", "value_bias"):
    biased = {**attention, name: attention[name] + jnp.arange(8.0)}
    block = {**params["blocks"][0], "attention": biased}
    moved = apply({**params, "blocks": {**params["blocks"], 0: block}})
    # Adding a vector to all keys changes no softmax, but here the keys are rotated after it.
    assert np.abs(moved - hidden).max() > 1e-4, name
  np.testing.assert_array_equal(model.values(params, hidden), np.zeros(x[0].shape))
  values = model.values({**params, "value_head": jnp.arange(16.0)}, hidden.astype(jnp.bfloat16))
  assert values.dtype == jnp.float32
  np.testing.assert_allclose(values, hidden @ jnp.arange(16.0), rtol=2e-2, atol=0.3)
  with pytest.raises(ValueError, match="value head"):
    Model(CONFIG).values(params, hidden)
