"""A matrix beside its adapter: the values and gradients of the sum, without their size."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.config import ModelConfig, ParametersConfig
from jaxrl_llm.models import Model, adapters, trainable

SHAPE = ModelConfig(vocab_size=16, width=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8,
                    mlp_width=24, tie_head=False)
LORA = ParametersConfig("lora", lora_rank=2, lora_alpha=8.0)
SHAPES = {
    "single blocks": {},
    "a scan": {"scan_layers": True},
    "recomputed": {"remat": "full"},
    "experts": {"num_experts": 4, "experts_per_token": 2, "expert_width": 8},
}


def trees(model, cfg=LORA):
  """Returns trained and frozen leaves, no adapter being zero."""
  trained, frozen = trainable.split(model.init(jax.random.key(0)), cfg, jax.random.key(1))
  moved = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(x.size), x.shape),
                       trained)
  return moved, frozen


def loss_of(model, frozen, parameters, cfg=LORA, rows=3):
  tokens = jax.random.randint(jax.random.key(2), (rows, 7), 0, 16)
  positions = jnp.broadcast_to(jnp.arange(7), tokens.shape)

  def loss(trained):
    params = parameters(trained, frozen, cfg)
    hidden = model.hidden(params, tokens, positions, jnp.ones_like(tokens))[0]
    return jnp.sum(jnp.sin(hidden.astype(jnp.float32) @ model.head(params)))

  return loss


def same_gradients(model, parameters, cfg=LORA, rtol=1e-4):
  """Raises where values or gradients are not those of merged parameters."""
  trained, frozen = trees(model, cfg)
  value, grads = jax.jit(jax.value_and_grad(loss_of(model, frozen, parameters, cfg)))(trained)
  expected, merged = jax.jit(jax.value_and_grad(loss_of(model, frozen, trainable.merge, cfg)))(
      trained)
  np.testing.assert_allclose(value, expected, rtol=1e-5, atol=2e-4)  # a sum of 336 sines
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=rtol * np.abs(y).max()), grads,
               merged)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gradients_are_those_of_merged_parameters(shape):
  model = Model(dataclasses.replace(SHAPE, **SHAPES[shape]))
  cfg = dataclasses.replace(LORA, patterns=("final_norm",), head_rows=(3, 11))
  same_gradients(model, trainable.with_adapters, cfg)


def test_what_is_merged_all_the_same():
  """Experts, which share a product, and the head."""
  model = Model(dataclasses.replace(SHAPE, **SHAPES["experts"]))
  cfg = dataclasses.replace(LORA, lora_targets=("attention/out", "mlp", "head"))
  blocks = (params := trainable.with_adapters(*trees(model, cfg), cfg))["blocks"]
  assert isinstance(blocks[0]["attention"]["out"], adapters.Adapted)
  assert not any(isinstance(x, adapters.Adapted)
                 for x in (params["head"], *blocks[0]["mlp"].values()))
  same_gradients(model, trainable.with_adapters, cfg)


def test_a_gradient_without_the_scale_is_rejected():
  def unscaled(trained, frozen, cfg):
    of_one = dataclasses.replace(cfg, lora_alpha=float(cfg.lora_rank))
    return trainable.with_adapters(trained, frozen, of_one)

  with pytest.raises(AssertionError):
    same_gradients(Model(SHAPE), unscaled)


def test_bf16_rounds_the_sum_as_a_sampler_does():
  """Not the product of the adapter, which would keep what the sampler's rounded weights lose."""
  keys = jax.random.split(jax.random.key(3), 4)
  x, weight, a, b = (jax.random.normal(key, shape) for key, shape in zip(
      keys, ((2, 5, 16), (16, 4, 6), (16, 2), (2, 24)), strict=True))
  x, scale = x.astype(jnp.bfloat16), 1e-3
  merged = adapters.merged_weight(weight, a, b, scale).astype(jnp.bfloat16).reshape(16, 24)
  separate = x @ weight.reshape(16, 24).astype(jnp.bfloat16) + (scale * (x @ a @ b)).astype(x.dtype)
  got = adapters.adapted_product(x, weight, a, b, scale)
  assert got.dtype == jnp.bfloat16 and jnp.array_equal(got, x @ merged)
  assert not jnp.array_equal(separate, x @ merged)


def test_no_gradient_has_the_size_of_a_matrix():
  """Of few tokens: a third of the work and most of the memory of merged parameters' gradient go."""
  model = Model(dataclasses.replace(SHAPE, width=256, mlp_width=1024, num_layers=4, remat="full"))
  trained, frozen = trees(model)

  def costs(parameters):
    step = jax.jit(jax.grad(loss_of(model, frozen, parameters, rows=2)))
    program = step.lower(trained).compile()
    return program.cost_analysis()["flops"], program.memory_analysis().temp_size_in_bytes

  flops, temporaries = costs(trainable.with_adapters)
  merged_flops, merged_temporaries = costs(trainable.merge)
  assert flops < 0.75 * merged_flops
  assert temporaries < 0.25 * merged_temporaries
