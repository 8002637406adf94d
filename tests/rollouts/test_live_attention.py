"""The kernel of live blocks, interpreted: against plain attention, and in the engine."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_engine import EOS, KEY, NEW, prompts

from jaxrl_llm import parallel
from jaxrl_llm.config import MeshConfig, ModelConfig, RolloutConfig, SamplerConfig
from jaxrl_llm.fields import ConfigError
from jaxrl_llm.models import Model, live_attention, live_comparison, live_kernel
from jaxrl_llm.rollouts import decode_attention, decoding, engine, generate, numerics
from jaxrl_llm.rollouts.engine import EngineConfig
from jaxrl_llm.types import Sampling

MODEL = Model(ModelConfig(vocab_size=13, width=16, num_layers=1, num_heads=4, num_kv_heads=2,
                          head_dim=64, mlp_width=24))
PARAMS = jax.tree.map(lambda x: 4 * x if x.ndim > 1 else x, MODEL.init(jax.random.key(0)))
BLOCK = 16
SHAPES = {"whole": (4, 2, 128), "two side by side": (8, 4, 64), "eight": (8, 8, 16)}


def difference(shapes, dtype="float32"):
  live_comparison.difference.cache_clear()
  block = live_attention.block_of(BLOCK, jnp.dtype(dtype))
  return live_comparison.difference((*shapes, dtype), block, jax.devices()[0])


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("name", SHAPES)
def test_the_kernel_computes_attention_and_writes_the_new_token(name, dtype):
  """Unwritten columns, or their scales, hold NaN there; int8 against what it stands for."""
  assert difference(SHAPES[name], dtype) < 1e-6


@pytest.mark.slow
def test_in_bfloat16():
  assert 1e-4 < difference(SHAPES["two side by side"], "bfloat16") < live_comparison.LARGEST


real_rows, real_kernel = live_attention.live_rows, live_kernel.attend_and_write


def one_block_short(length, *rest):
  return real_rows(jnp.where(length > BLOCK, length - BLOCK, length), *rest)._replace(length=length)


def length_of_another_row(length, *rest):
  rows = real_rows(length, *rest)
  return rows._replace(length=jnp.roll(length, 1))


def without_the_new_token(queries, new, *rest):
  return real_kernel(queries, (new[0], 0 * new[1]), *rest)


WRONG = {"one block short": (live_attention, "live_rows", one_block_short),
         "another row's length": (live_attention, "live_rows", length_of_another_row),
         "no new token": (live_kernel, "attend_and_write", without_the_new_token)}


@pytest.mark.parametrize("name", WRONG)
def test_the_comparison_rejects(name, monkeypatch):
  monkeypatch.setattr(*WRONG[name])
  assert difference(SHAPES["whole"]) > live_comparison.LARGEST


real_scales = live_kernel._of_queries


def scales_of_the_column_before(scale, queries):
  return real_scales(jnp.roll(scale, 1, 2), queries)


def scales_of_another_head(scale, queries):
  return jnp.roll(real_scales(scale, queries), queries // 2, 1)


@pytest.mark.parametrize("wrong", [scales_of_the_column_before, scales_of_another_head])
def test_the_comparison_rejects_scales(wrong, monkeypatch):
  monkeypatch.setattr(live_kernel, "_of_queries", wrong)
  assert difference(SHAPES["two side by side"], "int8") > live_comparison.LARGEST


def run(kind, mesh=None, config=MODEL.config, **options):
  cfg = EngineConfig(**{"group_size": 4, "max_new_tokens": NEW, "slots": 8, "chunk": 8,
                        "stop_ids": (EOS,), "pad_id": 0, "attention": kind} | options)
  model = Model(config) if mesh is None else Model(config, parallel.Layout(mesh))
  rollout, stats = engine.run(PARAMS, prompts(), KEY, Sampling.of(1.0), model=model, cfg=cfg,
                              mesh=mesh)
  return jax.device_get(rollout), stats


@functools.cache
def reference():
  sampler = jax.jit(functools.partial(generate, model=MODEL,
                                      cfg=SamplerConfig(4, NEW, 32, (EOS,), 0)))
  return jax.device_get(sampler(PARAMS, prompts(), KEY, Sampling.of(1.0)))


def assert_same(got):
  np.testing.assert_array_equal(got.tokens, reference().tokens)
  np.testing.assert_allclose(got.behavior_log_probs, reference().behavior_log_probs, rtol=0,
                             atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"shared_prefix": True}], ids=str)
def test_the_engine_samples_what_generate_samples(options):
  got, stats = run("kernel", **options)
  assert_same(got)
  longest = 7 + NEW
  assert stats.cache_bytes_held < 2 * 2 * 64 * 4 * (8 * (longest + BLOCK) + 8 * 7) * 2


def four_devices():
  return parallel.make_mesh(MeshConfig(data=1, fsdp=2, tensor=2), jax.devices()[:4])


@pytest.mark.slow
def test_on_four_devices():
  assert_same(run("kernel", four_devices())[0])


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"shared_prefix": True}, {"mesh": True}], ids=str)
def test_with_int8_both_forms_sample_the_same(options):
  """Up to keys whose rounding to int8 differs; the policy is another one than without."""
  if "mesh" in options:
    options = {"mesh": four_devices()}
  config = numerics.rollout_model(MODEL, RolloutConfig(cache_dtype="int8")).config
  (kernel, stats), (windowed, _) = (run(kind, config=config, **options)
                                    for kind in ("kernel", "windowed"))
  same = np.cumprod(kernel.tokens == windowed.tokens, 1).astype(bool) & kernel.mask & windowed.mask
  assert same.sum() > 0.9 * kernel.mask.sum()

  def apart(other):
    return np.abs(kernel.behavior_log_probs - other.behavior_log_probs)[same].mean()

  assert apart(windowed) < 1e-3 < apart(reference())
  assert stats.cache_bytes_held % (64 + 4) == 0


def test_a_device_on_which_the_kernel_differs_goes_on_windowed(monkeypatch, caplog):
  live_comparison.difference.cache_clear()
  decoding.build.cache_clear()
  monkeypatch.setattr(live_attention, "live_rows", length_of_another_row)
  got, _ = run("kernel")
  assert_same(got)
  (line,) = [x.message for x in caplog.records if "decode_attention" in x.message]
  assert "differs from the reference" in line and "goes on windowed" in line
  live_comparison.difference.cache_clear()


def test_heads_that_fill_no_row_of_lanes():
  model = Model(ModelConfig(vocab_size=13, num_heads=2, num_kv_heads=1, head_dim=8))
  assert decode_attention.heads_side_by_side("auto", model, 64) == 0
  with pytest.raises(ConfigError, match=r"1 key-value heads of 8: .*decode_attention=auto"):
    decode_attention.heads_side_by_side("kernel", model, 64)
