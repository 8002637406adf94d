"""The sampler's promises: it reports what it sampled, and a row depends on nothing but itself."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_model
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxrl_llm.config import SamplerConfig, StepConfig
from jaxrl_llm.ops import token_stats
from jaxrl_llm.rollouts import generate
from jaxrl_llm.rollouts.next_token import first_arg_max, sample_token
from jaxrl_llm.training.score import score
from jaxrl_llm.types import STOP_LENGTH, STOP_TOKEN, Sampling

MODEL = small_model.network(num_layers=2)
PARAMS = small_model.params_of(MODEL)
EOS = 3
prompts = functools.partial(small_model.prompts, width=7)


@functools.cache
def sampler(**options):
  defaults = {"group_size": 4, "max_new_tokens": 9, "window": 4, "stop_ids": (EOS,), "pad_id": 0}
  cfg = SamplerConfig(**defaults | options)
  return jax.jit(functools.partial(generate, model=MODEL, cfg=cfg))


@functools.cache
def scorer():
  return jax.jit(
      functools.partial(score, model=MODEL, cfg=StepConfig(), stats=frozenset({"entropy"})))


def at(temperature):
  return Sampling(jnp.float32(temperature))


KEY = jax.random.key(7)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_behavior_log_probs_equal_the_scorers(temperature):
  rollout = sampler()(PARAMS, prompts(), KEY, at(temperature))
  scored = scorer()(PARAMS, rollout, at(temperature)).log_probs
  assert gap(rollout, scored) < 1e-5
  assert np.all(rollout.behavior_log_probs[~rollout.mask] == 0)
  other = scorer()(PARAMS, rollout, at(temperature + 0.5)).log_probs
  assert gap(rollout, other) > 1e-2, "temperature matters"


def gap(rollout, log_probs):
  """Largest distance of the reported log-probs from these, on sampled tokens."""
  return np.max(np.abs(np.where(rollout.mask, log_probs - rollout.behavior_log_probs, 0)))


@pytest.mark.slow
def test_a_row_depends_on_nothing_but_itself():
  """Position in the batch, other rows, group size and window do not change a row's tokens."""
  batch = prompts(rows=32)
  expected = sampler()(PARAMS, batch, KEY, at(1.0))
  order = np.random.default_rng(0).permutation(8)
  rows = (4 * order[:, None] + np.arange(4)).reshape(-1)
  for part in (rows, np.arange(8, 24)):
    rollout = sampler()(PARAMS, jax.tree.map(lambda x, part=part: x[part], batch), KEY, at(1.0))
    np.testing.assert_array_equal(rollout.tokens, expected.tokens[part])
  for options in ({"group_size": 1}, {"window": 9}):
    rollout = sampler(**options)(PARAMS, batch, KEY, at(1.0))
    np.testing.assert_array_equal(rollout.tokens, expected.tokens)
  other = sampler()(PARAMS, batch.replace(row_id=batch.row_id + 100), KEY, at(1.0))
  assert np.any(other.tokens != expected.tokens), "the row id seeds the noise"


@pytest.mark.slow
def test_eight_devices_sample_the_same():
  batch = prompts(rows=32)
  one = sampler()(PARAMS, batch, KEY, at(1.0))
  rows = NamedSharding(Mesh(np.array(jax.devices()[:8]), ("data",)), PartitionSpec("data"))
  eight = sampler()(PARAMS, jax.device_put(batch, rows), KEY, at(1.0))
  assert len(eight.tokens.sharding.device_set) == 8
  np.testing.assert_array_equal(eight.tokens, one.tokens)


def test_row_layout():
  """Prompt and completion contiguous, then padding; mask exactly on sampled tokens, EOS too."""
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
  """A stop token sampled at the length limit ends the row; the limit did not."""
  reference = jax.device_get(sampler()(PARAMS, prompts(rows=32), KEY, at(1.0)))
  new = reference.length - reference.prompt_length
  at_limit = int(np.max(new[~reference.truncated]))
  rollout = jax.device_get(sampler(max_new_tokens=at_limit)(PARAMS, prompts(rows=32), KEY, at(1.0)))
  exactly = (new == at_limit) & ~reference.truncated
  assert exactly.any() and not rollout.truncated[exactly].any()
  assert rollout.truncated[new > at_limit].all()


def test_frequencies_match_the_reported_probabilities():
  """First tokens of 4096 rows of one prompt have their reported probabilities, by chi-square."""
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


RULES = {"min_p": {"min_p": 0.1}, "top_k": {"top_k": 3}, "top_p": {"top_p": 0.7},
         "all": {"top_k": 6, "top_p": 0.95, "min_p": 0.02}}


def states(rows, width=16, vocabulary=13):
  rng = np.random.default_rng(3)
  hidden, head = rng.standard_normal(width), rng.standard_normal((width, vocabulary)) / 2
  hidden, head = jnp.asarray(hidden, jnp.float32), jnp.asarray(head, jnp.float32)
  return jnp.broadcast_to(hidden, (rows, width)), head


@functools.cache
def tokens_of(sample=sample_token):
  """sampling -> (20,000 tokens of one state, their log-probs)."""
  rows = 20_000
  hidden, head = states(rows)
  keys = jax.vmap(jax.random.fold_in, (None, 0))(KEY, jnp.arange(rows))
  noise_of = (keys, jnp.zeros(rows, jnp.int32))
  return jax.jit(functools.partial(sample, hidden, head, noise_of))


