"""The sampler's promises: what it reports is what it drew, and a row depends on nothing but itself."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxrl_llm.config import ModelConfig, SamplerConfig, StepConfig
from jaxrl_llm.models import Model
from jaxrl_llm.rollouts import generate
from jaxrl_llm.training.score import score
from jaxrl_llm.types import STOP_LENGTH, STOP_TOKEN, PromptBatch, Sampling

MODEL = Model(ModelConfig(vocab_size=13, width=16, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=8, mlp_width=24))
PARAMS = jax.tree.map(lambda x: 8 * x if x.ndim > 1 else x, MODEL.init(jax.random.key(0)))  # far from uniform
EOS = 3
NEAR_TIE = 1e-4


def prompts(rows=16, group=4, width=7, first_row=0, seed=0):
  rng = np.random.default_rng(seed)
  length = rng.integers(1, width + 1, rows // group)
  tokens = rng.integers(4, 13, (rows // group, width))
  return PromptBatch(jnp.asarray(np.repeat(tokens, group, 0), jnp.int32),
                     jnp.asarray(np.repeat(length, group), jnp.int32),
                     jnp.arange(first_row, first_row + rows, dtype=jnp.int32),
                     jnp.asarray(np.arange(rows) // group, jnp.int32))


@functools.cache
def sampler(**options):
  cfg = SamplerConfig(**{"group_size": 4, "max_new_tokens": 9, "window": 4, "stop_ids": (EOS,), "pad_id": 0, **options})
  return jax.jit(functools.partial(generate, model=MODEL, cfg=cfg))


@functools.cache
def scorer():
  return jax.jit(functools.partial(score, model=MODEL, cfg=StepConfig(), stats=frozenset({"entropy"})))


def at(temperature):
  return Sampling(jnp.float32(temperature))


KEY = jax.random.key(7)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_behavior_log_probs_equal_the_scorers(temperature):
  rollout = sampler()(PARAMS, prompts(), KEY, at(temperature))
  scored = scorer()(PARAMS, rollout, at(temperature)).log_probs
  assert np.max(np.abs(np.where(rollout.mask, scored - rollout.behavior_log_probs, 0))) < 1e-5
  assert np.all(rollout.behavior_log_probs[~rollout.mask] == 0)
  other = scorer()(PARAMS, rollout, at(temperature + 0.5)).log_probs
  assert np.max(np.abs(np.where(rollout.mask, other - rollout.behavior_log_probs, 0))) > 1e-2, "temperature matters"


def flips(a, b):
  """Rows whose tokens differ; each must begin at a near tie of the two best perturbed logits."""
  rows = np.flatnonzero(np.any(np.asarray(a.tokens != b.tokens), 1))
  for row in rows:
    first = int(np.argmax(np.asarray(a.tokens[row] != b.tokens[row])))
    assert _gap(a, row, first) < NEAR_TIE, f"row {row} differs at {first}, not at a near tie"
  return len(rows)


def _gap(rollout, row, position):
  """Distance between the two best perturbed logits of a drawn token."""
  ids = rollout.tokens[row:row + 1, :position]
  hidden, _ = MODEL.hidden(PARAMS, ids, jnp.arange(position)[None], jnp.ones_like(ids))
  logits = (hidden[0, -1] @ MODEL.head(PARAMS))
  key = jax.random.fold_in(jax.random.fold_in(KEY, rollout.row_id[row]), position)
  best = np.sort(np.asarray(logits + jax.random.gumbel(key, logits.shape, jnp.float32)))
  return best[-1] - best[-2]


def test_a_row_depends_on_nothing_but_itself():
  """Position in the batch, other rows, group size and window do not change a row's tokens."""
  batch = prompts(rows=32)
  whole = sampler()(PARAMS, batch, KEY, at(1.0))
  order = np.random.default_rng(0).permutation(8)
  rows = (4 * order[:, None] + np.arange(4)).reshape(-1)
  moved = sampler()(PARAMS, jax.tree.map(lambda x: x[rows], batch), KEY, at(1.0))
  count = flips(jax.tree.map(lambda x: x[rows], whole), moved)
  half = sampler()(PARAMS, jax.tree.map(lambda x: x[8:24], batch), KEY, at(1.0))
  count += flips(jax.tree.map(lambda x: x[8:24], whole), half)
  count += flips(whole, sampler(group_size=1)(PARAMS, batch, KEY, at(1.0)))
  count += flips(whole, sampler(window=9)(PARAMS, batch, KEY, at(1.0)))
  assert count == 0, f"{count} rows flipped at near ties on this seed"
  other = sampler()(PARAMS, batch.replace(row_id=batch.row_id + 100), KEY, at(1.0))
  assert np.any(other.tokens != whole.tokens), "the row id seeds the noise"


def test_eight_devices_draw_the_same():
  batch = prompts(rows=32)
  one = sampler()(PARAMS, batch, KEY, at(1.0))
  rows = NamedSharding(Mesh(np.array(jax.devices()[:8]), ("data",)), PartitionSpec("data"))
  eight = sampler()(PARAMS, jax.device_put(batch, rows), KEY, at(1.0))
  assert len(eight.tokens.sharding.device_set) == 8
  assert flips(one, jax.device_get(eight)) == 0


