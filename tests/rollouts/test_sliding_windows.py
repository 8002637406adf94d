"""Decoding where layers have a sliding window: what is read is the window, and nothing else."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suites import quick_of
from test_engine import EOS, KEY, NEW, WIDTH, prompts

from jaxrl_llm import parallel
from jaxrl_llm.config import MeshConfig, ModelConfig, SamplerConfig
from jaxrl_llm.models import Model, kv_cache, live_attention, live_comparison, row_cache
from jaxrl_llm.rollouts import decoding, engine, generate
from jaxrl_llm.rollouts.engine import EngineConfig
from jaxrl_llm.types import Sampling

WINDOW, LAYERS, CHUNK = 6, 3, 8
CONFIG = ModelConfig(vocab_size=13, width=16, num_layers=LAYERS, num_heads=4, num_kv_heads=2,
                     head_dim=64, mlp_width=24, window=WINDOW, full_layers=(1,))
MODEL = Model(CONFIG)
PARAMS = jax.tree.map(lambda x: 4 * x if x.ndim > 1 else x, MODEL.init(jax.random.key(0)))
BLOCK = live_attention.block_of(WIDTH + NEW, jnp.dtype("float32"))


def by_engine(attention, mesh=None, temperature=1.0, **options):
  cfg = EngineConfig(**{"group_size": 4, "max_new_tokens": NEW, "slots": 8, "chunk": CHUNK,
                        "window": 8, "stop_ids": (EOS,), "pad_id": 0, "attention": attention}
                     | options)
  model = MODEL if mesh is None else Model(CONFIG, parallel.Layout(mesh))
  rollout, stats = engine.run(PARAMS, prompts(), KEY, Sampling.of(temperature), model=model,
                              cfg=cfg, mesh=mesh)
  return jax.device_get(rollout), stats


@functools.cache
def generator(model):
  cfg = SamplerConfig(4, NEW, 8, (EOS,), 0)
  return jax.jit(functools.partial(generate, model=model, cfg=cfg))


def by_generate(temperature=1.0, model=MODEL, params=PARAMS):
  return jax.device_get(generator(model)(params, prompts(), KEY, Sampling.of(temperature)))


@functools.cache
def full_pass(model):
  return jax.jit(lambda params, *rows: jax.nn.log_softmax(
      model.hidden(params, *rows)[0] @ model.head(params)))


def scored(rollout, model=MODEL, params=PARAMS):
  """[B, L, V] by a full forward pass, which masks all pairs."""
  columns = np.arange(rollout.tokens.shape[1])
  segments = (columns < rollout.length[:, None]).astype(np.int32)
  columns = np.broadcast_to(columns, segments.shape)
  return np.asarray(full_pass(model)(params, rollout.tokens, columns, segments))


def largest_difference(rollout, *network) -> float:
  """Of the sampler's log-probs from the full pass'."""
  log_probs = scored(rollout, *network)[:, :-1]
  of_next = np.take_along_axis(log_probs, rollout.tokens[:, 1:, None], -1)[..., 0]
  mask = rollout.mask[:, 1:]
  assert (rollout.length > WIDTH + 2 * WINDOW).sum() > 4, "rows are longer than their windows"
  return float(np.abs(rollout.behavior_log_probs[:, 1:] - of_next)[mask].max())


SAMPLERS = {
    "generate": by_generate,
    "windowed": functools.partial(by_engine, "windowed"),
    "windowed, shared prompts": functools.partial(by_engine, "windowed", shared_prefix=True),
    "windowed, one chunk": functools.partial(by_engine, "windowed", chunk=NEW, slots=5),
    "kernel": functools.partial(by_engine, "kernel"),
    "kernel, shared prompts": functools.partial(by_engine, "kernel", shared_prefix=True),
}


def rollout_of(sampled):
  return sampled[0] if isinstance(sampled, tuple) else sampled


@pytest.mark.parametrize("sample", quick_of(
    {"generate", "windowed", "kernel, shared prompts"}, {k: (v,) for k, v in SAMPLERS.items()}))
def test_each_token_sees_what_the_full_pass_sees(sample):
  """Its log-prob is that of the full pass, and without noise it is the pass' most likely one."""
  assert largest_difference(rollout_of(sample())) < 1e-5
  rollout = rollout_of(sample(temperature=0.0))
  best = scored(rollout)[:, :-1].argmax(-1)
  mask = rollout.mask[:, 1:]
  assert mask.sum() > 100
  np.testing.assert_array_equal(rollout.tokens[:, 1:][mask], best[mask])


def test_stacked_layers_with_a_window():
  model = Model(dataclasses.replace(CONFIG, full_layers=(), scan_layers=True))
  params = jax.tree.map(lambda x: 4 * x, model.init(jax.random.key(0)))
  assert largest_difference(by_generate(model=model, params=params), model, params) < 4e-5


