"""Operations that a model of this shape needs at least: 2 per weight and token, and attention.

A token attends to itself and to all earlier ones of its row, or to those of a layer's window. The
backward pass costs twice the forward pass; nothing is computed twice. All rows count at full
length, padding included.
"""

import dataclasses

from jaxrl_llm.config import ModelConfig, RolloutConfig
from jaxrl_llm.models import kv_cache


def layer_weights(m: ModelConfig) -> float:
  """Returns the matrix entries of all blocks that a token meets."""
  attention = 2 * m.width * m.head_dim * (m.num_heads + m.num_kv_heads)
  dense = 3 * m.width * m.mlp_width
  experts = m.width * m.num_experts + 3 * m.width * m.expert_width * m.experts_per_token
  with_experts = m.num_layers - len(m.dense_layers) if m.num_experts else 0
  mlps = with_experts * experts + (m.num_layers - with_experts) * dense
  return m.num_layers * attention + mlps


def head_weights(m: ModelConfig) -> float:
  """Returns the entries of the output head."""
  return m.width * m.vocab_size


def attention(m: ModelConfig, first: int, last: int) -> float:
  """Returns operations of all layers for the tokens first to last - 1 of one row."""
  pairs = sum(pairs_of(last, window) - pairs_of(first, window) for window in kv_cache.windows(m))
  return 4.0 * m.num_heads * m.head_dim * pairs


def pairs_of(length: float, window: int) -> float:
  """Returns the pairs of a token and one that it attends to, in a row; `window` 0: there is none.
  """
  within = min(length, window or length)
  return within * (within + 1) / 2 + (length - within) * within


def forward(m: ModelConfig, rollout: RolloutConfig, rows: int) -> float:
  """Returns operations of one pass over full rows that predicts each completion token."""
  length = rollout.row_length
  return rows * (2 * layer_weights(m) * length + attention(m, 0, length) +
                 2 * head_weights(m) * rollout.max_new_tokens)


def update(m: ModelConfig, rollout: RolloutConfig, rows: int, adapters: bool = False) -> float:
  """Returns operations of one optimizer step on so many rows: on all parameters, or on adapters of
  all matrices, whose small products are not counted and whose matrices have no gradient.
  """
  passes = forward(m, rollout, rows)
  frozen = passes - rows * attention(m, 0, rollout.row_length) if adapters else 0
  return 3 * (passes + ahead(m, rollout, rows)) - frozen


def ahead(m: ModelConfig, rollout: RolloutConfig, rows: int) -> float:
  """Returns operations of the module that predicts two tokens ahead, as `forward`; 0 without it."""
  if not m.mtp:
    return 0.0
  dense = (0,) if m.num_layers - 1 in m.dense_layers else ()
  window = kv_cache.windows(m)[-1]
  m, length = dataclasses.replace(m, num_layers=1, dense_layers=dense, window=window,
                                  full_layers=()), rollout.row_length
  weights = layer_weights(m) + 2 * m.width**2
  return rows * (2 * weights * length + attention(m, 0, length) +
                 2 * head_weights(m) * rollout.max_new_tokens)


def prefill(m: ModelConfig, width: int, prompts: int) -> float:
  """Returns operations of a pass over full prompts of `width` tokens."""
  return prompts * (2 * layer_weights(m) * width + attention(m, 0, width))


def decode(m: ModelConfig, rollout: RolloutConfig, rows: int, steps: int | None = None) -> float:
  """Returns operations of sampling tokens for each row.

  Args:
    steps: the last so many tokens of each row; None: all of its completion.
  """
  steps = rollout.max_new_tokens if steps is None else steps
  per_token = 2 * (layer_weights(m) + head_weights(m))
  return rows * (steps * per_token +
                 attention(m, rollout.row_length - steps, rollout.row_length))
