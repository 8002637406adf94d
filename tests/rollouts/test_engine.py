"""The engine samples what `generate` samples, whatever its batch, chunks and refills.

Its counts are true.
"""

import dataclasses
import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_model
from suites import quick_of

from jaxrl_llm.config import SamplerConfig
from jaxrl_llm.fields import ConfigError
from jaxrl_llm.models import Model, row_cache
from jaxrl_llm.rollouts import chunk, decoding, engine, generate, hand_over, sizes
from jaxrl_llm.rollouts.engine import EngineConfig
from jaxrl_llm.rollouts.next_token import Draw
from jaxrl_llm.rollouts.rollout_table import RolloutTable
from jaxrl_llm.rollouts.slots import Slots, by_load
from jaxrl_llm.types import PromptBatch, Sampling

MODEL = small_model.network()
PARAMS = small_model.params_of(MODEL)
EOS, NEW, WIDTH = 3, 20, 7
KEY = jax.random.key(7)
ONE_PROGRAM = {"slots": 16, "refill": False, "compact": 0, "window": NEW}
EXACT = ("tokens", "mask", "length", "prompt_length", "truncated", "stop_reason", "policy_step",
         "row_id", "group_id")
prompts = functools.partial(small_model.prompts, rows=32, width=WIDTH)


def config(**options) -> EngineConfig:
  defaults = {"group_size": 4, "max_new_tokens": NEW, "slots": 8, "chunk": 8, "window": 16,
              "stop_ids": (EOS,), "pad_id": 0}
  return EngineConfig(**defaults | options)


def run(batch=None, sampling=None, *, model=MODEL, params=PARAMS, mesh=None, max_new=None,
        **options):
  sampling = sampling or Sampling.of(1.0)
  batch = prompts() if batch is None else batch
  with jax.transfer_guard("disallow"):  # what moves is moved on purpose
    rollout, stats = engine.run(params, batch, KEY, sampling, model=model, cfg=config(**options),
                                mesh=mesh, max_new=max_new)
  return jax.device_get(rollout), stats


@functools.cache
def sampler():
  return jax.jit(functools.partial(generate, model=MODEL, cfg=SamplerConfig(4, NEW, 32, (EOS,), 0)))


@functools.cache
def reference(temperature=1.0, **rules):
  return jax.device_get(sampler()(PARAMS, prompts(), KEY, Sampling.of(temperature, **rules)))


def assert_same(got, expected):
  for name in EXACT:
    np.testing.assert_array_equal(getattr(got, name), getattr(expected, name), err_msg=name)
  np.testing.assert_allclose(got.behavior_log_probs, expected.behavior_log_probs, rtol=0, atol=5e-5)
  kind = operator.attrgetter("dtype")
  assert jax.tree.map(kind, got) == jax.tree.map(kind, expected)


# Each value of chunk, slots, refill and compact meets each value of the others at least once.
LAYOUTS = [(1, 4, True, 1), (1, 16, False, 0), (1, 64, False, 2), (8, 4, False, 1),
           (8, 16, True, 0), (8, 64, True, 2), (32, 4, False, 0), (32, 16, True, 1),
           (32, 64, False, 0)]
QUICK = {"1-4-True-1", "1-16-False-0", "8-4-False-1", "8-16-True-0", "32-4-False-0"}


@pytest.mark.parametrize("chunk, slots, refill, compact", quick_of(
    QUICK, {"-".join(map(str, layout)): layout for layout in LAYOUTS}, slow={"32-16-True-1"}))
def test_equals_generate(chunk, slots, refill, compact):
  got, stats = run(chunk=chunk, slots=slots, refill=refill, compact=compact)
  assert_same(got, reference())
  assert 0 < got.truncated.sum() < 32, "the seed shows both ways to end"
  assert stats.useful_steps == got.mask.sum() <= stats.slot_steps


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"window": 20}, {"window": 5, "quota": 8},
                                     {"slots": 7, "quota": 1}, {"group_size": 8, "slots": 5}],
                         ids=str)
def test_window_quota_and_groups_change_nothing(options):
  batch = prompts()
  if options.get("group_size") == 8:  # two groups of 4 share the first one's prompt
    first = 8 * (np.arange(32) // 8)
    batch = batch.replace(tokens=batch.tokens[first], prompt_length=batch.prompt_length[first])
    expected = jax.device_get(sampler()(PARAMS, batch, KEY, Sampling.of(1.0)))
  else:
    expected = reference()
  assert_same(run(batch, **options)[0], expected)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"slots": 6, "chunk": 32},
                                     {"slots": 32, "group_size": 8, "refill": False},
                                     {"slots": 12, "refill": False, "compact": 0}], ids=str)
