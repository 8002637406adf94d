"""A rollout's own numerics: what is rounded and how, nothing else, and that the gap shows."""

import dataclasses
import functools
import operator
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_model
from flax.traverse_util import flatten_dict

from jaxrl_llm.config import (
  ConfigError,
  ParametersConfig,
  RolloutConfig,
  SamplerConfig,
  StepConfig,
)
from jaxrl_llm.models import Model, kv_cache, trainable
from jaxrl_llm.models.attention import attend
from jaxrl_llm.objective.mismatch import mismatch_metrics
from jaxrl_llm.reporting.summary import summarize
from jaxrl_llm.rollouts import engine, generate, numerics
from jaxrl_llm.training.score import score
from jaxrl_llm.types import Sampling

MODEL = small_model.network(num_layers=2)
PARAMS = small_model.params_of(MODEL)
KEY, NEW, SAMPLING = jax.random.key(7), 9, Sampling.of(1.0)
INT8 = RolloutConfig(quantization="int8")


def variant(**options) -> Model:
  return dataclasses.replace(MODEL, config=dataclasses.replace(MODEL.config, **options))


# --- rounding


def check_rounding(rounded):
  """Each channel is within half its own scale; channels are of very different sizes."""
  for shape, contracted, produced in (((6, 3, 4), 1, 2), ((3, 4, 6), 2, 1), ((2, 6, 5), 1, 1),
                                      ((2, 3, 6, 5), 1, 1)):
    matrix = np.asarray(jax.random.normal(jax.random.key(1), shape))
    matrix = matrix * np.logspace(-3, 0, shape[-1], dtype=np.float32)
    matrix[..., 1] = 0
    axes = tuple(range(len(shape) - contracted - produced, len(shape) - produced))
    scale = np.abs(matrix).max(axes, keepdims=True) / 127.5
    values = np.asarray(rounded(jnp.asarray(matrix), contracted, produced))
    assert np.all(np.abs(values - matrix) <= 0.5001 * scale)
    assert np.abs(values - matrix).max() > 0.3 * scale.max()  # something was rounded
    levels = values / np.where(scale == 0, 1, scale)
    np.testing.assert_allclose(levels, np.round(levels), atol=1e-4)
    assert -128 <= np.round(levels).min() and np.round(levels).max() == 127


def test_int8_error_is_at_most_half_a_scale():
  check_rounding(numerics.round_int8)


def shared_scales(x, contracted, produced):
  return numerics.round_int8(x, x.ndim - 1, 1) if x.ndim > 2 else x


def coarser_values(x, contracted, produced):
  return numerics.round_int8(x.astype(jnp.bfloat16), contracted, produced)


def no_rounding(x, contracted, produced):
  return x


@pytest.mark.parametrize("wrong", [shared_scales, coarser_values, no_rounding])
def test_the_rounding_check_rejects(wrong):
  with pytest.raises(AssertionError):
    check_rounding(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"scan_layers": True},
                                     {"num_experts": 3, "expert_width": 12}],
                         ids=["dense", "scan", "experts"])
def test_only_attention_and_mlp_matrices_are_rounded(options):
  model = variant(tie_head=False, qkv_bias=True, value_head=True, **options)
  params = model.init(jax.random.key(0))
  before, after = flatten_dict(params), flatten_dict(rounded(model, params))
  changed = {keys for keys in before if np.any(before[keys] != after[keys])}
  matrices = ("query", "key", "value", "out", "gate", "up", "down")
  assert changed == {
      keys for keys in before
      if keys[0] == "blocks" and keys[-2] in ("attention", "mlp") and keys[-1] in matrices
  }
  assert len(changed) == 7 * (1 if model.config.scan_layers else 2)


def rounded(model, params):
  return numerics.rollout_numerics(model, params, INT8)[1]


@pytest.mark.slow
def test_scanned_and_expert_matrices_have_scales_of_their_own():
  """Stacked layers are rounded as they would be one by one; so are experts."""
  scanned = variant(scan_layers=True)
  params = scanned.init(jax.random.key(0))
  params["blocks"] = jax.tree.map(lambda x: x.at[1].multiply(50), params["blocks"])
  blocks = {i: jax.tree.map(operator.itemgetter(i), params["blocks"]) for i in range(2)}
  stacked = rounded(scanned, params)["blocks"]
  listed = rounded(MODEL, {**params, "blocks": blocks})["blocks"]
  jax.tree.map(lambda x, *layers: np.testing.assert_array_equal(x, np.stack(layers)), stacked,
               listed[0], listed[1])
  experts = variant(num_experts=3, expert_width=12)
  params = experts.init(jax.random.key(0))
  gate = params["blocks"][0]["mlp"]["gate"]
  matrices = rounded(experts, params)["blocks"][0]["mlp"]["gate"]
  for expert in range(3):
    np.testing.assert_array_equal(matrices[expert], numerics.round_int8(gate[expert], 1, 1))


