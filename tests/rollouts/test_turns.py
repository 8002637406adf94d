"""Rows that call tools get the tokens of a slow loop without a cache, for all layouts and tools."""

import dataclasses
import functools
import operator
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_model

from jaxrl_llm import parallel
from jaxrl_llm.config import MeshConfig, StepConfig
from jaxrl_llm.fields import ConfigError, PluginError
from jaxrl_llm.models import Model, row_cache
from jaxrl_llm.rollouts import decoding, engine, sizes
from jaxrl_llm.rollouts.engine import EngineConfig
from jaxrl_llm.rollouts.environment import Continue, Stop, ToolEnvironment
from jaxrl_llm.rollouts.in_flight import InFlight, not_begun
from jaxrl_llm.rollouts.next_token import row_keys, sample_token
from jaxrl_llm.rollouts.protocols import Inline
from jaxrl_llm.rollouts.rollout_table import RolloutTable
from jaxrl_llm.tasks.tokenizer import character_tokenizer, encode
from jaxrl_llm.training.score import score
from jaxrl_llm.types import (
  STOP_ENVIRONMENT,
  STOP_LENGTH,
  STOP_TOKEN,
  STOP_TURNS,
  PromptBatch,
  Sampling,
)

MODEL = small_model.network()
PARAMS = small_model.params_of(MODEL)
EOS, QUIT, CALLS, NEW, WIDTH, ROWS, GROUP = 3, 4, (5, 8), 24, 7, 32, 4
KEY, SAMPLING = jax.random.key(7), Sampling.of(1.3)
LIMITS = {"max_turns": 3, "max_turn_tokens": 14}
LAYOUT = {"slots": ROWS, "refill": False, "compact": 0, "window": 128, "chunk": 8}  # few programs


class Scripted:
  """Answers a call with three ids, which hold a stop token and a call; QUIT makes a row void."""

  def __init__(self, answered=lambda row: None):
    self.answered, self.calls = answered, []

  def turn_end(self, turn_ids, seen=0):
    return next((i + 1 for i in range(seen, len(turn_ids)) if turn_ids[i] in (EOS, QUIT, *CALLS)),
                None)

  def step(self, row_id, turn_ids, last=False):
    if turn_ids[-1] not in CALLS:
      return Stop(STOP_TOKEN) if turn_ids[-1] == EOS else Stop(STOP_ENVIRONMENT, void=True)
    if last:
      return Stop(STOP_TURNS)
    self.calls.append(row_id)
    self.answered(row_id)
    return Continue((CALLS[0], 6 + len(turn_ids) % 7, EOS))

  def close(self):
    pass


