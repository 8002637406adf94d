"""Generation with rows that come and go: a host loop over compiled chunks of decode steps.

Rows are queued and take the slots of a fixed batch. Between two chunks, queued rows take the slots
of ended ones; once the queue is empty, the rows that are left move into a smaller batch. The noise
of a token is a function of (key, row_id, position) only, so none of this changes a token beyond
rounding: `run` samples what `sampler.generate` samples.

With an environment, a row has turns. What the environment inserts after a turn is fed through the
row's cache token by token, in the same chunks in which other rows sample.

  book.py    what the host knows of each row, and the rules by which it goes on or ends
  turns.py   an environment ends turns and answers them in threads; touches the book only
  ring.py    slots and cache on the device; reads the book
  decoding.py, chunk.py, sizes.py    the compiled programs, and their sizes
  hand_over.py    the sampler's copy of the weights
  engines.py    an engine for each device
"""

import jax
import numpy as np
from jax.sharding import Mesh

from jaxrl_llm import parallel
from jaxrl_llm.models import Model
from jaxrl_llm.rollouts import sizes, turns
from jaxrl_llm.rollouts.assembly import Completions, assemble, rollout_shape
from jaxrl_llm.rollouts.book import Book, Stats
from jaxrl_llm.rollouts.chunk import Sampled
from jaxrl_llm.rollouts.environment import Environment
from jaxrl_llm.rollouts.next_token import Draw
from jaxrl_llm.rollouts.ring import Ring
from jaxrl_llm.rollouts.sizes import EngineConfig, programs
from jaxrl_llm.rollouts.turns import Turns
from jaxrl_llm.types import STOP_LENGTH, STOP_TOKEN, PromptBatch, Rollout, Sampling

__all__ = ["EngineConfig", "Stats", "programs", "rollout_shape", "run"]


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
      rows go on. None: every row is one turn.
    max_turns: turns of a row at most; the environment is told which turn is the last.
    max_turn_tokens: a turn that is not over with this many tokens ends its row, which is truncated.
      None: no limit.
    tool_workers: threads in which the environment answers.
    tool_chunks: chunks that other rows decode before an answer is entered, so that two runs agree
      bit for bit. None: an answer is entered as soon as it is there, so that rounding depends on
      the tool's speed.

  Returns:
    (Rollout with L = P + max_new_tokens as from `sampler.generate`, Stats). With `min_new_tokens`,
    behavior_log_probs are of the distribution without stop tokens where these are forbidden. With
    an environment, turn_id and void are set, and mask is False on inserted ids.

  Raises:
    ConfigError: sizes that do not fit the rows or devices; limits out of range; limits of turns
      without an environment; several processes.
    Exception: what the environment raises, after its other answers under way have come.
  """
  turns.check(environment, {"max_turns": max_turns, "max_turn_tokens": max_turn_tokens,
                            "tool_workers": tool_workers, "tool_chunks": tool_chunks})
  host = jax.tree.map(np.asarray, jax.device_get(prompts))
  limit = np.full(len(host.row_id), cfg.max_new_tokens) if max_new is None else np.asarray(max_new)
  sizes.check(cfg, host, limit, mesh)
  book = Book(host, limit, cfg, 0 if environment is None else max_turns, max_turn_tokens)
  ring = Ring(book, params, Draw(key, sampling), model=model, cfg=cfg, mesh=mesh)
  pending_turns = None if environment is None else Turns(environment, book, tool_workers,
                                                         tool_chunks)
  try:
    while ring.admit():
      if pending_turns:
        pending_turns.collect()
      if book.active().any():
        ring.fit()
        _enter(book, pending_turns, *ring.decode())
  finally:
    if pending_turns:
      pending_turns.close()
  rollout = _assemble(book)
  return jax.device_put(rollout) if mesh is None else parallel.to_global(rollout, mesh), book.stats


def _enter(book: Book, pending_turns: Turns | None, row: np.ndarray, sampled: Sampled) -> None:
  """Enters a chunk in the book, cuts turns that are over, and ends finished rows.

  Args:
    row: [S], the row of each slot.
  """
  for slot in np.flatnonzero(sampled.count):
    r, count = row[slot], sampled.count[slot]
    if not book.enter(r, sampled.tokens[slot, :count], sampled.log_probs[slot, :count]):
      continue  # only pending tokens were fed
    if pending_turns and pending_turns.ends(r):
      continue  # the row waits for an answer
    if sampled.stopped[slot]:
      book.end(r, STOP_TOKEN)
    elif book.full(r):
      book.end(r, STOP_LENGTH)


def _assemble(book: Book) -> Rollout:
  turn_fields = {"turn_id": book.turn_id, "void": book.void} if book.max_turns else {}
  completions = Completions(book.tokens, book.log_probs, book.count, book.reason)
  return assemble(book.prompts, completions, pad_id=book.pad_id, **turn_fields)
