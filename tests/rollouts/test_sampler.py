"""The sampler's promises: it reports what it sampled, and a row depends on nothing but itself."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxrl_llm.config import ModelConfig, SamplerConfig, StepConfig
from jaxrl_llm.models import Model
from jaxrl_llm.ops import token_stats
from jaxrl_llm.rollouts import generate
from jaxrl_llm.rollouts.next_token import first_arg_max, sample_token
from jaxrl_llm.training.score import score
from jaxrl_llm.types import STOP_LENGTH, STOP_TOKEN, PromptBatch, Sampling

MODEL = Model(
    ModelConfig(vocab_size=13, width=16, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=8,
                mlp_width=24))
# far from uniform
PARAMS = jax.tree.map(lambda x: 8 * x if x.ndim > 1 else x, MODEL.init(jax.random.key(0)))
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


def flips(a, b):
  """Rows whose tokens differ; each must begin at a near tie of the two best perturbed logits."""
  rows = np.flatnonzero(np.any(np.asarray(a.tokens != b.tokens), 1))
  for row in rows:
    first = int(np.argmax(np.asarray(a.tokens[row] != b.tokens[row])))
    assert tie(a, row, first) < NEAR_TIE, f"row {row} differs at {first}, not at a near tie"
  return len(rows)


def tie(rollout, row, position):
  """Distance between the two best perturbed logits of a sampled token."""
  ids = rollout.tokens[row:row + 1, :position]
  hidden, _ = MODEL.hidden(PARAMS, ids, jnp.arange(position)[None], jnp.ones_like(ids))
  logits = hidden[0, -1] @ MODEL.head(PARAMS)
  key = jax.random.fold_in(jax.random.fold_in(KEY, rollout.row_id[row]), position)
  best = np.sort(np.asarray(logits + jax.random.gumbel(key, logits.shape, jnp.float32)))
  return best[-1] - best[-2]


@pytest.mark.slow
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


@pytest.mark.slow
def test_eight_devices_sample_the_same():
  batch = prompts(rows=32)
  one = sampler()(PARAMS, batch, KEY, at(1.0))
  rows = NamedSharding(Mesh(np.array(jax.devices()[:8]), ("data",)), PartitionSpec("data"))
  eight = sampler()(PARAMS, jax.device_put(batch, rows), KEY, at(1.0))
  assert len(eight.tokens.sharding.device_set) == 8
  assert flips(one, jax.device_get(eight)) == 0


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


@pytest.mark.nightly
def test_greedy_is_the_arg_max():
  rollout = jax.device_get(sampler()(PARAMS, prompts(), KEY, at(0.0)))
  assert np.all(rollout.behavior_log_probs == 0)
  for row in range(0, 16, 4):
    ids = jnp.asarray(rollout.tokens[row:row + 1, :rollout.length[row]])
    hidden, _ = MODEL.hidden(PARAMS, ids, jnp.arange(ids.shape[1])[None], jnp.ones_like(ids))
    best = np.asarray(jnp.argmax(hidden[0] @ MODEL.head(PARAMS), -1))
    start = rollout.prompt_length[row]
    np.testing.assert_array_equal(rollout.tokens[row, start:rollout.length[row]],
                                  best[start - 1:-1])
    np.testing.assert_array_equal(rollout.tokens[row], rollout.tokens[row + 1],
                                  err_msg="a group shares its arg max")


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


def test_temperature_is_traced():
  traces = []

  def counted(*arguments):
    traces.append(1)
    return generate(*arguments, model=MODEL, cfg=SamplerConfig(4, 5, 5, (EOS,), 0))

  run = jax.jit(counted)
  greedy, cool, plain = (
      np.asarray(run(PARAMS, prompts(), KEY, at(temperature)).tokens)
      for temperature in (0.0, 0.7, 1.0))
  assert len(traces) == 1
  assert np.any(greedy != cool) and np.any(cool != plain)


RULES = {"min_p": {"min_p": 0.1}, "top_k": {"top_k": 3}, "top_p": {"top_p": 0.7},
         "all": {"top_k": 6, "top_p": 0.95, "min_p": 0.02}}


@functools.cache
def statistics():
  """token_stats of whole rows, all rules traced."""

  def run(rollout, sampling, rules):
    tokens = rollout.tokens
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    hidden, _ = MODEL.hidden(PARAMS, tokens, positions,
                             (positions < rollout.length[:, None]).astype(jnp.int32))
    out = token_stats.token_stats(hidden[:, :-1], MODEL.head(PARAMS), tokens[:, 1:],
                                  stats=frozenset({"in_support"}), temperature=sampling.temperature,
                                  **rules)
    return jax.tree.map(functools.partial(jnp.pad, pad_width=((0, 0), (1, 0))), out)

  return jax.jit(run)


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_truncated_log_probs_equal_token_stats(temperature, rules):
  sampling = Sampling.of(temperature, **rules)
  rollout = sampler()(PARAMS, prompts(), KEY, sampling)
  traced = {"top_k": sampling.top_k, "top_p": sampling.top_p, "min_p": sampling.min_p}
  scored = statistics()(rollout, sampling, traced)
  assert gap(rollout, scored.log_probs) < 1e-5
  assert np.all(scored.in_support[rollout.mask])
  whole = statistics()(rollout, sampling, {})
  raised = np.where(rollout.mask, rollout.behavior_log_probs - whole.log_probs, 0)
  assert np.max(raised) > 1e-2, "rules matter"
  unpruned = statistics()(sampler()(PARAMS, prompts(), KEY, at(temperature)), sampling, traced)
  assert not np.all(unpruned.in_support), "without the rules other tokens are sampled"


def states(rows, width=16, vocabulary=13):
  """A head and one hidden state for all rows."""
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


@pytest.mark.parametrize("rules", [{}, *RULES.values()], ids=["none", *RULES])
def test_truncated_frequencies_match_the_stated_probabilities(rules):
  tokens, log_probs = jax.device_get(tokens_of()(Sampling.of(1.2, **rules)))
  rows, stated = len(tokens), np.zeros(13)
  stated[tokens] = np.exp(log_probs)
  kept = stated > 0
  np.testing.assert_allclose(np.sum(stated), 1, rtol=1e-5,
                             err_msg="every kept token came, and they sum to 1")
  assert np.all(kept) == (not rules)
  counts = np.bincount(tokens, minlength=13)[kept]

  def statistic(p):
    return np.sum((counts - rows * p) ** 2 / (rows * p))

  assert statistic(stated[kept]) < 32.9, "0.1 % point of chi-square with 12 degrees of freedom"
  if rules:
    hidden, head = states(1)
    unpruned = np.asarray(jax.nn.softmax(hidden[0] @ head / 1.2))
    assert statistic(unpruned[kept]) > 32.9, "unpruned probabilities are refuted"


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


def test_rules_are_traced():
  """Defaults and plain numbers share one program with arrays."""
  traces = []

  @jax.jit
  def run(sampling):
    traces.append(1)
    keys = jax.random.split(KEY, 2)
    return sample_token(*states(2), (keys, jnp.zeros(2, jnp.int32)), sampling)

  for sampling in (at(1.0), Sampling.of(0.5), Sampling.of(0, top_k=3),
                   Sampling.of(1.0, top_p=0.5, min_p=0.1),
                   Sampling(jnp.float32(1.0), min_p=jnp.float32(0.2))):
    run(sampling)
  assert len(traces) == 1
  run(Sampling(jnp.float32(1.0), min_p=0.2))
  assert len(traces) == 2, "a plain number has another type: use Sampling.of"