def noise_mistakes(sample) -> list[str]:
  """What is wrong with the log-probs that a sampler reports under noise of its own."""
  temperature, noise = 2.0, 0.5
  tokens, stated = jax.device_get(tokens_of(sample)(Sampling.of(temperature, logit_noise=noise)))
  hidden, head = states(1)
  clean = np.asarray(jax.nn.log_softmax((hidden @ head)[0] / temperature))[tokens]
  ratio = np.exp(clean - stated)
  mistakes = []
  # The mean of p / q over samples of q is 1.
  if abs(np.mean(ratio) - 1) > 4 * np.std(ratio) / np.sqrt(len(ratio)):
    mistakes.append("not what it sampled from")
  # Noise of a token less that of the others, which nearly averages out.
  if not 0.8 < np.std(stated - clean) / (noise / temperature) < 1.2:
    mistakes.append("not the noise that was asked for")
  return mistakes


def reports_clean_log_probs(*arguments):
  """Wrong: the noise changes the token and not its log-prob."""
  *others, sampling = arguments
  token, _ = sample_token(*others, sampling)
  logits = others[0] @ others[1] / sampling.temperature
  return token, jnp.take_along_axis(jax.nn.log_softmax(logits), token[:, None], 1)[:, 0]


def reports_other_noise(hidden, head, noise_of, sampling):
  """Wrong: the log-prob is that of a second draw of the noise."""
  token, _ = sample_token(hidden, head, noise_of, sampling)
  logits = hidden @ head / sampling.temperature
  key = noise_of[0][0]
  noise = jax.random.normal(key, logits.shape) * sampling.logit_noise / sampling.temperature
  return token, jnp.take_along_axis(jax.nn.log_softmax(logits + noise), token[:, None], 1)[:, 0]


def test_noise_on_the_logits_is_in_the_reported_log_probs():
  assert noise_mistakes(sample_token) == []
  assert "not the noise that was asked for" in noise_mistakes(reports_clean_log_probs)
  assert noise_mistakes(reports_other_noise) == ["not what it sampled from"]


def plain_sample(hidden, head, noise_of, sampling):
  """`sample_token` without rules: the arg max of the perturbed logits."""
  logits = token_stats.scaled_logits(hidden, head, sampling.temperature)
  keys = jax.vmap(jax.random.fold_in)(*noise_of)
  noise = jax.vmap(functools.partial(jax.random.gumbel, shape=(13,), dtype=jnp.float32))(keys)
  token = jnp.argmax(logits + noise, -1)
  return token, jnp.take_along_axis(logits, token[:, None], -1)[:, 0] - jax.nn.logsumexp(logits, -1)


def test_rules_that_keep_all_sample_the_very_same():
  for temperature in (0.7, 1.2):
    sampling = Sampling.of(temperature)
    got, expected = tokens_of()(sampling), tokens_of(plain_sample)(sampling)
    jax.tree.map(np.testing.assert_array_equal, got, expected)
    rare = tokens_of()(Sampling.of(temperature, min_p=1e-9))
    np.testing.assert_array_equal(rare[0], expected[0],
                                  err_msg="a threshold below every token prunes none")


def test_numbers_of_the_sampling_are_traced():
  """All temperatures and rules share one program; defaults and plain numbers do with arrays."""
  traces = []

  def counted(*arguments):
    traces.append(1)
    return generate(*arguments, model=MODEL, cfg=SamplerConfig(4, 5, 5, (EOS,), 0))

  run = jax.jit(counted)
  greedy, cool, plain, *_ = (
      np.asarray(run(PARAMS, prompts(), KEY, sampling).tokens)
      for sampling in (at(0.0), at(0.7), Sampling.of(1.0), Sampling.of(0, top_k=3),
                       Sampling.of(1.0, top_p=0.5, min_p=0.1),
                       Sampling(jnp.float32(1.0), min_p=jnp.float32(0.2))))
  assert len(traces) == 1
  assert np.any(greedy != cool) and np.any(cool != plain)
  run(PARAMS, prompts(), KEY, Sampling(jnp.float32(1.0), min_p=0.2))
  assert len(traces) == 2, "a plain number has another type: use Sampling.of"


def test_rules_do_not_change_greedy_tokens():
  plain = sampler()(PARAMS, prompts(), KEY, at(0.0))
  for rules in RULES.values():
    pruned = sampler()(PARAMS, prompts(), KEY, Sampling.of(0.0, **rules))
    np.testing.assert_array_equal(pruned.tokens, plain.tokens)
    assert np.all(pruned.behavior_log_probs == 0)


def testfirst_arg_max():
  rng = np.random.default_rng(0)
  for x in (rng.standard_normal((50, 31)), rng.integers(0, 3, (50, 31)), np.full((2, 4), -np.inf)):
    np.testing.assert_array_equal(first_arg_max(jnp.asarray(x, jnp.float32)), np.argmax(x, -1))
  with_nan = jnp.asarray([[0.0, jnp.nan, 1.0]])
  assert first_arg_max(with_nan)[0] in range(3), "a NaN still gives a legal token"
