"""Rows with a real tool, from engine to loss: what the policy did not sample counts nowhere."""

import dataclasses
import functools
import itertools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from experiments.tasks.tool_arithmetic import ALPHABET, ToolArithmetic
from jaxrl_llm import tasks
from jaxrl_llm.config import base_config, from_dict
from jaxrl_llm.objective import loss as loss_lib
from jaxrl_llm.presets import apply
from jaxrl_llm.rollouts import environment
from jaxrl_llm.rollouts.next_token import row_keys, sample_token
from jaxrl_llm.rollouts.protocols import Inline
from jaxrl_llm.rollouts.tools import Calculator, ToolResult
from jaxrl_llm.runs.dynamic_sampling import sample_batch
from jaxrl_llm.runs.records import host_metrics, rollout_rows
from jaxrl_llm.runs.rollout_batch import iteration_key
from jaxrl_llm.training.batches import optimizer_batches
from jaxrl_llm.training.score import Scores
from jaxrl_llm.types import STOP_ENVIRONMENT, TokenStats
from jaxrl_llm.wiring import setup
from jaxrl_llm.wiring.loop import make_source

pytestmark = pytest.mark.slow

MERGES = [("1", "2"), ("[", "1"), ("]", "?"), ("?", ";"), ("=", "="), ("3", "]"), ("*", "*")]
LETTERS = 2 + len(ALPHABET)


class Fails(Calculator):
  """A calculator that is out of order for expressions of odd length."""

  def run(self, text):
    return ToolResult("unavailable", "") if len(text) % 2 else super().run(text)