@pytest.mark.parametrize("attention", [
    pytest.param("windowed", marks=pytest.mark.nightly),
    pytest.param("kernel", marks=pytest.mark.slow)])
def test_on_four_devices(attention):
  mesh = parallel.make_mesh(MeshConfig(data=1, fsdp=2, tensor=2), jax.devices()[:4])
  alone, _ = by_engine(attention)
  together, _ = by_engine(attention, mesh)
  np.testing.assert_array_equal(together.tokens, alone.tokens)
  assert largest_difference(together) < 1e-5


real_earlier, real_rows = kv_cache.earlier, live_attention.live_rows


def one_column_short(slots, window):
  return real_earlier(slots, window - 1 if window else window)


def rows_of_a_window(change):
  def live_rows(length, keys, constrain, window=0):
    return real_rows(length, keys, constrain, window + change if window else window)

  return live_rows


WRONG = {
    "generate, a column short": ("generate", (kv_cache, "earlier", one_column_short)),
    "windowed, a column short": ("windowed", (kv_cache, "earlier", one_column_short)),
    "shared, a column short": ("windowed, shared prompts",
                               (kv_cache, "earlier", one_column_short)),
    "kernel, a column short": ("kernel", (live_attention, "live_rows", rows_of_a_window(-1))),
    "kernel, a column long": ("kernel", (live_attention, "live_rows", rows_of_a_window(1))),
}


def forget_programs():
  decoding.build.cache_clear()
  generator.cache_clear()


@pytest.fixture
def traced_again():
  forget_programs()
  yield
  forget_programs()


@pytest.mark.parametrize("sampler, wrong", quick_of(
    {"windowed, a column short", "kernel, a column long"}, WRONG,
    slow=("shared, a column short",)))
def test_another_window_is_rejected(sampler, wrong, monkeypatch, traced_again):
  monkeypatch.setattr(live_comparison, "difference", lambda *_: 0.0)  # it would see this, too
  monkeypatch.setattr(*wrong)
  assert largest_difference(rollout_of(SAMPLERS[sampler]())) > 1e-3


def difference(window: int, block: int = BLOCK) -> float:
  live_comparison.difference.cache_clear()
  return live_comparison.difference((4, 2, 128, "float32"), block, jax.devices()[0], window)


@pytest.mark.parametrize("window", [1, 5, BLOCK // 2 + 3, BLOCK, BLOCK + 1, 2 * BLOCK])
def test_the_kernel_s_comparison_sees_windows(window, monkeypatch):
  assert difference(window) < 4e-6
  monkeypatch.setattr(live_attention, "live_rows", rows_of_a_window(1))
  assert (difference(window) > live_comparison.LARGEST) == (window < 2 * BLOCK)
  live_comparison.difference.cache_clear()


def test_a_layer_has_the_slots_of_its_window():
  """And without one, those of all columns; the columns come back in their order."""
  columns, more, length = 40, CHUNK, jnp.asarray([3, 40, 17])
  cache = row_cache.empty(CONFIG, 3, columns + more)
  numbered = jax.tree.map(lambda x: x + jnp.arange(columns + more)[:, None], cache)
  windows = kv_cache.windows(CONFIG)
  copied = row_cache.window(numbered, None, length, length, columns, more, windows)
  assert [x.shape[-1] for x in copied.keys] == [WINDOW - 1 + more, columns + more,
                                                WINDOW - 1 + more]
  np.testing.assert_array_equal(copied.keys[0][:, 0, 0, :WINDOW - 1],
                                [[0, 0, 0, 1, 2], [35, 36, 37, 38, 39], [12, 13, 14, 15, 16]])
  seen = np.asarray(copied.segments) > 0
  np.testing.assert_array_equal(seen.sum(1), length)
  for row in range(3):
    np.testing.assert_array_equal(copied.keys[1][row, 0, 0][seen[row]], np.arange(length[row]))
    np.testing.assert_array_equal(copied.positions[row][seen[row]], np.arange(length[row]))
  without = row_cache.window(numbered, None, length, length, columns, more, (0,) * LAYERS)
  assert {x.shape[-1] for x in without.keys} == {columns + more}


def test_what_is_read_is_counted():
  """By window, in whole blocks of the kernel, or with the room of a chunk."""
  (_, windowed), (rollout, kernel) = by_engine("windowed"), by_engine("kernel")
  per_layer = kv_cache.column_bytes(CONFIG) // LAYERS
  full = int(rollout.mask.sum()) * (WIDTH + NEW) * 3 * per_layer
  assert windowed.cache_bytes_needed == kernel.cache_bytes_needed < full
  read, steps = windowed.cache_bytes_read, windowed.slot_steps * per_layer
  assert read <= steps * (2 * (WINDOW - 1 + CHUNK) + WIDTH + NEW + CHUNK)
  assert read > steps * 2 * (WINDOW - 1 + CHUNK)
