"""Generation with rows that come and go: a host loop over compiled chunks of decode steps.

Rows wait in a queue and take the slots of a fixed batch. Between two chunks, ended rows give their
slot to waiting ones; once none waits, the rows that are left move into a smaller batch. A token's
noise is a function of (key, row_id, position) alone, so none of this changes a token beyond
rounding: `run` draws what `sampler.generate` draws.

With an environment, a row has turns: what the environment puts behind one is fed through the row's
cache token by token, in the same chunks in which other rows draw (turns.py).
"""

import jax
import numpy as np
from jax.sharding import Mesh

from jaxrl_llm import parallel
from jaxrl_llm.fields import ConfigError
from jaxrl_llm.models import Model
from jaxrl_llm.rollouts.environment import Environment
from jaxrl_llm.rollouts.flight import Flight
from jaxrl_llm.rollouts.plan import EngineConfig, Stats, check, programs
from jaxrl_llm.rollouts.turns import Turns
from jaxrl_llm.types import STOP_LENGTH, PromptBatch, Rollout, Sampling

__all__ = ["EngineConfig", "Stats", "programs", "rollout_shape", "run"]


def run(params, prompts: PromptBatch, key: jax.Array, sampling: Sampling, *, model: Model,
        cfg: EngineConfig, mesh: Mesh | None = None, max_new=None,
        environment: Environment | None = None, max_turns: int = 1,
        max_turn_tokens: int | None = None, tool_workers: int = 4,
        tool_chunks: int | None = None) -> tuple[Rollout, Stats]:
  """Sample completions of all rows. The key is consumed.

  Args:
    params: of `model`.
    prompts: [B, P], each prompt on `cfg.group_size` contiguous rows. Rows are admitted in this
      order.
    key: a row's noise is fold_in(fold_in(key, row_id), position).
    sampling: traced; temperature 0 is greedy. Tokens are drawn from what its rules keep,
      renormalised.
    mesh: rows in flight, and the rows returned, are divided over its data devices. None: one
      device.
    max_new: int [B], completion tokens of a row at most, 1 to cfg.max_new_tokens; None:
      cfg.max_new_tokens. A row that ends so is truncated. Inserted ids count; where they do not fit
      as a whole, none is put in.
    environment: asked after each chunk whether a row's turn is over, and in another thread what
      follows it; the row waits meanwhile, others go on. None: every row is one turn without a limit
      of its own.
    max_turns: of the policy in a row; the environment is told which is the last.
    max_turn_tokens: a turn that is not over with this many tokens ends its row, which is truncated;
      None: no limit.
    tool_workers: threads in which the environment answers.
    tool_chunks: chunks that other rows decode before an answer is entered, whether it came earlier
      or is waited for: two runs then agree bit for bit. None: as it comes, so that rounding depends
        on when.

  Returns:
    (Rollout with L = P + max_new_tokens as from `sampler.generate`, Stats). With `min_new_tokens`,
    behavior_log_probs are those of the distribution without stop tokens where these are forbidden.
    With an environment, also turn_id and void; mask is False on inserted ids.

  Raises:
    ConfigError: sizes that do not fit the rows or devices; limits out of range, or of turns without
    an environment; several processes. What the environment raises, once its other answers under way
    have come.
  """
  host = jax.tree.map(np.asarray, jax.device_get(prompts))
  limit = np.full(len(host.row_id), cfg.max_new_tokens) if max_new is None else np.asarray(max_new)
  check(cfg, host, limit, mesh)
  if environment is None:
    for name, value, unset in (("max_turns", max_turns, 1), ("max_turn_tokens", max_turn_tokens,
                                                             None),
                               ("tool_workers", tool_workers, 4), ("tool_chunks", tool_chunks,
                                                                   None)):
      if value != unset:
        raise ConfigError(
            f"{name} = {value} without an environment: allowed is {unset}. Fix: an environment.")
  turns = None if environment is None else Turns(environment, len(limit), cfg.max_new_tokens,
                                                 max_turns, max_turn_tokens, tool_workers,
                                                 tool_chunks)
  flight = Flight(params, host, key, sampling, limit, model, cfg, mesh, turns)
  try:
    while flight.admit():
      if turns:
        turns.collect(flight)
      if flight.active().any():
        flight.fit()
        flight.decode()
  finally:
    if turns:
      turns.close()
  rollout = _assemble(flight, cfg)
  place = jax.device_put if mesh is None else lambda tree: parallel.to_global(tree, mesh)
  return place(rollout), flight.stats


def rollout_shape(prompts: PromptBatch, cfg: EngineConfig, *, turns: bool = False) -> Rollout:
  """Shapes and dtypes of what `run` returns (`turns`: with an environment), for programs made
  before the first one.
  """
  (rows, width), struct = prompts.tokens.shape, jax.ShapeDtypeStruct
  whole, row = (rows, width + cfg.max_new_tokens), struct((rows,), np.int32)
  return Rollout(tokens=struct(whole, np.int32), mask=struct(whole, bool), length=row,
                 prompt_length=row, behavior_log_probs=struct(whole, np.float32), truncated=struct(
                     (rows,), bool), stop_reason=row, policy_step=row, row_id=row, group_id=row,
                 turn_id=struct(whole, np.int32) if turns else None, void=struct(
                     (rows,), bool) if turns else None)


def _assemble(flight: Flight, cfg: EngineConfig) -> Rollout:
  """Rows with prompt and completion contiguous, on the host."""
  host, count = flight.host, flight.count.astype(np.int32)
  rows, width = host.tokens.shape
  new = np.arange(width + cfg.max_new_tokens) - host.prompt_length[:, None]
  inside = (new >= 0) & (new < count[:, None])
  completion = lambda x: np.take_along_axis(x, np.clip(new, 0, cfg.max_new_tokens - 1), axis=1)
  prompt = np.pad(host.tokens, ((0, 0), (0, cfg.max_new_tokens)))
  tokens = np.where(new < 0, prompt, np.where(inside, completion(flight.tokens), cfg.pad_id))
  turn_id = np.where(inside, completion(flight.turns.turn_id), 0).astype(
      np.int32) if flight.turns else None
  mask = inside if turn_id is None else turn_id > 0
  return Rollout(
      tokens=tokens.astype(np.int32), mask=mask, length=(host.prompt_length + count).astype(
          np.int32), prompt_length=host.prompt_length.astype(np.int32),
      behavior_log_probs=np.where(mask, completion(flight.log_probs), 0).astype(np.float32),
      truncated=flight.reason == STOP_LENGTH, stop_reason=flight.reason.astype(np.int32),
      policy_step=np.zeros(rows, np.int32), row_id=host.row_id, group_id=host.group_id,
      turn_id=turn_id, void=flight.turns.void if flight.turns else None)