def prompts() -> PromptBatch:
  rng = np.random.default_rng(0)
  length = rng.integers(1, WIDTH + 1, ROWS // GROUP)
  tokens = rng.integers(6, 13, (ROWS // GROUP, WIDTH))
  return PromptBatch(
      np.repeat(tokens, GROUP, 0).astype(np.int32),
      np.repeat(length, GROUP).astype(np.int32), np.arange(100, 100 + ROWS, dtype=np.int32),
      (np.arange(ROWS) // GROUP).astype(np.int32))


def run(environment=None, limits=LIMITS, mesh=None, sampling=SAMPLING, **options):
  cfg = EngineConfig(**{"group_size": GROUP, "max_new_tokens": NEW, "stop_ids": (EOS,),
                        "pad_id": 0} | LAYOUT | options)
  # parameters go to the other devices
  with jax.transfer_guard("disallow" if mesh is None else "allow"):
    model = MODEL if mesh is None else Model(MODEL.config, parallel.Layout(mesh))
    rollout, stats = engine.run(PARAMS, prompts(), KEY, sampling, model=model, cfg=cfg, mesh=mesh,
                                environment=environment or Scripted(), **limits)
  return jax.device_get(rollout), stats


@dataclasses.dataclass
class Row:
  """One row of the slow loop: `ids` with (turn, log-probability) of each; inserted ids have turn 0.
  """

  ids: list
  marks: list
  turn: int = 1
  begin: int = 0
  reason: int = -1
  void: bool = False


@jax.jit
def full_pass(tokens, length, keys):
  """(token, log-probability) after the first `length` tokens, by one pass over all of them."""
  at = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  hidden, _ = MODEL.hidden(PARAMS, tokens, at, (at < length[:, None]).astype(jnp.int32))
  last = jnp.take_along_axis(hidden, (length - 1)[:, None, None], 1)[:, 0]
  return sample_token(last, MODEL.head(PARAMS), (keys, length), SAMPLING)


def take(row: Row, token: int, log_prob: float, environment, max_turns: int,
         max_turn_tokens: int) -> None:
  row.ids.append(token)
  row.marks.append((row.turn, log_prob))
  turn = row.ids[row.begin:]
  if environment.turn_end(turn) is not None:
    outcome = environment.step(0, turn, last=row.turn == max_turns)
    if isinstance(outcome, Stop):
      row.reason, row.void = outcome.reason, outcome.void
      return
    if len(row.ids) + len(outcome.ids) > NEW:
      row.reason = STOP_LENGTH
      return
    row.ids += outcome.ids
    row.marks += [(0, 0.0)] * len(outcome.ids)
    row.turn, row.begin = row.turn + 1, len(row.ids)
    row.reason = STOP_LENGTH if len(row.ids) == NEW else -1
  elif len(row.ids) == NEW or len(turn) == max_turn_tokens:
    row.reason = STOP_LENGTH


@functools.cache
def reference(max_turns=3, max_turn_tokens=14) -> tuple[Row, ...]:
  """Token by token, each by a pass over the whole row: no cache, no chunk, no slot."""
  host, rows, environment = prompts(), [Row([], []) for _ in range(ROWS)], Scripted()
  keys = row_keys(KEY, host.row_id)
  while any(row.reason < 0 for row in rows):
    length = np.array([p + len(row.ids) for p, row in zip(host.prompt_length, rows, strict=True)],
                      np.int32)
    tokens = np.zeros((ROWS, WIDTH + NEW), np.int32)
    for line, prompt, p, row in zip(tokens, host.tokens, host.prompt_length, rows, strict=True):
      line[:p + len(row.ids)] = [*prompt[:p], *row.ids]
    sampled, log_probs = jax.device_get(full_pass(tokens, length, keys))
    for row, token, log_prob in zip(rows, sampled, log_probs, strict=True):
      if row.reason < 0:
        take(row, int(token), float(log_prob), environment, max_turns, max_turn_tokens)
  return tuple(rows)


def assert_same(got, expected):
  for b, row in enumerate(expected):
    first, n = got.prompt_length[b], len(row.ids)
    at = slice(first, first + n)
    turn, log_probs = (np.array(x) for x in zip(*row.marks, strict=True))
    np.testing.assert_array_equal(got.tokens[b, at], row.ids, err_msg=f"row {b}")
    np.testing.assert_array_equal(got.turn_id[b, at], turn)
    np.testing.assert_allclose(got.behavior_log_probs[b, at], log_probs, rtol=0, atol=5e-5)
    assert got.length[b] == first + n and got.stop_reason[b] == row.reason
    assert got.void[b] == row.void
    assert not np.any(got.tokens[b, first + n:]) and not np.any(got.turn_id[b, first + n:])
  np.testing.assert_array_equal(got.tokens[:, :WIDTH][prompt_columns(got)],
                                prompts().tokens[prompt_columns(got)])
  np.testing.assert_array_equal(got.mask, got.turn_id > 0)
  assert not np.any(got.behavior_log_probs[~got.mask])
  np.testing.assert_array_equal(got.truncated, got.stop_reason == STOP_LENGTH)


def prompt_columns(got):
  return np.arange(WIDTH) < got.prompt_length[:, None]


def test_the_seed_shows_every_way_to_end():
  rows = reference()
  assert {row.reason for row in rows} == {STOP_TOKEN, STOP_LENGTH, STOP_ENVIRONMENT, STOP_TURNS}
  assert {row.turn for row in rows} == {1, 2, 3} and any(row.void for row in rows)
  at_limit = [row for row in rows if row.reason == STOP_LENGTH]
  assert any(len(row.ids) == NEW for row in at_limit), "the limit of a row"
  assert any(len(row.ids) - row.begin == 14 for row in at_limit), "the limit of a turn"
  unanswered = [row for row in at_limit if ended_by_call(row) and len(row.ids) < NEW]
  assert unanswered, "an answer that does not fit"


LAYOUTS = [
    LAYOUT,
    LAYOUT | {"chunk": 1},
    {"chunk": 8, "slots": 5, "refill": True, "compact": 2, "window": 16},
    {"chunk": 1, "slots": 8, "refill": True, "compact": 0, "window": 128},
    LAYOUT | {"slots": 8, "shared_prefix": True, "chunk": 32},
]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_equals_the_loop_without_a_cache(layout):
  got, stats = run(**layout)
  assert_same(got, reference())
  assert stats.tool_calls == sum(
      row.turn - 1 + (row.reason in (STOP_TOKEN, STOP_TURNS, STOP_ENVIRONMENT)) +
      (row.reason == STOP_LENGTH and ended_by_call(row)) for row in reference())
  assert stats.useful_steps == sum(len(row.ids) for row in reference())
  assert (stats.dropped_tokens == 0) == (layout["chunk"] == 1)


def ended_by_call(row: Row) -> bool:
  return row.begin < len(row.ids) and row.ids[-1] in CALLS


real_window, real_start = row_cache.window, RolloutTable.start_next_turn


def window_too_long(cache, rows, length, *rest):
  return real_window(cache, rows, length + 1, *rest)


def window_too_short(cache, rows, length, *rest):
  return real_window(cache, rows, jnp.maximum(length - 1, 0), *rest)


def skip(self, row, ids):
  real_start(self, row, ids)
  self.cursor[row] = self.count[row]


def late_limit(self, row):
  return np.minimum(self.limit[row], self.begin[row] + 15)


WRONG = {
    "what was dropped stays visible": (row_cache, "window", window_too_long),
    "forgets one column too many": (row_cache, "window", window_too_short),
    "the answer is not fed": (RolloutTable, "start_next_turn", skip),
    "a turn's limit comes one token late": (RolloutTable, "turn_limit", late_limit),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_the_comparison_rejects(name, monkeypatch):
  decoding.build.cache_clear()
  with monkeypatch.context() as patch:
    patch.setattr(*WRONG[name])
    got, _ = run()
  decoding.build.cache_clear()
  with pytest.raises(AssertionError):
    assert_same(got, reference())


def slow(seconds):
  def wait(row):
    time.sleep(seconds[row])

  return wait


class LastOfAll(Scripted):
  """Answers one row's first call after every other row that the environment ends has ended.

  Attributes:
    in_time: whether they have, once the row is answered.
  """

  def __init__(self):
    super().__init__()
    self.row = 100 + next(b for b, row in enumerate(reference()) if row.turn > 1)
    stopped = {100 + b for b, row in enumerate(reference()) if row.reason != STOP_LENGTH}
    self.others, self.ended, self.in_time = stopped - {self.row}, set(), []
    self.release = threading.Event()

  def step(self, row_id, turn_ids, last=False):
    outcome = super().step(row_id, turn_ids, last)
    if row_id == self.row and isinstance(outcome, Continue) and not self.in_time:
      self.in_time.append(self.release.wait(300))
    if isinstance(outcome, Stop):
      self.ended.add(row_id)
    if self.ended >= self.others:
      self.release.set()
    return outcome


def test_a_slow_tool_delays_only_its_own_row():
  environment = LastOfAll()
  got, stats = run(environment, slots=8, refill=True, chunk=2)
  assert len(environment.others) > 20 and environment.in_time == [True]
  assert_same(got, reference())
  assert stats.replayed_steps == 0, "a row that waits keeps its columns"


def test_answers_entered_after_a_number_of_chunks_repeat_bit_for_bit():
  delays = np.random.default_rng(4).uniform(0, 0.03, 100 + ROWS)

  def counts(stats):
    return dataclasses.replace(stats, tool_seconds=0)

  layout, all_stats = {"slots": 8, "refill": True, "chunk": 2}, []
  for chunks in (0, 3):
    (got, stats), (other, others) = (
        run(e, LIMITS | {"tool_chunks": chunks}, **layout)
        for e in (Scripted(), Scripted(slow(delays))))
    jax.tree.map(np.testing.assert_array_equal, got, other)
    assert counts(stats) == counts(others)
    assert_same(got, reference())
    all_stats.append(stats)
  late = run(LastOfAll(), **layout)[1]
  assert late.chunks != all_stats[0].chunks, "without tool_chunks the tool sets the schedule"


@pytest.mark.slow
def test_eight_devices_sample_the_same():
  assert_same(run(mesh=parallel.make_mesh(MeshConfig()))[0], reference())


def test_an_answer_fits_as_a_whole_or_not_at_all():
  """Limits right after the first answer, inside of it, and at the end of the turn before it."""
  rows = reference()
  calling = [b for b, row in enumerate(rows) if row.turn > 1][:6]
  limit, expected = np.full(ROWS, NEW), list(rows)
  for b, room in zip(calling, (3, 2, 1, 0, 3, 0), strict=True):
    turn = [i for i, (number, _) in enumerate(rows[b].marks) if number == 1]
    limit[b], kept = len(turn) + room, len(turn) + (3 if room == 3 else 0)
    expected[b] = Row(rows[b].ids[:kept], rows[b].marks[:kept], reason=STOP_LENGTH)
  got, stats = run(limits=LIMITS | {"max_new": limit})
  assert_same(got, expected)
  tokens = sum(len(row.ids) for row in expected)
  assert stats.useful_steps == tokens - 2 * 3, "an answer that ends its row is not fed"


def test_log_probs_are_those_of_score():
  got, _ = run()
  scorer = jax.jit(functools.partial(score, model=MODEL, cfg=StepConfig()))
  scored = scorer(PARAMS, jax.device_put(got), SAMPLING).log_probs
  np.testing.assert_allclose(got.behavior_log_probs[got.mask],
                             np.asarray(scored)[got.mask], rtol=0, atol=2e-5)


@pytest.mark.slow
def test_the_last_call_is_not_run():
  environment = Scripted()
  got, _ = run(environment, {"max_turns": 1})
  assert environment.calls == [] and np.any(
      got.stop_reason == STOP_TURNS) and got.turn_id.max() == 1
  environment = Scripted()
  got, _ = run(environment, {"max_turns": 2})
  assert len(environment.calls) == len(set(environment.calls)) > 0 and got.turn_id.max() == 2
  assert_same(got, reference(2, NEW + 1))


@pytest.mark.slow
def test_compiles_no_more_than_declared(compiled):
  """Rows that wait for different times, and three temperatures: the bound holds for all sizes."""
  decoding.build.cache_clear()
  layout = {"chunk": 8, "slots": 8, "refill": True, "compact": 1, "window": 32}
  samplings = [Sampling.of(temperature) for temperature in (0.0, 0.7, 1.3)]
  compiled.clear()  # a Sampling compiles a conversion where JAX has dropped it from its cache
  for seed, sampling in enumerate(samplings):
    delays = np.random.default_rng(seed).uniform(0, 0.01, 100 + ROWS)
    run(Scripted(slow(delays)), sampling=sampling, **layout)
  cfg = EngineConfig(group_size=GROUP, max_new_tokens=NEW, **layout)
  most = 5 + len(sizes.batch_sizes(cfg, ROWS)) * len(sizes.windows(cfg, WIDTH))
  assert 5 < sum(compiled.values()) <= most
  assert {name for name in compiled if "rollout_" not in name} == set()


def test_an_environment_that_fails_ends_the_run():
  def fail(row):
    raise ValueError(f"row {row}")

  with pytest.raises(PluginError, match=r"Scripted \(.*test_turns.py\): step: ValueError: row 1"):
    run(Scripted(fail))


def test_shapes_are_known_before():
  got, _ = run()
  declared = engine.rollout_shape(prompts(), EngineConfig(max_new_tokens=NEW), turns=True)
  kind = operator.attrgetter("shape", "dtype")
  assert jax.tree.map(kind, declared) == jax.tree.map(kind, got)


def test_a_tool_does_not_run_in_the_last_turn():
  """Of the real environment: a call in the last turn is not run, an answer is an answer."""

  class Unused:
    def run(self, text):
      raise AssertionError(text)

  tokenizer = character_tokenizer("0123456789-.?;[]+=*")
  environment = ToolEnvironment(tokenizer, Unused(), Inline(), eos_ids=(1,), max_output_tokens=9)
  ids = encode(tokenizer, "[1+1]")
  assert environment.step(0, ids, last=True) == Stop(STOP_TURNS)
  assert environment.step(0, [*ids[1:-1], 1], last=True) == Stop(STOP_TOKEN)
  with pytest.raises(AssertionError, match="1\\+1"):
    environment.step(0, ids)


@pytest.mark.parametrize("limits", [{"max_turns": 0}, {"max_turn_tokens": 0}, {"tool_workers": 0},
                                    {"tool_chunks": -1}], ids=str)
def test_bad_limits(limits):
  (name, value), = limits.items()
  with pytest.raises(ConfigError, match=f"{name} = {value}"):
    run(limits=limits)


@pytest.mark.parametrize("option", [{"max_turns": 2}, {"max_turn_tokens": 9}, {"tool_workers": 3},
                                    {"tool_chunks": 0}], ids=str)
def test_settings_of_turns_need_an_environment(option):
  (name, value), = option.items()
  with pytest.raises(ConfigError,
                     match=f"{name} = {value} without an environment.*Fix: an environment"):
    engine.run(PARAMS, prompts(), KEY, SAMPLING, model=MODEL, cfg=EngineConfig(), **option)


# --- runs that end early and are gone on with


IN_PIECES = {"slots": 8, "chunk": 4, "compact": 0, "window": 128}
GROUPS = 3  # that end a run


def in_pieces(environment, key_of=lambda number: KEY, **options):
  """(rows of all runs in the order of their ids, number of runs, tokens that they fed again)."""
  cfg = EngineConfig(**{"group_size": GROUP, "max_new_tokens": NEW, "stop_ids": (EOS,),
                        "pad_id": 0, **IN_PIECES, **options})
  left, out, again = prompts(), [], 0
  begun = not_begun(left.row_id[:4 * GROUP], NEW)
  turns = {} if environment is None else LIMITS
  while len(left.row_id):
    groups = min(GROUPS, len(left.row_id) // GROUP)
    rollout, begun, stats = engine.run_on(
        PARAMS, left, key_of(len(out)), SAMPLING, InFlight(begun, 10 + len(out), groups),
        model=MODEL, cfg=cfg, environment=environment, **turns)
    out.append(jax.device_get(rollout))
    again += stats.replayed_steps
    assert len(out[-1].row_id) == groups * GROUP
    left = jax.tree.map(lambda x, kept=np.isin(left.row_id, begun.row_id): x[kept], left)
  rows = jax.tree.map(lambda *xs: np.concatenate(xs), *out)
  order = np.argsort(rows.row_id)
  return jax.tree.map(lambda x: x[order], rows), len(out), again


@pytest.fixture(scope="module")
def expected():
  return run(**IN_PIECES)[0]


@pytest.mark.parametrize("shared_prefix", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_runs_that_go_on_equal_one_run(expected, shared_prefix):
  rows, runs, again = in_pieces(Scripted(), shared_prefix=shared_prefix)
  for name in ("tokens", "mask", "length", "turn_id", "void", "stop_reason", "row_id", "group_id"):
    np.testing.assert_array_equal(getattr(rows, name), getattr(expected, name), err_msg=name)
  np.testing.assert_allclose(rows.behavior_log_probs, expected.behavior_log_probs, atol=5e-5)
  assert runs > 2 and again > 0
  several = 0
  for steps, mask in zip(rows.policy_step, rows.mask, strict=True):
    assert (steps[~mask] == 0).all() and (np.diff(steps[mask]) >= 0).all()
    assert (steps[mask] >= 10).all()
    several += len(np.unique(steps[mask])) > 1
  assert several, "no completion was interrupted"


def test_noise_of_the_run_instead_of_the_completion_is_noticed(expected):
  rows, *_ = in_pieces(Scripted(), lambda number: jax.random.fold_in(KEY, number))
  assert (rows.tokens != expected.tokens).any()
