"""Rollouts from sampled completions: the one layout that all samplers return."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.config import SamplerConfig
from jaxrl_llm.types import STOP_LENGTH, PromptBatch, Rollout


class Completions(NamedTuple):
  """Sampled completions of B rows, on the host or traced.

  Attributes:
    tokens: [B, N] int32, from column 0 on, anything after `count`.
    log_probs: [B, N] f32, nats, of the sampled tokens.
    count: [B], completion tokens.
    reason: [B], STOP_* of `types`.
  """

  tokens: Any
  log_probs: Any
  count: Any
  reason: Any


def assemble(prompts: PromptBatch, completions: Completions, *, pad_id: int, turn_id=None,
             void=None, policy_step=None) -> Rollout:
  """Returns rows of length L = P + N with prompt and completion contiguous.

  Works on numpy arrays on the host, and on traced arrays inside a program.

  Args:
    prompts: tokens [B, P].
    pad_id: fills a row after its completion.
    turn_id: [B, N] int32, 0 for inserted ids, which the mask leaves out. None: every completion
      token was sampled.
    void: [B] bool or None.
    policy_step: [B, N] int32, of the weights that sampled each token. None: 0.
  """
  tokens, log_probs, count, reason = completions
  xp = np if isinstance(tokens, np.ndarray) else jnp
  width, size = prompts.tokens.shape[1], tokens.shape[1]
  column = xp.arange(width + size) - prompts.prompt_length[:, None]  # of the completion
  inside = (column >= 0) & (column < count[:, None])

  def moved(completion):
    return xp.take_along_axis(completion, xp.clip(column, 0, size - 1), axis=1)

  prompt = xp.pad(prompts.tokens, ((0, 0), (0, size)))
  row_tokens = xp.where(column < 0, prompt, xp.where(inside, moved(tokens), pad_id))
  if turn_id is not None:
    turn_id = xp.where(inside, moved(turn_id), 0).astype(xp.int32)
  mask = inside if turn_id is None else turn_id > 0
  if policy_step is None:
    policy_step = xp.zeros_like(tokens)
  return Rollout(
      tokens=row_tokens.astype(xp.int32), mask=mask,
      length=(prompts.prompt_length + count).astype(xp.int32),
      prompt_length=prompts.prompt_length.astype(xp.int32),
      behavior_log_probs=xp.where(mask, moved(log_probs), 0.0).astype(xp.float32),
      truncated=reason == STOP_LENGTH, stop_reason=reason.astype(xp.int32),
      policy_step=xp.where(mask, moved(policy_step), 0).astype(xp.int32), row_id=prompts.row_id,
      group_id=prompts.group_id, turn_id=turn_id, void=void)


def rollout_shape(prompts: PromptBatch, cfg: SamplerConfig, *, turns: bool = False) -> Rollout:
  """Returns shapes and dtypes of the rollout of these prompts, without sampling.

  Args:
    prompts: arrays or shapes.
    cfg: of `generate` or of the engine.
    turns: with an environment, so that turn_id and void exist.
  """
  rows, shape = prompts.tokens.shape[0], jax.ShapeDtypeStruct
  per_token, per_row = shape((rows, cfg.max_new_tokens), np.int32), shape((rows,), np.int32)
  turn_fields = {"turn_id": per_token, "void": shape((rows,), bool)} if turns else {}

  def assemble_rows(prompts, completions, turn_fields):
    return assemble(prompts, completions, pad_id=cfg.pad_id, **turn_fields)

  log_probs = shape(per_token.shape, np.float32)
  completions = Completions(per_token, log_probs, per_row, per_row)
  return jax.eval_shape(assemble_rows, prompts, completions, turn_fields)