def test_shared_prompts_change_nothing(options):
  group = options.get("group_size", 4)
  batch = jax.tree.map(lambda x: x[np.arange(32) // group * group],
                       prompts()).replace(row_id=prompts().row_id, group_id=prompts().group_id)
  expected = jax.device_get(sampler()(PARAMS, batch, KEY, Sampling.of(1.0)))
  assert_same(run(batch, shared_prefix=True, **options)[0], expected)


RULES = [{"temperature": 0.0}, {"temperature": 0.6, "top_k": 3}, {"temperature": 1.3, "top_p": 0.7},
         {"temperature": 1.0, "min_p": 0.1}, {"temperature": 0.8, "logit_noise": 0.5},
         {"temperature": 1.7, "top_k": 6, "top_p": 0.95, "min_p": 0.02}]


@pytest.mark.slow
def test_rules_are_those_of_generate():
  for rules in RULES:
    assert_same(run(sampling=Sampling.of(**rules))[0], reference(**rules))


real_sample, real_put = chunk.sample_token, row_cache.put
real_window, real_prefix = row_cache.window, row_cache.prefix


def slot_keys(key, row_id):
  return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(len(row_id)))


def position_in_chunk(hidden, head, noise, *rest, **options):
  keys, position = noise
  return real_sample(hidden, head, (keys, position - position[0]), *rest, **options)


def put_a_column_late(old, new, to, source, column, count):
  return real_put(old, new, to, source, column + (new.shape[2] == 8), count)  # of a chunk only


def length_of_another_row(cache, rows, length, *rest):
  return real_window(cache, rows, jnp.roll(length, 1), *rest)


def prefix_of_another_group(prompts, length, rows, prompt, *rest):
  return real_prefix(prompts, length, rows, prompt[::-1], *rest)


def put_other_rows(old, new, to, source, column, count):
  return real_put(old, new, to, source[::-1], column, count)


