"""REINFORCE on rollouts whose thoughts are vectors or tokens, and whose answers are tokens.

Source: Soft Tokens, Hard Truths, arXiv 2509.19170.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from experiments.papers.soft_tokens.mixtures import (
  THOUGHT,
  SoftBatch,
  SoftRollout,
  ThoughtMode,
  gaussian_step_logp,
  mean_input,
)
from jaxrl_llm.ops import masked
from jaxrl_llm.ops.token_stats import scaled_logits


class Steps(NamedTuple):
  """Outputs of one pass over full rows, for each column. Column 0, which nothing precedes, and
  columns where the policy did nothing are meaningless in `means` and `logits`.

  Attributes:
    log_probs: [B, L] f32, nats: of the token, or of the fed vector in a soft thought (up to a
      constant). 0 where the policy did nothing.
    means: [B, L, D] f32, the inputs without noise; None for a thought of tokens.
    logits: [B, L, V] f32, that each column was predicted with.
  """

  log_probs: Float[Array, "B L"]
  means: Float[Array, "B L D"] | None
  logits: Float[Array, "B L V"]


def steps(params, sampled: SoftRollout, mode: ThoughtMode, answer_temperature, *,
          model) -> Steps:
  """Recomputes all steps of rows with one pass over the recorded inputs.

  Recorded inputs are constants: nothing is propagated back through the noise of an earlier step.
  The embeddings of prompts, answers and sampled tokens carry gradients as in any policy. The logits
  of all columns are held in memory together, so this is for vocabularies that are small or sharded.

  Args:
    mode, answer_temperature: that the rows were sampled with; temperatures above 0.
    model: see models/transformer.py.
  """
  rollout, embedding = sampled.rollout, model.embedding(params)
  thought = rollout.turn_id == THOUGHT
  fed = embedding[rollout.tokens]
  if mode.soft:
    inputs = lax.stop_gradient(masked.masked(sampled.inputs, thought[..., None]))
    fed = jnp.where(thought[..., None], inputs.astype(fed.dtype), fed)
  positions = jnp.broadcast_to(jnp.arange(thought.shape[1]), thought.shape)
  segments = (positions < rollout.length[:, None]).astype(jnp.int32)
  hidden, _ = model.hidden(params, fed, positions, segments)
  logits = _next_column(scaled_logits(hidden, model.head(params), 1.0))
  temperature = jnp.where(thought, mode.temperature, answer_temperature)
  all_log_probs = jax.nn.log_softmax(logits / temperature[..., None], -1)
  log_probs = jnp.take_along_axis(all_log_probs, rollout.tokens[..., None], -1)[..., 0]
  means = None
  if mode.soft:
    means = mean_input(logits, embedding, mode.temperature)
    log_probs = jnp.where(thought, gaussian_step_logp(inputs, means, mode.sigma), log_probs)
  return Steps(masked.masked(log_probs, rollout.mask), means, logits)


def soft_loss(params, batch: SoftBatch, *, model, cfg) -> tuple[Float[Array, ""], dict]:
  """Returns -sum(loss_weights * advantages * log pi) over thoughts and answers, and no metrics.

  With weights of `sequence_sum` it is -(1 / (B G)) sum_b sum_g A_bg sum_t log pi: the sum over
  tokens, without a ratio, so one update for each batch. `cfg` is not read: it is there for the
  signature that losses share.
  """
  del cfg
  step_stats = steps(params, batch.sampled, batch.mode, batch.answer_temperature, model=model)
  weights = masked.masked(batch.loss_weights * batch.advantages, batch.sampled.rollout.mask)
  return -jnp.sum(weights * step_stats.log_probs), {}


def _next_column(x: Array) -> Array:
  """Moves what a column predicts to the column that it speaks of; column 0 gets 0."""
  return jnp.pad(x[:, :-1], ((0, 0), (1, 0), (0, 0)))
