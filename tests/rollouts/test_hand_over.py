"""The sampler's copy with fused matrices, which it has on a GPU."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_model
from flax.traverse_util import flatten_dict

from jaxrl_llm import parallel
from jaxrl_llm.config import MeshConfig, ModelConfig, SamplerConfig
from jaxrl_llm.models import Model, kv_cache
from jaxrl_llm.rollouts import engine, generate, hand_over
from jaxrl_llm.rollouts.engine import EngineConfig
from jaxrl_llm.types import Sampling

SHAPES = ModelConfig(vocab_size=13, width=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8,
                     mlp_width=24)
FAMILIES = {
    "plain": {}, "biases": {"qkv_bias": True}, "norms": {"qk_norm": True, "tie_head": False},
    "stacked": {"scan_layers": True}, "experts": {"num_experts": 3, "expert_width": 12},
}


def model_of(**options) -> Model:
  return Model(dataclasses.replace(SHAPES, **options))


def params_of(model: Model):
  return jax.tree.map(lambda x: 8 * x if x.ndim > 1 else x + 0.1, model.init(jax.random.key(0)))


@pytest.fixture
def on_gpu(monkeypatch):
  monkeypatch.setattr(hand_over, "platform_of", lambda constrain: "gpu")


def hidden(model: Model, params):
  tokens = jax.random.randint(jax.random.key(1), (3, 7), 0, SHAPES.vocab_size)
  positions = jnp.broadcast_to(jnp.arange(7), (3, 7))
  return np.asarray(
      jax.jit(model.hidden)(params, tokens, positions, jnp.ones((3, 7), jnp.int32))[0])


def check_states(model: Model, copied):
  """The copy has fused matrices and the states of the given model."""
  params = params_of(model)
  decoder, copy = copied(params, model)
  paths = {path[-2:] for path in flatten_dict(copy)}
  assert ("attention", "fused") in paths and ("attention", "query") not in paths
  assert (("mlp", "fused") in paths) != bool(model.config.num_experts)
  np.testing.assert_allclose(hidden(decoder, copy), hidden(model, params), atol=2e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_fused_matrices_give_the_same_states(name, on_gpu):
  check_states(model_of(**FAMILIES[name]), hand_over.for_decoding)


def keys_before_queries(params, model):
  decoder, copy = hand_over.for_decoding(params, model)
  for block in copy["blocks"].values():
    block["attention"]["fused"] = jnp.roll(block["attention"]["fused"], SHAPES.num_kv_heads, 1)
  return decoder, copy


def up_before_gate(params, model):
  decoder, copy = hand_over.for_decoding(params, model)
  for block in copy["blocks"].values():
    block["mlp"]["fused"] = block["mlp"]["fused"][:, ::-1]
  return decoder, copy


def not_fused(params, model):
  return model, params


@pytest.mark.parametrize("wrong", [keys_before_queries, up_before_gate, not_fused])
def test_the_check_of_states_rejects(wrong, on_gpu):
  with pytest.raises(AssertionError):
    check_states(model_of(), wrong)


def test_it_is_fused_only_on_gpus_that_have_all_heads(monkeypatch):
  def is_fused(model):
    return kv_cache.is_fused(hand_over.decode_model(model).config)

  assert not is_fused(model_of())  # on a CPU
  monkeypatch.setattr(hand_over, "platform_of", lambda constrain: "gpu")
  assert is_fused(model_of())
  for axes, expected in ((MeshConfig(1, 2, 2), False), (MeshConfig(1, 4, 1), True)):
    mesh = parallel.make_mesh(axes, jax.devices()[:4])
    assert is_fused(Model(SHAPES, parallel.Layout(mesh))) == expected
  assert not is_fused(Model(kv_cache.decoding(SHAPES, quantization="int8_weights")))
  assert is_fused(Model(kv_cache.decoding(SHAPES, cache_dtype="bfloat16")))


@pytest.mark.parametrize("scan_layers", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_engine_samples_the_same_tokens(scan_layers, on_gpu):
  model = model_of(vocab_size=14 + scan_layers, scan_layers=scan_layers)  # no program of others
  params, key, stop = params_of(model), jax.random.key(7), (2,)
  prompts = small_model.prompts(rows=8)
  cfg = EngineConfig(group_size=4, max_new_tokens=9, slots=8, chunk=4, window=8, stop_ids=stop,
                     pad_id=0)
  got, _ = engine.run(params, prompts, key, Sampling.of(1.0), model=model, cfg=cfg)
  plain = jax.jit(functools.partial(generate, model=model, cfg=SamplerConfig(4, 9, 8, stop, 0)))
  expected = jax.device_get(plain(params, prompts, key, Sampling.of(1.0)))
  np.testing.assert_array_equal(jax.device_get(got.tokens), expected.tokens)
  np.testing.assert_allclose(jax.device_get(got.behavior_log_probs), expected.behavior_log_probs,
                             atol=5e-5)
