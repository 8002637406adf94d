"""Preference pairs from sampled groups, training on them, and scores from two models."""

from collections import Counter
from collections.abc import Hashable, Sequence

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from experiments.papers.critical_tokens.dpo import DpoConfig, Side, contrastive_scores, dpo_loss
from jaxrl_llm.models import Model
from jaxrl_llm.objective.row_stats import row_stats
from jaxrl_llm.ops import masked
from jaxrl_llm.types import Mean


@struct.dataclass
class Responses:
  """One side of a batch of pairs, as rows.

  Attributes:
    tokens: [B, L] int32, prompt and response.
    length: [B] int32, tokens in the row.
    mask: [B, L], True on the response.
    ref_log_probs: [B, L] f32, nats, under the reference.
    weights: [B, L] f32, of each token in the loss.
  """

  tokens: Int[Array, "B L"]
  length: Int[Array, " B"]
  mask: Bool[Array, "B L"]
  ref_log_probs: Float[Array, "B L"]
  weights: Float[Array, "B L"]


@struct.dataclass
class PreferenceBatch:
  """One optimizer batch of pairs: row i of both sides answers the same prompt.

  Attributes:
    chosen, rejected: the sides.
    pair_weights: [B] f32; the loss is their sum with the pairs' losses.
  """

  chosen: Responses
  rejected: Responses
  pair_weights: Float[Array, " B"]


def preference_loss(params, batch: PreferenceBatch, *, model: Model,
                    cfg: DpoConfig) -> tuple[Float[Array, ""], dict]:
  """Returns sum(pair_weights * dpo_loss), additive over pairs, and its metrics."""
  chosen, rejected = (Side(row_stats(params, rows.tokens, rows.length, model=model).log_probs,
                           rows.ref_log_probs, rows.mask)
                      for rows in (batch.chosen, batch.rejected))
  losses = dpo_loss(chosen, rejected, cfg, chosen_w=batch.chosen.weights,
                    rejected_w=batch.rejected.weights)
  return jnp.sum(batch.pair_weights * losses), {
      "loss/preference": Mean(jnp.sum(losses), jnp.float32(len(losses))),
      "preference/chosen_log_prob": masked.mean(chosen.log_probs, chosen.mask)}


def preference_pairs(group_id: np.ndarray, correct: np.ndarray,
                     answers: Sequence[Hashable]) -> np.ndarray:
  """Returns rows (chosen, rejected) [P, 2], one pair for each group that has right and wrong rows.

  On each side it is the first row with the most frequent answer; of equally frequent ones, the
  answer that appeared first. A group without either side has no pair.

  Args:
    group_id: [B], any integers in any order.
    correct: [B] bool.
    answers: [B], equal for equal answers; None for a row without one, which is never chosen or
      rejected.

  Source: cDPO, arXiv 2411.19943, and its public code.
  """
  pairs = []
  for group in dict.fromkeys(group_id.tolist()):
    rows = np.flatnonzero(group_id == group)
    sides = [_by_frequency(rows[correct[rows] == side], answers) for side in (True, False)]
    if all(sides):
      pairs.append([side[0][0] for side in sides])
  return np.array(pairs, np.int64).reshape(-1, 2)


def _by_frequency(rows: np.ndarray, answers: Sequence[Hashable]) -> list[tuple[int, int]]:
  """Returns (first row, number of rows) of each answer among `rows`, the most frequent first."""
  counts = Counter(answers[row] for row in rows if answers[row] is not None)
  first = {answers[row]: int(row) for row in reversed(rows)}
  return [(first[answer], count) for answer, count in counts.most_common()]


def contrast_rows(group_id: np.ndarray, correct: np.ndarray, answers: Sequence[Hashable],
                  coverage: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
  """Returns the rows that the positive and the negative model are trained on.

  Positive: a right row of each group. Negative: a row of each distinct wrong answer, the most
  frequent first, until `coverage` of the group's wrong rows have an answer among them. Arguments as
  `preference_pairs`.

  Source: cDPO, arXiv 2411.19943.
  """
  positive, negative = [], []
  for group in dict.fromkeys(group_id.tolist()):
    rows = np.flatnonzero(group_id == group)
    positive += [row for row, _ in _by_frequency(rows[correct[rows]], answers)[:1]]
    wrong_rows = _by_frequency(rows[~correct[rows]], answers)
    covered, total = 0, sum(count for _, count in wrong_rows)
    for row, count in wrong_rows:
      if covered >= coverage * total:
        break
      negative.append(row)
      covered += count
  return np.array(positive, np.int64), np.array(negative, np.int64)


def token_scores(pos_params, neg_params, tokens: Int[Array, "B L"], length: Int[Array, " B"], *,
                 model: Model, beta: float = 1.0) -> Float[Array, "B L"]:
  """Returns `contrastive_scores` of each token of rows under two sets of parameters, f32.

  Entry 0 is 0: no token precedes it. Entries from `length` on mean nothing. The logits of one row
  at a time are in memory.
  """
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  segments = (positions < length[:, None]).astype(jnp.int32)
  states = [model.of_single_segments.hidden(params, tokens, positions, segments)[0]
            for params in (pos_params, neg_params)]
  heads = [model.head(params) for params in (pos_params, neg_params)]

  def row_scores(row):
    pos, neg, targets = row
    logits = [hidden[:-1].astype(jnp.float32) @ head.astype(jnp.float32)
              for hidden, head in zip((pos, neg), heads, strict=True)]
    return jnp.pad(contrastive_scores(*logits, targets[1:], beta), (1, 0))

  return lax.map(row_scores, (*states, tokens))
