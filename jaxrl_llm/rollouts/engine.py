"""Generation with rows that come and go: a host loop over compiled chunks of decode steps.

Rows are queued and take the slots of a fixed batch. Between two chunks, queued rows take the slots
of ended ones; once the queue is empty, the rows that are left decode in a smaller batch. The noise
of a token is a function of (key, row_id, position) only, so none of this changes a token beyond
rounding: `run` samples what `sampler.generate` samples.

With an environment, a row has turns. Tokens that the environment inserts after a turn are fed
through the row's cache one by one, in the same chunks in which other rows sample.

  rollout_table.py    state of each completion on the host, and when it continues or ends
  turns.py    an environment ends turns and answers them in threads; changes the table only
  slots.py    slots and cache on the device; reads the table
  decoding.py, chunk.py, sizes.py    the compiled programs, and their sizes
  hand_over.py    the sampler's copy of the weights
  engines.py    an engine for each device
  in_flight.py    rows that a run leaves to the next one, under other weights
"""

import jax
import numpy as np
from jax.sharding import Mesh

from jaxrl_llm import parallel
from jaxrl_llm.models import Model
from jaxrl_llm.rollouts import sizes, turns
from jaxrl_llm.rollouts.assembly import Completions, assemble, rollout_shape
from jaxrl_llm.rollouts.chunk import Sampled
from jaxrl_llm.rollouts.environment import Environment
from jaxrl_llm.rollouts.in_flight import InFlight, Unfinished
from jaxrl_llm.rollouts.next_token import Draw
from jaxrl_llm.rollouts.rollout_table import RolloutTable, Stats
from jaxrl_llm.rollouts.sizes import EngineConfig
from jaxrl_llm.rollouts.slots import Slots
from jaxrl_llm.rollouts.turns import Turns
from jaxrl_llm.types import STOP_LENGTH, STOP_TOKEN, PromptBatch, Rollout, Sampling

__all__ = ["EngineConfig", "Stats", "rollout_shape", "run", "run_on"]


def run(params, prompts: PromptBatch, key: jax.Array, sampling: Sampling, *, model: Model,
        cfg: EngineConfig, mesh: Mesh | None = None, max_new=None,
        environment: Environment | None = None, max_turns: int = 1,
        max_turn_tokens: int | None = None, tool_workers: int = 4,
        tool_chunks: int | None = None) -> tuple[Rollout, Stats]:
  """Samples completions of all rows. The key is consumed.

  Args:
    params: of `model`.
    prompts: [B, P], each prompt on `cfg.group_size` contiguous rows. Rows are admitted in order.
    key: the noise of a row comes from fold_in(fold_in(key, row_id), position).
    sampling: traced; temperature 0 is greedy. Its rules prune the distribution, which is then
      renormalised.
    mesh: its data devices divide the rows in flight and the rows returned. None: one device.
    max_new: [B] int, completion tokens of each row at most, inserted ids included, 1 to
      cfg.max_new_tokens. None: cfg.max_new_tokens. A row that ends here is truncated. Ids that do
      not fit are not inserted at all.
    environment: ends turns, asked after each chunk, and answers them in other threads while other
      rows continue. None: every row is one turn.
    max_turns: turns of a row at most; the environment learns which turn is the last.
    max_turn_tokens: a turn that is not over with this many tokens ends its row, which is truncated.
      None: no limit.
    tool_workers: threads in which the environment answers.
    tool_chunks: chunks that other rows decode before an answer is entered, so that two runs agree
      bit for bit. None: an answer is entered as soon as it arrives, so that rounding depends on the
      tool's speed.

  Returns:
    (Rollout with L = P + max_new_tokens as from `sampler.generate`, Stats). With `min_new_tokens`,
    behavior_log_probs are of the distribution without stop tokens where these are forbidden. With
    an environment, turn_id and void are set, and mask is False on inserted ids.

  Raises:
    ConfigError: sizes that do not fit the rows or devices; limits out of range; limits of turns
      without an environment; several processes.
    Exception: what the environment raises, after its other answers under way have come.
  """
  settings = {"max_turns": max_turns, "max_turn_tokens": max_turn_tokens,
              "tool_workers": tool_workers, "tool_chunks": tool_chunks}
  table = _make_table(prompts, max_new, cfg, mesh, (environment, settings))
  _decode(table, Slots(table, params, Draw(key, sampling), model=model, cfg=cfg, mesh=mesh),
          environment, settings)
  return _on_devices(_assemble(table, np.arange(len(table.limit))), mesh), table.stats