def test_adapters_are_merged_before_the_rounding():
  cfg = ParametersConfig(train="lora", lora_rank=2)
  trained, frozen = trainable.split(PARAMS, cfg, jax.random.key(3))
  trained = jax.tree.map(lambda x: x + 0.1, trained)
  merged = trainable.merge(trained, frozen, cfg)
  matrix = numerics.rollout_numerics(MODEL, merged, INT8)[1]["blocks"][1]["mlp"]["up"]
  adapter, base = trained["lora"]["blocks"][1]["mlp"]["up"], PARAMS["blocks"][1]["mlp"]["up"]
  delta = cfg.lora_alpha / cfg.lora_rank * adapter["a"] @ adapter["b"]
  scale = np.abs(base + delta).max(0) / 127.5

  def off_level(x):
    return np.abs(x / scale - np.round(x / scale)).max()

  assert np.all(np.abs(matrix - (base + delta)) <= 0.501 * scale) and off_level(matrix) < 1e-3
  # the adapter beside a rounded base
  assert off_level(numerics.round_int8(base, 1, 1) + delta) > 0.1


def test_bfloat16_casts_what_the_network_reads_in_it():
  model, params = numerics.rollout_numerics(
      variant(num_experts=3, expert_width=12, value_head=True),
      variant(num_experts=3, expert_width=12, value_head=True).init(KEY),
      RolloutConfig(dtype="bfloat16"))
  assert model.config.compute_dtype == "bfloat16"
  full = {keys for keys, x in flatten_dict(params).items() if x.dtype == jnp.float32}
  assert {keys[-1] for keys in full} == {"scale", "router", "value_head"}


def test_defaults_change_nothing():
  """The very same objects, hence the very same programs."""
  for cfg in (RolloutConfig(), RolloutConfig(dtype="float32", cache_dtype="float32")):
    assert numerics.rollout_numerics(MODEL, PARAMS, cfg) == (MODEL, PARAMS)
    model, params = numerics.rollout_numerics(MODEL, PARAMS, cfg)
    assert model is MODEL and params is PARAMS and not numerics.changes_params(MODEL, cfg)
  model, params = numerics.rollout_numerics(MODEL, PARAMS, RolloutConfig(cache_dtype="bfloat16"))
  assert params is PARAMS and model != MODEL


def test_a_missing_library_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, "qwix", None)
  with pytest.raises(ConfigError, match=r"rollout.quantization = 'int8'.*\[quantization\]"):
    numerics.resolve(INT8, MODEL.config)
  assert numerics.resolve(RolloutConfig(), MODEL.config).cache_dtype == "float32"


# --- attention over a cache in another dtype


@pytest.mark.parametrize("dtype, cached", [
    (jnp.float32, jnp.bfloat16), (jnp.bfloat16, jnp.float32)])
def test_attention_multiplies_in_the_wider_dtype(dtype, cached):
  make = lambda i, shape: jax.random.normal(jax.random.key(i), shape)
  queries, visible = make(0, (2, 3, 4, 8)).astype(dtype), jnp.ones((2, 3, 5), bool)
  keys, values = make(1, (2, 2, 8, 5)).astype(cached), make(2, (2, 2, 5, 8)).astype(cached)
  outputs = attend(queries, keys, values, visible)
  full = attend(*(x.astype(jnp.float32) for x in (queries, keys, values)), visible)
  assert outputs.dtype == dtype
  np.testing.assert_allclose(outputs.astype(jnp.float32), full,
                             atol=1e-6 if dtype == jnp.float32 else 2e-2)
  narrow = attend(queries.astype(jnp.bfloat16), keys.astype(jnp.bfloat16),
                  values.astype(jnp.bfloat16), visible)
  assert np.abs(narrow - full).max() > 1e-3


def multiplied_out(x):
  return x.values * x.scale