class Merged(ToolArithmetic):
  """The task with sub-words: one merge straddles the end of a call, one the tool's output."""

  def make_tokenizer(self):
    vocabulary = {"<pad>": 0, "<eos>": 1} | {c: i + 2 for i, c in enumerate(ALPHABET)}
    vocabulary |= {a + b: LETTERS + i for i, (a, b) in enumerate(MERGES)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def config(preset="ctpo"):
  values = base_config()
  values.model.update(vocab_size=LETTERS + len(MERGES), width=16, num_layers=1, num_heads=2,
                      num_kv_heads=1, head_dim=8, mlp_width=16)
  values.task.update(name="tool_arithmetic", heldout_problems=8)
  values.task.tool_arithmetic.digits = 2
  values.rollout.update(prompts=8, group_size=8, max_prompt_tokens=5, max_new_tokens=32, window=64,
                        slots=64, chunk=4, max_turns=3, max_tool_tokens=8, tool_chunks=None)
  values.updates.update(optimizer_batches=1, anchor="recomputed")
  values.optimizer.learning_rate = 1e-2
  values.mesh.data = 1
  return apply(values, preset)


@pytest.fixture(scope="module")
def built():
  environment.TOOLS["calculator"] = Fails
  tasks.TASKS["tool_arithmetic"] = Merged
  return setup.build(setup.resolve(from_dict(config())), jax.devices()[:1])


@pytest.fixture(scope="module")
def params(built):
  # far from uniform
  initial = built.learner.model.init(jax.random.key(0))
  return jax.tree.map(lambda x: 3 * x if x.ndim > 1 else x, initial)


def sample(built, params):
  return sample_batch(make_source(built.cfg, built.task, built.sampler), params, 0, 1)


@pytest.fixture(scope="module")
def sampled(built, params):
  return sample(built, params)


@pytest.fixture(scope="module")
def scores(built, params, sampled):
  stats = built.learner.scoring.score(params, sampled.rollout, built.learner.scoring.sampling)
  rng = np.random.default_rng(5)
  # a reference of its own
  noise = jnp.asarray(rng.normal(0, 0.2, stats.log_probs.shape), jnp.float32)
  return Scores(stats.log_probs, stats.log_probs + noise,
                sum_pi_squared=jnp.exp(2 * stats.log_probs))


# Rows.

def sampled_by_the_policy(built, params, host) -> bool:
  """Whether each token under the mask is what the row's noise samples after its prefix."""
  model, sampling, width = built.learner.model, built.sampler.sampling, host.tokens.shape[1]
  at = jnp.broadcast_to(jnp.arange(width), host.tokens.shape)
  hidden, _ = jax.jit(model.hidden)(params, jnp.asarray(host.tokens), at,
                                    (at < host.length[:, None]).astype(jnp.int32))
  keys = row_keys(iteration_key(built.cfg.seed, 1), host.row_id)
  step = jax.jit(
      lambda h, t: sample_token(h, model.head(params), (keys, jnp.full(len(keys), t)),
                                sampling)[0])
  expected = np.stack(
      [np.zeros(len(keys), int), *(step(hidden[:, t - 1], t) for t in range(1, width))], 1)
  return bool((host.tokens == expected)[host.mask].all())


def pieces(host, row):
  """[(turn, ids)] of a completion, in order."""
  at, out = range(host.prompt_length[row], host.length[row]), []
  for t in at:
    if not out or out[-1][0] != host.turn_id[row, t]:
      out.append((int(host.turn_id[row, t]), []))
    out[-1][1].append(int(host.tokens[row, t]))
  return out


def test_the_mask_covers_what_the_policy_sampled_and_nothing_else(built, params, sampled):
  host, tokenizer = sampled.host, built.task.tokenizer
  encode = functools.partial(tokenizer.encode, add_special_tokens=False)
  np.testing.assert_array_equal(host.mask, host.turn_id > 0)
  assert not np.any(host.behavior_log_probs[~host.mask]) and np.all(
      host.behavior_log_probs[host.mask] < 0)
  inserted = 0
  for row in range(len(host.tokens)):
    runs = pieces(host, row)
    assert [turn for turn, _ in runs if turn
           ] == list(range(1, 1 + sum(turn > 0 for turn, _ in runs)))
    for (turn, ids), (answered, answer) in itertools.pairwise(runs):
      assert (turn > 0) != (answered > 0)
      if turn:  # what was inserted is the answer to the call that the turn ends with
        argument = Inline().find(tokenizer.decode(ids)).argument
        shown = Inline().body(Calculator().run(argument))
        assert answer == encode(shown) + encode(";") and "]" in tokenizer.decode(ids[-1:])
        inserted += 1
  assert inserted > 8 and len({len(pieces(host, row)) for row in range(len(host.tokens))}) >= 3
  scoring = built.learner.scoring
  scored = np.asarray(scoring.score(params, sampled.rollout, scoring.sampling).log_probs)
  np.testing.assert_allclose(host.behavior_log_probs[host.mask], scored[host.mask], atol=5e-5)


def rendered_again(built, host):
  """Turns put back as the tokenizer would write their text: what a chat template does to them."""
  tokens = host.tokens.copy()
  for row in range(len(tokens)):
    for turn in range(1, host.turn_id[row].max() + 1):
      at = np.flatnonzero(host.turn_id[row] == turn)
      ids = built.task.tokenizer.encode(built.task.tokenizer.decode(tokens[row, at]),
                                   add_special_tokens=False)
      tokens[row, at[:len(ids)]] = ids
  return host.replace(tokens=tokens)


def test_ids_are_those_drawn_and_never_encoded_again(built, params, sampled):
  again = rendered_again(built, sampled.host)
  assert np.any(again.tokens != sampled.host.tokens), "no turn that would be written otherwise"
  assert sampled_by_the_policy(built, params, sampled.host)
  assert not sampled_by_the_policy(built, params, again)


def test_an_output_that_is_the_answer_ends_the_row_and_is_read(built, params, monkeypatch):
  """Its ids are not the policy's; the verifier reads them behind the policy's text."""
  monkeypatch.setattr(Inline, "finished", lambda self, text: "?" in text)
  again = sample(built, params)
  host, tail = again.host, built.task.tokenizer.encode("?") + built.task.tokenizer.encode(";")
  last = np.array([np.flatnonzero(mask)[-1] for mask in host.mask]) + 1
  answered = host.length > last
  assert 4 < answered.sum() < len(last) - 4 and not np.any(host.void & answered)
  assert np.all(host.stop_reason[answered] == STOP_ENVIRONMENT)
  for row, at in zip(np.flatnonzero(answered), last[answered], strict=True):
    assert host.tokens[row, at:host.length[row]].tolist() == tail
    assert not np.any(host.turn_id[row, at:]) and not np.any(host.behavior_log_probs[row, at:])
  for row, text in enumerate(again.verdicts.texts):
    ours = built.task.tokenizer.decode(host.tokens[row][host.mask[row]])
    assert text == (ours + "?;" if answered[row] else ours.removesuffix("<eos>"))
  assert sampled_by_the_policy(built, params, host)


# The loss.

def off_policy(sampled, seed=0):
  """Log-probs of a policy that has moved since: finite everywhere, tool text included."""
  rng = np.random.default_rng(seed)
  return jnp.asarray(sampled.host.behavior_log_probs + rng.normal(0, 0.3, sampled.host.mask.shape),
                     jnp.float32)


def rewards_of(sampled):
  return jnp.asarray(np.random.default_rng(1).integers(0, 2, len(sampled.host.mask)), jnp.float32)


@functools.cache
def program(preset):
  """(log_probs, rollout, rewards, keep, scores) -> (loss, its gradient by the log-probs)."""
  cfg = setup.resolve(from_dict(config(preset)))

  def run(log_probs, rollout, rewards, keep, scores):
    def total(log_probs):
      stats = TokenStats(log_probs, jnp.zeros_like(log_probs))
      with mock.patch.object(loss_lib, "policy_stats", lambda *_, **__: stats):
        return loss_lib.policy_loss(None, batch, model=None, cfg=cfg.loss)[0]

    (batch,), _ = optimizer_batches(rollout, rewards, keep, scores, cfg=cfg.batch)
    return jax.value_and_grad(total)(log_probs)

  return jax.jit(run)


PRESETS = ("gspo", "ctpo", "minpro", "topr", "otb", "tempo")


def arguments(sampled, scores):
  keep = jnp.asarray(sampled.verdicts.keep)
  return off_policy(sampled), sampled.rollout, rewards_of(sampled), keep, scores


def spoiled(given, hole):
  """Other numbers on the tokens `hole`."""
  log_probs, rollout, rewards, keep, scores = given
  rng = np.random.default_rng(2)
  other = lambda x: x if x is None else jnp.where(
      hole, jnp.asarray(rng.uniform(-9, 0, hole.shape), jnp.float32), x)
  swapped = {field.name: other(getattr(scores, field.name)) for field in dataclasses.fields(scores)}
  return (other(log_probs), rollout.replace(behavior_log_probs=other(rollout.behavior_log_probs)),
          rewards, keep, scores.replace(**swapped))


def blind(preset, given, hole) -> bool:
  """Whether neither loss nor gradient see the numbers on the tokens `hole`, or reach them."""
  value, gradient = program(preset)(*given)
  other_value, other_gradient = program(preset)(*spoiled(given, hole))
  assert np.any(gradient)
  return bool(value == other_value and np.array_equal(gradient, other_gradient) and
              not np.any(gradient[hole]))


@pytest.mark.parametrize("preset", PRESETS)
def test_numbers_on_tool_text_change_nothing(preset, sampled, scores):
  given, hole = arguments(sampled, scores), ~sampled.host.mask
  assert blind(preset, given, hole)
  at = np.arange(hole.shape[1])
  completion = (at >= sampled.host.prompt_length[:, None]) & (at < sampled.host.length[:, None])
  wrong = (given[0], given[1].replace(mask=jnp.asarray(completion)), *given[2:])
  assert not blind(preset, wrong, hole), "a mask that covers the tool's text would pass too"


def squeezed(sampled, log_probs, rollout, rewards, keep, scores):
  """The same rows without the tool's text; and the order of columns that does it."""
  outside = ~np.asarray(rollout.mask) & (np.arange(rollout.mask.shape[1])
                                         >= sampled.host.prompt_length[:, None])
  order = np.argsort(outside, 1, kind="stable")
  move = lambda x: jnp.take_along_axis(x, order, 1) if x.ndim == 2 else x
  rollout = jax.tree.map(move, rollout)
  return (move(log_probs), rollout, rewards, keep, jax.tree.map(move, scores)), order


@pytest.mark.parametrize("preset", [p for p in PRESETS if p not in ("otb", "tempo")])
def test_ratios_and_positions_skip_tool_text(preset, sampled, scores):
  """otb compares columns, tempo prefixes of the row: what the tool said is part of these."""
  given = arguments(sampled, scores)
  value, gradient = program(preset)(*given)
  shorter, order = squeezed(sampled, *given)
  got, moved = program(preset)(*shorter)
  np.testing.assert_allclose(got, value, rtol=1e-5)
  np.testing.assert_allclose(moved, np.take_along_axis(np.asarray(gradient), order, 1), rtol=1e-4,
                             atol=1e-7)


def test_the_network_s_gradient_does_not_read_numbers_of_tool_text(built, params, sampled, scores):
  """The real scorer, batches and loss: the parameters' gradient, to the bit."""
  cfg = built.cfg

  @jax.jit
  def gradient(params, rollout, rewards, keep, scores):
    (batch,), _ = optimizer_batches(rollout, rewards, keep, scores, cfg=cfg.batch)
    moved = jax.tree.map(lambda x: 1.02 * x, params)
    loss = functools.partial(loss_lib.policy_loss, model=built.learner.model, cfg=cfg.loss)
    return jax.grad(lambda p: loss(p, batch)[0])(moved)

  _, *given = arguments(sampled, scores)
  changed = gradient(params, *spoiled((off_policy(sampled), *given), ~sampled.host.mask)[1:])
  plain = gradient(params, *given)
  jax.tree.map(np.testing.assert_array_equal, plain, changed)
  assert any(np.any(x) for x in jax.tree.leaves(plain))


def test_a_void_row_is_left_out_and_counted(sampled, scores):
  """Its tool was out of order: its reward counts nowhere, no token of it moves."""
  host, keep = sampled.host, sampled.verdicts.keep
  np.testing.assert_array_equal(keep, ~host.void)
  assert 1 < host.void.sum() < len(keep) / 2 and np.all(
      host.stop_reason[host.void] == STOP_ENVIRONMENT)
  metrics = host_metrics(sampled.verdicts, host, 8)
  assert metrics["reward/unscored"] == metrics["rollout/void"] == np.mean(
      host.void) and metrics["rollout/turns"] > 1
  assert metrics["tool/tokens"] == sum(
      len(ids) for b in range(len(keep)) for turn, ids in pieces(host, b) if not turn)
  verdicts = sampled.verdicts
  rows = rollout_rows(sampled.problems, verdicts, host, None, verdicts.rewards, keep)
  assert [row["void"] for row in rows] == list(host.void)
  assert [row["keep"] for row in rows] == list(keep)
  turns = zip(host.turn_id, host.length, strict=True)
  assert [row["turn_id"].tolist() for row in rows] == [turn[:n].tolist() for turn, n in turns]

  log_probs, rollout, rewards, kept, scores = arguments(sampled, scores)
  for preset in ("ctpo", "otb"):
    value, gradient = program(preset)(log_probs, rollout, rewards, kept, scores)
    other = program(preset)(log_probs, rollout, jnp.where(host.void, 9, rewards), kept, scores)
    assert value == other[0] and np.array_equal(gradient,
                                                other[1]) and not np.any(gradient[host.void])
    counted = program(preset)(log_probs, rollout, rewards, jnp.ones_like(kept), scores)
    assert np.any(counted[1][host.void]), "a row that is kept would pass too"