def test_row_layout():
  """Prompt and completion contiguous, mask exactly on sampled tokens, padding behind; EOS inside the mask."""
  batch = prompts(rows=32)
  rollout = jax.device_get(sampler()(PARAMS, batch, KEY, at(1.0)))
  ended = 0
  for row in range(32):
    start, end = int(rollout.prompt_length[row]), int(rollout.length[row])
    np.testing.assert_array_equal(rollout.tokens[row, :start], batch.tokens[row, :start])
    np.testing.assert_array_equal(np.flatnonzero(rollout.mask[row]), np.arange(start, end))
    assert np.all(rollout.tokens[row, end:] == 0)
    completion = rollout.tokens[row, start:end].tolist()
    stopped = completion[-1] == EOS
    assert EOS not in completion[:-1]
    assert rollout.truncated[row] == (not stopped)
    assert rollout.stop_reason[row] == (STOP_TOKEN if stopped else STOP_LENGTH)
    assert stopped or len(completion) == 9
    ended += stopped
  assert 0 < ended < 32, "the seed shows both ways to end"


def test_eos_is_inside_the_mask_when_pad_is_the_same_token():
  plain = jax.device_get(sampler()(PARAMS, prompts(), KEY, at(1.0)))
  shared = jax.device_get(sampler(pad_id=EOS)(PARAMS, prompts(), KEY, at(1.0)))
  np.testing.assert_array_equal(shared.mask, plain.mask)
  np.testing.assert_array_equal(shared.truncated, plain.truncated)
  last = shared.tokens[np.arange(16), shared.length - 1]
  assert np.array_equal(last == EOS, ~shared.truncated) and not np.all(shared.truncated)


def test_last_possible_token_can_be_eos():
  """A stop token drawn at the length limit ends the row; the limit did not."""
  reference = jax.device_get(sampler()(PARAMS, prompts(rows=32), KEY, at(1.0)))
  new = reference.length - reference.prompt_length
  at_limit = int(np.max(new[~reference.truncated]))
  rollout = jax.device_get(sampler(max_new_tokens=at_limit)(PARAMS, prompts(rows=32), KEY, at(1.0)))
  exactly = (new == at_limit) & ~reference.truncated
  assert exactly.any() and not rollout.truncated[exactly].any()
  assert rollout.truncated[new > at_limit].all()


def test_greedy_is_the_arg_max():
  rollout = jax.device_get(sampler()(PARAMS, prompts(), KEY, at(0.0)))
  assert np.all(rollout.behavior_log_probs == 0)
  for row in range(0, 16, 4):
    ids = jnp.asarray(rollout.tokens[row:row + 1, :rollout.length[row]])
    hidden, _ = MODEL.hidden(PARAMS, ids, jnp.arange(ids.shape[1])[None], jnp.ones_like(ids))
    best = np.asarray(jnp.argmax(hidden[0] @ MODEL.head(PARAMS), -1))
    start = rollout.prompt_length[row]
    np.testing.assert_array_equal(rollout.tokens[row, start:rollout.length[row]], best[start - 1:-1])
    np.testing.assert_array_equal(rollout.tokens[row], rollout.tokens[row + 1], err_msg="a group shares its arg max")


def test_frequencies_match_the_reported_probabilities():
  """First tokens of 4096 rows of one prompt against exp of their reported log-probs (chi-square, 12 degrees)."""
  rows = 4096
  batch = jax.tree.map(lambda x: jnp.repeat(x[:1], rows, 0), prompts())
  batch = batch.replace(row_id=jnp.arange(rows, dtype=jnp.int32))
  rollout = jax.device_get(sampler(group_size=rows, max_new_tokens=1)(PARAMS, batch, KEY, at(1.3)))
  start = int(rollout.prompt_length[0])
  tokens, log_probs = rollout.tokens[:, start], rollout.behavior_log_probs[:, start]
  stated = {int(t): float(np.exp(log_probs[tokens == t][0])) for t in np.unique(tokens)}
  assert sum(stated.values()) <= 1 + 1e-5
  likely = {t: p for t, p in stated.items() if p * rows >= 5}
  statistic = sum((np.sum(tokens == t) - rows * p) ** 2 / (rows * p) for t, p in likely.items())
  assert statistic < 32.9, "0.1 % point of chi-square with 12 degrees of freedom"


def test_temperature_is_traced():
  traces = []

  def counted(*arguments):
    traces.append(1)
    return generate(*arguments, model=MODEL, cfg=SamplerConfig(4, 5, 5, (EOS,), 0))

  run = jax.jit(counted)
  drawn = [np.asarray(run(PARAMS, prompts(), KEY, at(temperature)).tokens) for temperature in (0.0, 0.7, 1.0)]
  assert len(traces) == 1
  assert np.any(drawn[0] != drawn[1]) and np.any(drawn[1] != drawn[2])