def test_attention_over_int8_is_that_over_what_it_stands_for():
  """In the dtype of the queries; scales of another head or column are no longer near it."""
  make = lambda i, shape: jax.random.normal(jax.random.key(i), shape)
  queries, visible = make(0, (2, 3, 4, 8)), jnp.ones((2, 3, 5), bool)
  full = make(1, (2, 2, 8, 5)), make(2, (2, 2, 5, 8))
  keys, values = kv_cache.held(full[0], jnp.int8, 2), kv_cache.held(full[1], jnp.int8, 3)
  for x, wide in zip((keys, values), full, strict=True):
    assert np.abs(multiplied_out(x) - wide).max() <= 0.501 * x.scale.max()
  outputs = attend(queries, keys, values, visible)
  expected = attend(queries, multiplied_out(keys), multiplied_out(values), visible)
  np.testing.assert_allclose(outputs, expected, atol=1e-6)
  assert np.abs(expected - attend(queries, *full, visible)).max() > 1e-3
  for axis in (1, 3):
    wrong = keys.replace(scale=jnp.roll(keys.scale, 1, axis))
    assert np.abs(attend(queries, wrong, values, visible) - expected).max() > 1e-2
    wrong = values.replace(scale=jnp.roll(values.scale, 1, axis - axis // 3))
    assert np.abs(attend(queries, keys, wrong, visible) - expected).max() > 1e-2


def test_the_bytes_of_a_column_are_those_of_the_cache():
  config = numerics.rollout_model(MODEL, RolloutConfig(cache_dtype="int8")).config
  cache = jax.eval_shape(lambda: kv_cache.empty(config, 3, 5))
  counted = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves((cache.keys, cache.values)))
  assert counted == 3 * 5 * kv_cache.column_bytes(config)


def test_cache_dtype_survives_a_change_of_the_config():
  config = numerics.rollout_model(variant(scan_layers=True),
                                  RolloutConfig(cache_dtype="bfloat16")).config
  plain = dataclasses.replace(config, scan_layers=False)  # as decoding does
  assert kv_cache.empty(plain, 2, 3).keys[0].dtype == kv_cache.dtype(plain) == jnp.bfloat16
  assert kv_cache.empty(MODEL.config, 2, 3).keys[0].dtype == jnp.float32


# --- through both samplers


@functools.cache
def scorer(model):
  return jax.jit(functools.partial(score, model=model, cfg=StepConfig()))


def sampled(cfg: RolloutConfig, model=MODEL, params=PARAMS):
  model, params = numerics.rollout_numerics(model, params, cfg)
  if cfg.slots:
    sizes = engine.EngineConfig(4, NEW, NEW + 3, (3,), 0, slots=cfg.slots, chunk=4, compact=0,
                                shared_prefix=cfg.shared_prefix)
    rollout, _ = engine.run(params, small_model.prompts(), KEY, SAMPLING, model=model, cfg=sizes)
    return jax.device_get(rollout)
  run = jax.jit(functools.partial(generate, model=model, cfg=SamplerConfig(4, NEW, NEW, (3,), 0)))
  return jax.device_get(run(params, small_model.prompts(), KEY, SAMPLING))


def gap(rollout, model=MODEL, params=PARAMS) -> dict[str, float]:
  """The meter, with the parameters and the numerics of the trainer."""
  log_probs = scorer(model)(params, rollout, SAMPLING).log_probs
  metrics = mismatch_metrics(log_probs, jnp.asarray(rollout.behavior_log_probs),
                             jnp.asarray(rollout.mask))
  return summarize(jax.device_get(metrics))


@pytest.mark.slow
@pytest.mark.parametrize("slots", [0, 8], ids=["generate", "engine"])
def test_equal_numerics_leave_no_gap(slots):
  numbers = gap(sampled(RolloutConfig(slots=slots)))
  assert max(abs(numbers["mismatch/range/min"]), numbers["mismatch/range/max"]) < 1e-5
  assert numbers["mismatch/outside"] == 0 and numbers["mismatch/k3"] < 1e-9


GAPS = {
    "bf16": {"dtype": "bfloat16"},
    "cache": {"cache_dtype": "bfloat16"},
    "int8 cache": {"cache_dtype": "int8"},
    "int8": {"quantization": "int8"},
    "wide cache": {"dtype": "bfloat16", "cache_dtype": "float32"},
}


@pytest.mark.slow
@pytest.mark.parametrize("options", GAPS.values(), ids=GAPS)
def test_other_numerics_leave_one(options):
  numbers = gap(sampled(RolloutConfig(**options)))
  assert numbers["mismatch/absolute"] > 1e-4
  assert numbers["mismatch/k3"] > 1e-7


@pytest.mark.slow
@pytest.mark.parametrize("options", [
    {"quantization": "int8", "dtype": "bfloat16", "cache_dtype": "float32"},
    {"cache_dtype": "bfloat16", "shared_prefix": True},
    {"cache_dtype": "int8", "shared_prefix": True}, {"cache_dtype": "int8"}],
                         ids=["int8", "shared", "shared int8 cache", "int8 cache"])
def test_the_engine_samples_in_the_same_numerics(options):
  """For equal tokens, its log-probs are far nearer to `generate`'s than the trainer's are."""
  one = sampled(RolloutConfig(**options | {"shared_prefix": False}))
  other = sampled(RolloutConfig(slots=8, **options))
  same = np.cumprod(one.tokens == other.tokens, 1).astype(bool) & one.mask & other.mask
  assert same.sum() > 0.5 * one.mask.sum()
  between = np.abs(one.behavior_log_probs - other.behavior_log_probs)[same].mean()
  assert gap(other)["mismatch/absolute"] > 1e-4
  assert between < 0.5 * gap(other)["mismatch/absolute"]


@pytest.mark.slow
def test_scanned_experts_sample_in_other_numerics():
  model = variant(num_experts=3, expert_width=12, scan_layers=True)
  params = jax.tree.map(lambda x: 4 * x if x.ndim > 2 else x, model.init(jax.random.key(0)))
  rollout = sampled(RolloutConfig(dtype="bfloat16", cache_dtype="float32", quantization="int8"),
                    model, params)
  assert gap(rollout, model, params)["mismatch/absolute"] > 1e-4