def run_on(params, prompts: PromptBatch, key: jax.Array, sampling: Sampling, in_flight: InFlight, *,
           model: Model, cfg: EngineConfig, mesh: Mesh | None = None,
           environment: Environment | None = None,
           **settings) -> tuple[Rollout, Unfinished, Stats]:
  """As `run`, but continues rows of an earlier run, and returns before all of its rows have ended.

  Args:
    prompts: first the prompts of the rows in `in_flight.begun`, then prompts of new rows.
    key: the same in all these runs, because a row's noise must not depend on the run.
    in_flight: how it begins and ends.
    **settings: of turns, as in `run`. Answers under way when it ends are waited for.

  Returns:
    (Rollout of the first `in_flight.groups` groups that have ended, with their `policy_step`; the
    other rows, in their order, for the next run; Stats).
  """
  settings = turns.UNSET | settings
  table = _make_table(prompts, None, cfg, mesh, (environment, settings))
  table.resume(in_flight.begun, in_flight.step)
  _decode(table, Slots(table, params, Draw(key, sampling), model=model, cfg=cfg, mesh=mesh),
          environment, settings, in_flight.groups)
  finished_groups = np.flatnonzero(table.ended_groups(cfg.group_size))[:in_flight.groups]
  returned = np.isin(np.arange(len(table.limit)) // cfg.group_size, finished_groups)
  return (_on_devices(_assemble(table, np.flatnonzero(returned)), mesh),
          Unfinished.from_table(table, np.flatnonzero(~returned)), table.stats)


def _make_table(prompts: PromptBatch, max_new, cfg: EngineConfig, mesh: Mesh | None,
                turn_parts: tuple[Environment | None, dict]) -> RolloutTable:
  """Checks the arguments of a run and returns its table.

  Args:
    turn_parts: environment and settings of turns.
  """
  environment, settings = turn_parts
  turns.check(environment, settings)
  host = jax.tree.map(np.asarray, jax.device_get(prompts))
  limit = np.full(len(host.row_id), cfg.max_new_tokens) if max_new is None else np.asarray(max_new)
  sizes.check(cfg, host, limit, mesh)
  return RolloutTable(host, limit, cfg, 0 if environment is None else settings["max_turns"],
              settings["max_turn_tokens"])


def _decode(table: RolloutTable, slots: Slots, environment: Environment | None, settings: dict,
            groups: int | None = None) -> None:
  """Decodes until `groups` groups have ended; None: until all rows have."""
  pending_turns = None
  if environment is not None:
    pending_turns = Turns(environment, table, settings["tool_workers"], settings["tool_chunks"],
                          slots.vocab_size)
  try:
    size = slots.cfg.group_size
    while not (groups and table.ended_groups(size).sum() >= groups) and slots.admit():
      if pending_turns:
        pending_turns.collect()
      if table.active().any():
        _record_chunk(table, pending_turns, *slots.decode())
    if pending_turns:
      pending_turns.collect_all()
  finally:
    if pending_turns:
      pending_turns.close()


def _record_chunk(table: RolloutTable, pending_turns: Turns | None, row: np.ndarray,
                  sampled: Sampled) -> None:
  """Adds a chunk to the table, cuts turns that are over, and ends finished rows.

  Args:
    row: [S], the row of each slot that took part.
  """
  for slot in np.flatnonzero(sampled.count):
    r, count = row[slot], sampled.count[slot]
    if not table.add_tokens(r, sampled.tokens[slot, :count], sampled.log_probs[slot, :count]):
      continue  # only pending tokens were fed
    if pending_turns and pending_turns.ends(r):
      continue  # the row waits for an answer
    if sampled.stopped[slot]:
      table.end(r, STOP_TOKEN)
    elif table.full(r):
      table.end(r, STOP_LENGTH)


def _assemble(table: RolloutTable, rows: np.ndarray) -> Rollout:
  """Returns the rollout of these rows, on the host."""
  turn_fields = {}
  if table.max_turns:
    turn_fields = {"turn_id": table.turn_id[rows], "void": table.void[rows]}
  completions = Completions(*(x[rows] for x in (table.tokens, table.log_probs, table.count,
                                                table.reason)))
  return assemble(jax.tree.map(lambda x: x[rows], table.prompts), completions, pad_id=table.pad_id,
                  policy_step=table.policy_step[rows], **turn_fields)


def _on_devices(rollout: Rollout, mesh: Mesh | None) -> Rollout:
  return jax.device_put(rollout) if mesh is None else parallel.to_global(rollout, mesh)