WRONG = {
    "noise by slot": (chunk, "row_keys", slot_keys),
    "position not kept": (chunk, "sample_token", position_in_chunk),
    "columns of a chunk come late": (row_cache, "put", put_a_column_late),
    "another row's length": (row_cache, "window", length_of_another_row),
    "another group's prompt": (row_cache, "prefix", prefix_of_another_group),
    "prompts of other rows": (row_cache, "put", put_other_rows),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_the_comparison_rejects(name, monkeypatch):
  decoding.build.cache_clear()
  with monkeypatch.context() as patch:
    patch.setattr(*WRONG[name])
    got, _ = run(shared_prefix=name == "another group's prompt", **ONE_PROGRAM)
  decoding.build.cache_clear()
  with pytest.raises(AssertionError):
    assert_same(got, reference())


@pytest.mark.slow
def test_row_limits():
  """A row samples what it would without the limit, and is truncated there unless it stopped."""
  limit = np.random.default_rng(1).integers(1, NEW + 1, 32)
  got, plain = run(max_new=limit)[0], reference()
  new = plain.length - plain.prompt_length
  np.testing.assert_array_equal(got.length - got.prompt_length, np.minimum(new, limit))
  np.testing.assert_array_equal(got.truncated, plain.truncated | (new > limit))
  np.testing.assert_array_equal(got.tokens[got.mask], plain.tokens[got.mask])
  np.testing.assert_allclose(got.behavior_log_probs[got.mask], plain.behavior_log_probs[got.mask],
                             rtol=0, atol=1e-5)
  assert np.any(new < limit) and np.any(new > limit)
  assert np.all(got.tokens[~got.mask & plain.mask] == 0)


@pytest.mark.slow
def test_waste_is_small_where_many_rows_wait():
  """72 rows of mean / max 0.4 through 8 slots. Without refill, slots wait for the slowest row."""
  lengths = np.ceil(40 * ((np.arange(72) + 0.5) / 72)**1.5).astype(int)
  limit = np.random.default_rng(0).permutation(lengths)
  ragged = functools.partial(run, prompts(rows=72), max_new=limit, max_new_tokens=40,
                             stop_ids=(13,), window=24)
  _, stats = ragged()
  assert stats.useful_steps == limit.sum() and stats.slot_steps > stats.useful_steps
  assert stats.waste <= 0.10
  assert ragged(refill=False, compact=0)[1].waste > 0.30
  full_reads = stats.slot_steps * 64 * (WIDTH + 40)
  assert stats.cache_bytes_read < full_reads, "attention reads no further than the longest row"


@pytest.mark.parametrize(("slots", "compact", "rows", "shards", "expected"), [
    (64, 0, 64, 1, [64]), (64, 1, 64, 1, [64, 32, 16, 8]),
    (64, 2, 64, 1, [64, 48, 32, 24, 16, 12, 8]), (24, 1, 64, 1, [24, 16, 8, 4]),
    (24, 2, 64, 1, [24, 16, 12, 8, 6, 4, 3]), (64, 2, 64, 8, [64]),
    (64, 1, 5, 1, [5, 4, 2, 1])])
def test_batch_sizes(slots, compact, rows, shards, expected):
  assert sizes.batch_sizes(config(slots=slots, compact=compact), rows, shards) == expected


def long_prompts() -> PromptBatch:
  """8 prompts of 3 to 300 tokens, each on 4 rows; half of them are short."""
  short, rng = prompts(), np.random.default_rng(4)
  length = np.repeat([3, 290, 5, 130, 7, 300, 100, 4], 4).astype(np.int32)
  tokens = np.repeat(rng.integers(4, 13, (8, 300)), 4, 0).astype(np.int32)
  return PromptBatch(tokens, length, short.row_id, short.group_id)


@pytest.mark.slow
def test_long_prompts_are_prefilled_by_length():
  batch = long_prompts()
  table = RolloutTable(batch, np.full(32, NEW), config())
  slots = Slots(table, PARAMS, Draw(KEY, Sampling.of(1.0)), model=MODEL, cfg=config(slots=32),
                mesh=None)
  assert slots.admit() and slots.table.admitted == 32
  assert [(sorted(members), x.keys[0].shape[::2]) for members, x in slots._prefilled] == [
      ([0, 7], (2, 128)), ([2, 4], (2, 128)), ([3, 6], (2, 256)), ([1, 5], (2, 300))]
  expected = sampler()(PARAMS, batch, KEY, Sampling.of(1.0))
  for slots in (32, 8):  # the second time, short prompts take the slots of long ones
    got, _ = run(batch, slots=slots)
    np.testing.assert_array_equal(got.tokens, expected.tokens)


@pytest.mark.slow
def test_counts():
  got, stats = run(slots=32, refill=False, compact=0, window=NEW)
  new = got.length - got.prompt_length
  assert stats.slot_steps == 32 * new.max() and stats.chunks == -(-new.max() // 8) == 3
  slot = 2 * 1 * 1 * 8 * 4  # keys and values, layers, kv-heads, head_dim, bytes
  later = new.max() - 8  # steps after the first chunk, which read a window more
  assert stats.cache_bytes_read == slot * 32 * (new.max() * (WIDTH + 8) + later * NEW)
  assert stats.cache_bytes_held == slot * 32 * (WIDTH + NEW + 8)
  seen = [sum(range(n, n + k)) for n, k in zip(got.prompt_length, new, strict=True)]
  assert stats.cache_bytes_needed == slot * sum(seen)
  shared = run(slots=32, refill=False, compact=0, window=NEW, shared_prefix=True)[1]
  assert stats.cache_bytes_held - shared.cache_bytes_held == slot * WIDTH * (32 - 8)
  assert stats.cache_bytes_read - shared.cache_bytes_read == slot * new.max() * WIDTH * (32 - 8)


def most_programs(cfg: EngineConfig, rows: int, width: int = WIDTH) -> int:
  """Programs that runs compile at most: parameters, two of empty caches, and for each size."""
  widths = 1 if cfg.shared_prefix else len(sizes.prompt_widths(width))
  return 3 + 2 * widths + len(sizes.batch_sizes(cfg, rows)) * len(sizes.windows(cfg, width))


@pytest.mark.slow
def test_compiles_no_more_than_declared(compiled):
  """Ragged prompts, ragged ends, three temperatures; a second pass compiles nothing."""
  decoding.build.cache_clear()
  rng = np.random.default_rng(2)
  batches = [(prompts(seed=seed), rng.integers(1, NEW + 1, 32)) for seed in range(2)]
  samplings = [Sampling.of(t, min_p=0.01 * t) for t in (0.0, 0.7, 1.3)]
  compiled.clear()  # a Sampling compiles a conversion where JAX has dropped it from its cache

  def everything():
    for sampling in samplings:
      for batch, limit in batches:
        run(batch, sampling, max_new=limit)

  everything()
  first = dict(compiled)
  everything()
  ours = ("params", "prefill", "empty", "admit", "decode")
  assert set(first) <= {f"jit(rollout_{name})" for name in ours}
  assert 5 < sum(first.values()) <= most_programs(config(), 32)
  assert first == compiled, "every shape was met in the first pass"
  assert most_programs(config(), 32) < most_programs(config(window=4), 32)
  assert most_programs(config(), 32) < most_programs(config(), 32, 300)


@pytest.mark.slow
def test_stacked_blocks():
  """Scanned layers are laid out one by one, each with a cache of its own."""
  flat = Model(dataclasses.replace(MODEL.config, num_layers=2))
  params = jax.tree.map(lambda x: 8 * x if x.ndim > 1 else x, flat.init(jax.random.key(1)))
  blocks = jax.tree.map(lambda *x: jnp.stack(x), *(params["blocks"][i] for i in range(2)))
  stacked = Model(dataclasses.replace(flat.config, scan_layers=True))
  got, _ = run(model=stacked, params={**params, "blocks": blocks})
  plain = jax.jit(functools.partial(generate, model=flat, cfg=SamplerConfig(4, NEW, 32, (EOS,), 0)))
  expected = jax.device_get(plain(params, prompts(), KEY, Sampling.of(1.0)))
  np.testing.assert_array_equal(got.tokens, expected.tokens)
  np.testing.assert_allclose(got.behavior_log_probs, expected.behavior_log_probs, rtol=0, atol=5e-5)


@pytest.mark.slow
def test_matrices_are_cast_once():
  """What the network casts in every call is cast before; the results are equal bit for bit."""
  half = Model(dataclasses.replace(MODEL.config, compute_dtype="bfloat16"))
  model, params = hand_over.for_decoding(PARAMS, half)
  kinds = {x.dtype.name for x in jax.tree.leaves(params) if x.ndim > 1}
  assert kinds == {"bfloat16"} and params["final_norm"]["scale"].dtype == jnp.float32
  ids = prompts().tokens
  at = np.broadcast_to(np.arange(WIDTH), ids.shape)
  hidden = [np.asarray(m.hidden(p, ids, at, np.ones_like(ids))[0], np.float32)
            for m, p in ((half, PARAMS), (model, params))]
  np.testing.assert_array_equal(*hidden)


@pytest.mark.slow
def test_shapes_are_known_before():
  got, _ = run()
  declared = engine.rollout_shape(prompts(), config())
  kind = operator.attrgetter("shape", "dtype")
  assert jax.tree.map(kind, declared) == jax.tree.map(kind, got)


@pytest.mark.parametrize(("options", "message"), [
    ({"slots": 0}, "slots = 0"), ({"group_size": 5}, "group_size = 5"),
    ({"max_new": np.full(32, NEW + 1)}, "max_new"), ({"max_new": np.ones(3, int)}, r"\(3,\)"),
    ({"compact": -1}, "compact = -1"), ({"quota": -1}, "quota = -1")])
def test_bad_input(options, message):
  with pytest.raises(ConfigError, match=message):
    run(**options)


def loads(order, live, tokens, devices, new):
  """Tokens of each device once `new` rows of 5 tokens have the first slots of an order."""
  device = np.arange(len(live)) * devices // len(live)
  load = np.bincount(device[live], tokens[live], devices)
  return load + 5 * np.bincount(device[order[:new]], minlength=devices)


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_rows_enter_on_the_device_with_the_fewest_live_tokens(devices):
  rng = np.random.default_rng(devices)
  live, tokens = rng.random(16) < 0.4, rng.integers(0, 60, 16)
  order, by_number = by_load(live, tokens, devices, 5), np.flatnonzero(~live)
  np.testing.assert_array_equal(np.sort(order), by_number)
  for new in range(len(order)):
    before = loads(order, live, tokens, devices, new)
    taken = np.flatnonzero(loads(order, live, tokens, devices, new + 1) > before)
    full = [d for d in range(devices) if d not in order[new:] * devices // 16]
    assert before[taken[0]] == np.delete(before, full).min()
  if devices == 1:
    np.testing.assert_array_equal(order, by_number)
  else:
    assert loads(order, live, tokens, devices, 3).max() <= loads(by_number, live, tokens, devices,
                                                                 3).max()
    assert order.tolist() != by_number.tolist()
