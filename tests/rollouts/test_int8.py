"""Matrices held as int8: what they hold, their products, and that decoding reads them so."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from jax import lax
from small_model import prompts
from suites import quick_of

from jaxrl_llm import parallel
from jaxrl_llm.config import (
  ConfigError,
  MeshConfig,
  ModelConfig,
  ParametersConfig,
  RolloutConfig,
  SamplerConfig,
  StepConfig,
)
from jaxrl_llm.models import Model, int8, trainable
from jaxrl_llm.models.layers import MATRICES
from jaxrl_llm.rollouts import engine, generate, hand_over, numerics
from jaxrl_llm.training.score import score
from jaxrl_llm.types import Sampling

CONFIG = ModelConfig(vocab_size=31, width=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8,
                     mlp_width=40, qkv_bias=True, out_bias=True)
MODEL = Model(CONFIG)
STACKED = Model(dataclasses.replace(CONFIG, scan_layers=True))
KEY, NEW, SAMPLING = jax.random.key(7), 9, Sampling.of(1.0)
held = pytest.mark.parametrize("quantization", int8.STORED)
slowly_held = pytest.mark.parametrize("quantization", quick_of(
    (), {name: (name,) for name in int8.STORED}, slow={int8.STORED[0]}))


def params_of(model):
  return jax.tree.map(lambda x: 6 * x if x.ndim > 1 else x, model.init(jax.random.key(0)))


def quantized(quantization, model=MODEL, params=None, **options):
  """(network without scanned layers, its parameters), as a run samples with them."""
  params = params_of(model) if params is None else params
  network, params = numerics.rollout_numerics(
      model, params, RolloutConfig(quantization=quantization, **options))
  return hand_over.decode_model(network), hand_over.make(network, None)(params)


def logits(model, params):
  rng = np.random.default_rng(0)
  tokens, at = rng.integers(0, 31, (3, 7)), np.broadcast_to(np.arange(7), (3, 7))
  hidden, _ = model.hidden(params, tokens, at, np.ones_like(at))
  return np.asarray(hidden @ model.head(params))


# --- what is held


def check_values(stored):
  """(matrix, contracted, produced) -> values and scale whose product is the rounded matrix."""
  for name, shape in {"query": (6, 3, 4), "out": (3, 4, 6), "up": (6, 5)}.items():
    contracted, produced = MATRICES[name]
    matrix = np.asarray(jax.random.normal(jax.random.key(1), shape))
    matrix = matrix * np.logspace(-3, 0, shape[-1], dtype=np.float32)
    entry = stored(jnp.asarray(matrix), contracted, produced)
    assert entry["values"].dtype == jnp.int8 and entry["values"].shape == shape
    assert entry["scale"].dtype == jnp.float32 and entry["scale"].shape == shape[contracted:]
    np.testing.assert_allclose(entry["values"] * entry["scale"],
                               numerics.round_int8(jnp.asarray(matrix), contracted, produced),
                               rtol=1e-6)


def test_values_times_scale_is_the_rounded_matrix():
  check_values(int8.stored)


def scale_of_the_input(matrix, contracted, produced):
  """One scale per input channel, which no product of integers can apply afterwards."""
  scale = jnp.abs(matrix).max(tuple(range(contracted, matrix.ndim)), keepdims=True) / 127.5
  values = jnp.round(matrix / scale).clip(-128, 127).astype(jnp.int8)
  return {"values": values, "scale": jnp.ones(matrix.shape[contracted:]) * scale.max()}


def one_scale(matrix, contracted, produced):
  scale = jnp.abs(matrix).max() / 127.5
  values = jnp.round(matrix / scale).clip(-128, 127).astype(jnp.int8)
  return {"values": values, "scale": jnp.full(matrix.shape[contracted:], scale)}


@pytest.mark.parametrize("wrong", [scale_of_the_input, one_scale])
def test_the_check_of_values_rejects(wrong):
  with pytest.raises(AssertionError):
    check_values(wrong)


@slowly_held
@pytest.mark.parametrize("model", [MODEL, STACKED], ids=["blocks", "stacked"])
def test_a_matrix_takes_one_byte_per_entry_and_its_scales(model, quantization):
  _, params = quantized(quantization, model)
  plain = flatten_dict(hand_over.for_decoding(params_of(model), model)[1])
  leaves = flatten_dict(params)
  for path, x in plain.items():
    if path[0] == "blocks" and path[-1] in MATRICES:
      values, scale = leaves.pop((*path, "values")), leaves.pop((*path, "scale"))
      assert values.nbytes == x.size
      assert scale.nbytes == 4 * np.prod(x.shape[MATRICES[path[-1]][0]:])
    else:
      np.testing.assert_array_equal(leaves.pop(path), x)
  assert not leaves


@held
def test_the_copy_is_made_once_and_adapters_are_merged_before(quantization):
  cfg = ParametersConfig(train="lora", lora_rank=2)
  trained, frozen = trainable.split(params_of(MODEL), cfg, jax.random.key(3))
  merged = trainable.merge(jax.tree.map(lambda x: x + 0.1, trained), frozen, cfg)
  model, params = quantized(quantization, params=merged)
  assert hand_over.make(model, None)(params) is params
  up = params["blocks"][1]["mlp"]["up"]
  np.testing.assert_allclose(up["values"] * up["scale"],
                             numerics.round_int8(merged["blocks"][1]["mlp"]["up"], 1, 1), rtol=1e-6)


def test_experts_are_refused():
  experts = dataclasses.replace(CONFIG, num_experts=4)
  for quantization in int8.STORED:
    cfg = RolloutConfig(quantization=quantization)
    with pytest.raises(ConfigError, match=f"{quantization}.*model.num_experts = 4.*Fix"):
      numerics.rollout_model(Model(experts), cfg)
  assert numerics.resolve(RolloutConfig(quantization="int8"), experts).quantization == "int8"


# --- products


@pytest.mark.slow
@pytest.mark.parametrize("model", [MODEL, STACKED], ids=["blocks", "stacked"])
def test_weights_held_as_int8_give_the_logits_of_rounded_ones(model):
  rounded, outputs = (logits(*quantized(name, model)) for name in ("int8", "int8_weights"))
  plain = logits(*quantized("none", model))
  np.testing.assert_allclose(outputs, rounded, atol=2e-5)  # of logits of up to 5, in f32
  assert np.abs(outputs - plain).max() > 1e-2


def check_integer_product(product):
  rng = np.random.default_rng(1)
  x = (rng.standard_normal((3, 5, 24)) * np.logspace(-2, 2, 15).reshape(3, 5, 1)).astype(np.float32)
  x[1, 2] = 0
  values = rng.integers(-128, 128, (24, 7), np.int8)
  scale = np.logspace(-3, 0, 7).astype(np.float32)
  top = np.abs(x).max(-1, keepdims=True)
  step = np.where(top == 0, 1, top / np.float32(127))
  tokens = np.round(x / step).astype(np.int8)
  sums = tokens.astype(np.int32) @ values.astype(np.int32)
  expected = sums * step * scale
  products = np.asarray(product(jnp.asarray(x), jnp.asarray(values), jnp.asarray(scale)))
  np.testing.assert_allclose(products, expected, rtol=1e-6)


def test_integer_products_are_those_of_numpy():
  check_integer_product(int8.integer_product)
  text = jax.jit(int8.integer_product).lower(
      jnp.ones((2, 1, 24)), jnp.ones((24, 7), jnp.int8), jnp.ones(7)).as_text()
  assert re.search(r"dot_general.*xi8>.*xi8>\) -> tensor<\S*xi32>", text)


def one_step_for_all_tokens(x, values, scale):
  step = jnp.abs(x).max() / 127
  return jnp.round(x / step) @ values.astype(jnp.float32) * step * scale


@pytest.mark.parametrize("wrong", [one_step_for_all_tokens, int8.weight_product])
def test_the_check_of_integer_products_rejects(wrong):
  with pytest.raises(AssertionError):
    check_integer_product(wrong)


# --- sampling


def generation(model):
  cfg = SamplerConfig(4, NEW, NEW, (3,), 0)
  return jax.jit(functools.partial(generate, model=model, cfg=cfg))


@slowly_held
def test_the_behavior_is_that_of_the_quantized_network(quantization):
  model, params = quantized(quantization)
  rollout = generation(model)(params, prompts(), KEY, SAMPLING)
  probabilities = jax.jit(functools.partial(score, cfg=StepConfig()), static_argnames="model")
  log_probs = probabilities(params, rollout, SAMPLING, model=model).log_probs
  # A rounding of 1e-7 may move an activation by a whole step of int8.
  atol = 1e-5 if quantization == "int8_weights" else 5e-2
  mask, behavior = np.asarray(rollout.mask), rollout.behavior_log_probs
  gap = np.abs(log_probs - behavior)[mask]
  trainers = probabilities(params_of(MODEL), rollout, SAMPLING, model=MODEL).log_probs
  assert gap.max() < atol
  assert np.abs(trainers - behavior)[mask].mean() > 3 * gap.mean()


def carried(quantization) -> set[str]:
  """Element types of the weights that the decode loop carries, in the program for this device."""
  model, params = quantized(quantization)
  text = generation(model).lower(params, prompts(), KEY, SAMPLING).compile().as_text()
  loops = [line for line in text.splitlines() if " while(" in line]
  shapes = r"(\w+)\[(?:16,40|40,16|16,32|32,16|16,4,8|4,8,16|16,2,8)\]"
  return {kind for line in loops for kind in re.findall(shapes, line)}


@slowly_held
def test_no_wider_copy_of_the_weights_is_made_before_the_loop(quantization, monkeypatch):
  assert carried(quantization) == {"s8"}
  if quantization == "int8_weights":
    monkeypatch.setattr(lax, "optimization_barrier", lambda x: x)
    jax.clear_caches()
    assert "s8" not in carried(quantization)
    jax.clear_caches()


def on_devices(quantization, axes):
  model, params = STACKED, params_of(STACKED)
  mesh = None if axes is None else parallel.make_mesh(axes, jax.devices()[:8])
  if mesh is not None:
    model = dataclasses.replace(model, constrain=parallel.Layout(mesh))
    params = jax.device_put(params, parallel.param_shardings(model, mesh))
  model, params = numerics.rollout_numerics(model, params,
                                            RolloutConfig(quantization=quantization))
  copy = hand_over.make(model, mesh)(params)
  cfg = engine.EngineConfig(4, NEW, NEW + 3, (3,), 0, slots=8, chunk=4, compact=0)
  rollout, _ = engine.run(copy, prompts(), KEY, SAMPLING, model=model, cfg=cfg, mesh=mesh)
  return copy, jax.device_get(rollout)


@slowly_held
def test_sampled_rows_are_those_of_one_device(quantization):
  copy, rollout = on_devices(quantization, MeshConfig(1, 4, 2))
  _, expected = on_devices(quantization, None)
  query = copy["blocks"][0]["attention"]["query"]
  assert query["values"].sharding.shard_shape(query["values"].shape) == (16, 2, 8)
  assert query["scale"].sharding.shard_shape(query["scale"].shape) == (2, 8)
  np.testing.assert_array_equal(rollout.tokens, expected.tokens)
  np.testing.assert_allclose(rollout.behavior_log_probs, expected.behavior_log_probs, atol=5e-5)
