"""Generation with a thought of tokens or of vectors, and an answer of tokens, in one program.

A row is prompt, thought, prefill, answer, without gaps. The thought ends when its tokens end with
the closing phrase; in a soft thought these are the most likely tokens of the steps, a shadow that
the model never reads. Then the prefill opens the answer. A thought that reaches its cap gets phrase
and prefill. Each row advances independently, so one loop has rows in every stage.

Source: Soft Tokens, Hard Truths, arXiv 2509.19170.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from experiments.papers.soft_tokens.mixtures import (
  ANSWER,
  THOUGHT,
  SoftRollout,
  ThoughtMode,
  gaussian_step_logp,
  mean_input,
)
from jaxrl_llm.models import kv_cache
from jaxrl_llm.ops.token_stats import scaled_logits
from jaxrl_llm.rollouts.assembly import Completions, assemble
from jaxrl_llm.rollouts.next_token import first_arg_max, row_keys, sample_token
from jaxrl_llm.rollouts.sampler import prefill
from jaxrl_llm.types import STOP_LENGTH, STOP_TOKEN, PromptBatch, Sampling

FORCED, DONE = 0, 3  # stages in addition to THOUGHT and ANSWER; 0 is also the turn of text put in
NOISE = 2  # folded into a position's key; the other two numbers are of next_token.py


@dataclasses.dataclass(frozen=True)
class SoftSamplerConfig:
  """Sizes and texts of `generate_soft`, compiled into the program.

  Attributes:
    end_ids: the phrase that closes a thought, at least one token.
    prefill_ids: tokens that open the answer; may be empty.
    stop_ids: tokens that end the answer.
    max_thought, max_answer: tokens of a thought and of an answer at most, at least 1 each.
    group_size: contiguous rows that share a prompt, which is prefilled once.
    pad_id: fills a row after its end.
  """

  end_ids: tuple[int, ...]
  prefill_ids: tuple[int, ...]
  stop_ids: tuple[int, ...]
  max_thought: int
  max_answer: int
  group_size: int = 1
  pad_id: int = 0

  def __post_init__(self):
    sizes = {"end_ids": len(self.end_ids), "max_thought": self.max_thought,
             "max_answer": self.max_answer}
    for name, size in sizes.items():
      if size < 1:
        raise ValueError(f"SoftSamplerConfig: {name} = {getattr(self, name)!r}: no token is "
                         "allowed. Fix: at least one.")

  @property
  def longest(self) -> int:
    """Columns after the prompt."""
    return self.max_thought + len(self.end_ids) + len(self.prefill_ids) + self.max_answer


@struct.dataclass
class _Loop:
  """State after `step` columns of each row that continues; column n of an array is the row's n-th
  after the prompt.

  Attributes:
    hidden: [B, D], predicts the next column.
    stage: [B] int32, of the next column.
    recent: [B, F] int32, the last tokens of the thought; -1 before its beginning.
    forced: [B] int32, tokens of phrase and prefill that need not be put in any more.
    answered, count: [B] int32, tokens of the answer so far, and columns of the row.
    truncated: [B] bool, the answer reached its cap.
    tokens, turns: [B, N] int32.
    log_probs: [B, N] f32.
    inputs: [B, N, D] f32, of soft thoughts; [B, N, 0] if thoughts are of tokens.
  """

  cache: kv_cache.KVCache
  hidden: Array
  step: Int[Array, ""]
  stage: Int[Array, " B"]
  recent: Int[Array, "B F"]
  forced: Int[Array, " B"]
  answered: Int[Array, " B"]
  count: Int[Array, " B"]
  truncated: Bool[Array, " B"]
  tokens: Int[Array, "B N"]
  turns: Int[Array, "B N"]
  log_probs: Float[Array, "B N"]
  inputs: Float[Array, "B N D"]


class _Choice(NamedTuple):
  """The next column of each row: token [B], log_prob [B], vector [B, D]."""

  token: Array
  log_prob: Array
  vector: Array


def generate_soft(params, prompts: PromptBatch, key: Array,
                  samplings: tuple[ThoughtMode, Sampling], *, model,
                  cfg: SoftSamplerConfig) -> SoftRollout:
  """Samples thoughts and answers. The key is consumed.

  The noise of a row's column is a function of (key, row_id, column) only, so a row does not depend
  on the other rows.

  Args:
    params: of `model`.
    prompts: [B, P] with each prompt on `cfg.group_size` contiguous rows.
    samplings: of the thoughts, and of the answers: only their temperature is read; 0 is greedy.
    cfg: static.

  Returns:
    SoftRollout with L = P + cfg.longest. Its `truncated` is of the answer.
  """
  mode, answer = samplings
  keys = row_keys(key, prompts.row_id)
  hidden, cache = prefill(params, prompts, model, cfg.group_size)
  cache = kv_cache.grow(cache, prompts.tokens.shape[1] + cfg.longest)
  width = hidden.shape[-1] if mode.soft else 0

  def step(loop: _Loop) -> _Loop:
    column = prompts.prompt_length + loop.step
    thought = _think(params, loop.hidden, keys, column, mode, model)
    answered = sample_token(loop.hidden, model.head(params), (keys, column),
                            Sampling(answer.temperature), rules=frozenset())
    choice = _choose(loop, thought, answered, model.embedding(params), cfg)
    live = (loop.stage != DONE).astype(jnp.int32)
    hidden, cache = model.hidden(params, choice.vector[:, None], column[:, None], live[:, None],
                                 cache=loop.cache)
    return _append(loop, choice, cfg).replace(cache=cache, hidden=hidden[:, 0])

  def unfinished(loop: _Loop):
    return (loop.step < cfg.longest) & jnp.any(loop.stage != DONE)

  loop = lax.while_loop(unfinished, step, _start(hidden, cache, width, cfg))
  reason = jnp.where(loop.truncated, STOP_LENGTH, STOP_TOKEN)
  completions = Completions(loop.tokens, loop.log_probs, loop.count, reason)
  rollout = assemble(prompts, completions, pad_id=cfg.pad_id, turn_id=loop.turns)
  return SoftRollout(rollout, _align_inputs(loop.inputs, rollout) if mode.soft else None)


def input_noise(keys, width: int) -> Float[Array, "B D"]:
  """Returns standard normal noise [B, width] f32 from the keys [B] of a column of each row."""

  def row_noise(key):
    return jax.random.normal(jax.random.fold_in(key, NOISE), (width,), jnp.float32)

  return jax.vmap(row_noise)(keys)


def _think(params, hidden, keys, column, mode: ThoughtMode, model) -> _Choice:
  """Returns the next step of a thought, for all rows."""
  embedding, head = model.embedding(params), model.head(params)
  if not mode.soft:
    token, log_prob = sample_token(hidden, head, (keys, column), Sampling(mode.temperature),
                                   rules=frozenset())
    return _Choice(token, log_prob, embedding[token])
  logits = scaled_logits(hidden, head, 1.0)
  mean = mean_input(logits, embedding, mode.temperature)
  at_column = jax.vmap(jax.random.fold_in)(keys, column)
  vector = mean + mode.sigma * input_noise(at_column, mean.shape[-1])
  return _Choice(first_arg_max(logits), gaussian_step_logp(vector, mean, mode.sigma), vector)


def _choose(loop: _Loop, thought: _Choice, answer: tuple[Array, Array], embedding,
            cfg: SoftSamplerConfig) -> _Choice:
  """Returns the token, its log-prob and the next input of each row [B], by the row's stage.

  Args:
    answer: token and log-prob [B] where a row answers.
  """
  texts = jnp.asarray(cfg.end_ids + cfg.prefill_ids, jnp.int32)
  put_in = texts[jnp.minimum(loop.forced, len(texts) - 1)]
  answered, log_prob = answer
  thinking, answering = loop.stage == THOUGHT, loop.stage == ANSWER
  token = jnp.where(thinking, thought.token, jnp.where(answering, answered, put_in))
  log_prob = jnp.where(thinking, thought.log_prob, jnp.where(answering, log_prob, 0.0))
  vector = jnp.where(thinking[:, None], thought.vector, embedding[token].astype(jnp.float32))
  return _Choice(token, log_prob, vector)


def _start(hidden, cache, width: int, cfg: SoftSamplerConfig) -> _Loop:
  """Returns the state after the prompt; inputs of `width` coordinates are kept."""
  rows, size = hidden.shape[0], cfg.longest
  none, columns = jnp.zeros(rows, jnp.int32), jnp.zeros((rows, size), jnp.int32)
  return _Loop(cache=cache, hidden=hidden, step=jnp.int32(0), stage=none + THOUGHT,
               recent=jnp.full((rows, len(cfg.end_ids)), -1, jnp.int32), forced=none,
               answered=none, count=none, truncated=jnp.zeros(rows, bool), tokens=columns,
               turns=columns, log_probs=jnp.zeros((rows, size), jnp.float32),
               inputs=jnp.zeros((rows, size, width), jnp.float32))


def _append(loop: _Loop, choice: _Choice, cfg: SoftSamplerConfig) -> _Loop:
  """Writes the chosen column of unfinished rows, and finds the stage of their next one."""
  stage, token = loop.stage, choice.token
  thinking, answering = stage == THOUGHT, stage == ANSWER
  recent = jnp.concatenate([loop.recent[:, 1:], token[:, None]], 1)
  closed = thinking & jnp.all(recent == jnp.asarray(cfg.end_ids, jnp.int32), 1)
  opens = closed | (thinking & (loop.step + 1 >= cfg.max_thought))
  forced = jnp.where(closed, len(cfg.end_ids), loop.forced + (stage == FORCED))
  answered = loop.answered + answering
  stopped = answering & jnp.isin(token, jnp.asarray(cfg.stop_ids, jnp.int32))
  cut = answering & ~stopped & (answered >= cfg.max_answer)
  complete = forced >= len(cfg.end_ids) + len(cfg.prefill_ids)
  after = jnp.where(opens, FORCED, stage)
  after = jnp.where((after == FORCED) & complete, ANSWER, after)
  after = jnp.where(stopped | cut, DONE, after)

  def put(old, new):
    start = (0, loop.step, *(0,) * (old.ndim - 2))
    return lax.dynamic_update_slice(old, new[:, None].astype(old.dtype), start)

  inputs = loop.inputs
  if inputs.shape[-1]:
    inputs = put(inputs, jnp.where(thinking[:, None], choice.vector, 0))
  return loop.replace(
      step=loop.step + 1, stage=after, recent=recent, forced=forced, answered=answered,
      count=loop.count + (stage != DONE), truncated=loop.truncated | cut,
      tokens=put(loop.tokens, token), turns=put(loop.turns, jnp.where(stage == DONE, 0, stage)),
      log_probs=put(loop.log_probs, choice.log_prob), inputs=inputs)


def _align_inputs(inputs: Float[Array, "B N D"], rollout) -> Float[Array, "B L D"]:
  """Lays what was fed at the n-th column after the prompt at its own column, as `assemble` does."""
  column = jnp.arange(rollout.tokens.shape[1]) - rollout.prompt_length[:, None]
  column_index = jnp.clip(column, 0, inputs.shape[1] - 1)[..., None]
  return jnp.where((rollout.turn_id == THOUGHT)[..., None],
                   jnp.take_along_axis(inputs, column_index, axis=1), 0)
