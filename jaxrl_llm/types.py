"""Pytrees and protocols that cross a folder, and the dimension letters.

Dimensions: `B` rows (= prompts x group), `G` group size, `L` row length (prompt and completion
contiguous, right-padded), `V` vocabulary, `D` width, `H` heads, `K` kv-heads, `N` layers; inside
the network `R` bins of length `S`. Every per-token array is [B, L] and aligned with `tokens`: entry
t speaks of tokens[t] given tokens[<t].
"""

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

if TYPE_CHECKING:
  from transformers import PreTrainedTokenizerBase

Params = Any  # nested dict of arrays


@struct.dataclass
class PromptBatch:
  """Prompts, each repeated `group_size` times on contiguous rows.

  Attributes:
    tokens: [B, P] int32; the prompt from column 0 on, anything after it.
    prompt_length: [B] int32, tokens of the prompt, at least 1.
    row_id: [B] int32, unique in the run; seeds the row's sampling noise.
    group_id: [B] int32, equal within a group.
  """

  tokens: Int[Array, "B P"]
  prompt_length: Int[Array, " B"]
  row_id: Int[Array, " B"]
  group_id: Int[Array, " B"]


@struct.dataclass
class Sampling:
  """Traced sampling values: changing one does not recompile. `Sampling.of` takes plain numbers.

  The rules are applied in the order top_k, top_p, min_p to the distribution at this temperature
  (ops/vocabulary.py); what they leave is renormalised. The defaults prune nothing, and have the
  types of what `of` makes, so that both share one program.

  Attributes:
    temperature: scalar f32; 0 means greedy.
    top_k: scalar int32; only the top_k most likely tokens are drawn; 0 keeps all.
    top_p: scalar f32; only the most likely tokens that together reach this mass are drawn; 1 keeps
      all.
    min_p: scalar f32; tokens with a probability below min_p times the largest are never drawn; 0
      keeps all.
  """

  temperature: Float[Array, ""]
  top_k: Int[Array, ""] | np.int32 = np.int32(0)
  top_p: Float[Array, ""] | np.float32 = np.float32(1)
  min_p: Float[Array, ""] | np.float32 = np.float32(0)

  @classmethod
  def of(cls, temperature: float, *, top_k: int = 0, top_p: float = 1.0,
         min_p: float = 0.0) -> "Sampling":
    """From plain numbers."""
    return cls(jnp.float32(temperature), jnp.int32(top_k), jnp.float32(top_p), jnp.float32(min_p))


# Values of `Rollout.stop_reason`.
STOP_TOKEN, STOP_LENGTH, STOP_STRING, STOP_ENVIRONMENT, STOP_TURNS = range(5)


@struct.dataclass
class Rollout:
  """Sampled rows.

  Attributes:
    tokens: [B, L] int32; pad id after `length`.
    mask: [B, L] bool, True exactly on tokens that the policy sampled, the stop token included.
    length: [B] int32, prompt plus completion tokens.
    prompt_length: [B] int32.
    behavior_log_probs: [B, L] f32 of the distribution that was sampled from; 0 where mask is False.
    truncated: [B] bool, True exactly when the length limit ended the row.
    stop_reason: [B] int32: STOP_TOKEN (an end of sequence), STOP_LENGTH (a length limit),
      STOP_STRING (a stop string), STOP_ENVIRONMENT (the environment's own rule) or STOP_TURNS (the
      limit on policy turns).
    policy_step: [B] int32, `TrainState.step` of the parameters that sampled.
    row_id, group_id: [B] int32, from the prompts.
    turn_id: [B, L] int32, the policy's turns counted from 1, 0 outside of them; None: every row is
      one turn.
    void: [B] bool, True where a turn neither called a tool nor answered, and where the tool itself
      failed; None: no environment was asked.
  """

  tokens: Int[Array, "B L"]
  mask: Bool[Array, "B L"]
  length: Int[Array, " B"]
  prompt_length: Int[Array, " B"]
  behavior_log_probs: Float[Array, "B L"]
  truncated: Bool[Array, " B"]
  stop_reason: Int[Array, " B"]
  policy_step: Int[Array, " B"]
  row_id: Int[Array, " B"]
  group_id: Int[Array, " B"]
  turn_id: Int[Array, "B L"] | None = None
  void: Bool[Array, " B"] | None = None


@struct.dataclass
class TokenStats:
  """Statistics of the next-token distribution at chosen tokens; None where not asked for.

  Attributes:
    log_probs: f32 of the chosen token, nats; where the vocabulary is pruned, of the renormalised
      distribution.
    entropy: f32, nats.
    sum_pi_squared: f32, sum of squared probabilities.
    kept_mass: f32, probability of the kept vocabulary before renormalisation.
    in_support: bool, False where the chosen token is outside the kept vocabulary; its log-prob is
      then finite, the logit less the kept tokens' normaliser, and a constant.
    values: f32, the value head's estimate at the state before the token.
    routing: [N, B, L, k] int32, experts that each layer sent the token to.
  """

  log_probs: Array
  entropy: Array | None = None
  sum_pi_squared: Array | None = None
  kept_mass: Array | None = None
  in_support: Array | None = None
  values: Array | None = None
  routing: Array | None = None


@struct.dataclass
class AdvantageInputs:
  """What an advantage may read.

  Attributes:
    rewards: [B] f32; ignored where keep is False.
    mask: [B, L] bool.
    tokens: [B, L] int32.
    group_id: [B] int32, arbitrary and unsorted.
    keep: [B] bool or None (all); False takes a row out of every statistic.
    token_rewards: [B, L] f32 added to the outcome reward, which sits on the last policy token (KL
      in the reward).
    anchor_log_probs, ref_log_probs: [B, L] f32.
    sum_pi_squared: [B, L] f32 under the anchor.
    values: [B, L] f32; values[t] = V(tokens[<t]).
    correction_weights: [B, L] f32.
    turn_id: [B, L] int32; 0 outside policy turns, counted from 1.
  """

  rewards: Float[Array, " B"]
  mask: Bool[Array, "B L"]
  tokens: Int[Array, "B L"]
  group_id: Int[Array, " B"]
  keep: Bool[Array, " B"] | None = None
  token_rewards: Float[Array, "B L"] | None = None
  anchor_log_probs: Float[Array, "B L"] | None = None
  ref_log_probs: Float[Array, "B L"] | None = None
  sum_pi_squared: Float[Array, "B L"] | None = None
  values: Float[Array, "B L"] | None = None
  correction_weights: Float[Array, "B L"] | None = None
  turn_id: Int[Array, "B L"] | None = None


@struct.dataclass
class TrainBatch:
  """One optimizer batch of `policy_loss`.

  Attributes:
    rollout: rows.
    advantages: [B, L] f32, constants.
    loss_weights: [B, L] f32; loss = sum(loss_weights * per_token_loss).
    anchor_log_probs: [B, L] f32, the ratio's denominator; None where the anchor is the current
      policy itself, which then enters as its own detached log-probs.
    correction_weights: [B, L] f32; 0 on rejected tokens.
    ref_log_probs: [B, L] f32 of the KL reference, or None where no KL is asked for.
    values, returns: [B, L] f32 of the rollout's critic and its targets, or None without a critic.
    regularizer_weights: [B, L] f32 for the KL, entropy and value terms, or None where they are
      `loss_weights`.
    estimator_weights: [B, L] f32, a statistic of the whole optimizer batch (m2po), or None where
      none is needed.
    in_support: [B, L] bool, False where a token is outside the anchor's pruned vocabulary, or None
      (all inside).
  """

  rollout: Rollout
  advantages: Float[Array, "B L"]
  loss_weights: Float[Array, "B L"]
  anchor_log_probs: Float[Array, "B L"] | None
  correction_weights: Float[Array, "B L"]
  ref_log_probs: Float[Array, "B L"] | None = None
  values: Float[Array, "B L"] | None = None
  returns: Float[Array, "B L"] | None = None
  regularizer_weights: Float[Array, "B L"] | None = None
  estimator_weights: Float[Array, "B L"] | None = None
  in_support: Bool[Array, "B L"] | None = None


@struct.dataclass
class SupervisedBatch:
  """One optimizer batch of `sft_loss`: tokens [B, L] int32, loss_weights [B, L] f32 (0 on prompt
  and padding).
  """

  tokens: Int[Array, "B L"]
  length: Int[Array, " B"]
  loss_weights: Float[Array, "B L"]


@struct.dataclass
class EstimatorOutput:
  """per_token_loss: [B, L] f32, finite everywhere, ignored where mask is False; metrics: mergeable.
  """

  per_token_loss: Float[Array, "B L"]
  metrics: dict[str, Any]


@struct.dataclass
class TrainState:
  """step: int32 scalar, optimizer updates so far; params: the trained leaves; opt_state; frozen:
  the other leaves.
  """

  step: Int[Array, ""]
  params: Params
  opt_state: Any
  frozen: Any = None


@struct.dataclass
class Mean:
  """A mean that merges exactly: division happens only in the writer."""

  total: Array
  count: Array

  def reduce(self) -> "Mean":
    """Merge of the entries along a leading axis."""
    return Mean(jnp.sum(self.total, 0), jnp.sum(self.count, 0))


@struct.dataclass
class Histogram:
  """Counts over fixed edges; counts[i] is the number of values in [edges[i-1], edges[i]), open at
  both ends.

  Quantiles are read from it by the writer, so they merge across micro-batches and devices.
  """

  counts: Array
  edges: tuple = struct.field(pytree_node=False)

  def reduce(self) -> "Histogram":
    return self.replace(counts=jnp.sum(self.counts, 0))


@struct.dataclass
class Extreme:
  """Smallest and largest value seen; (+inf, -inf) where nothing was."""

  min: Array
  max: Array

  def reduce(self) -> "Extreme":
    return Extreme(jnp.min(self.min, 0), jnp.max(self.max, 0))


def merge_metrics(parts: list[dict]) -> dict:
  """One dict of metrics from several with the same keys."""
  stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts)
  return {name: metric.reduce() for name, metric in stacked.items()}


@dataclasses.dataclass(frozen=True)
class Problem:
  """prompt: text; answer: what the verifier compares with; demonstration: a worked completion, or
  None; id: unique.
  """

  prompt: str
  answer: str
  demonstration: str | None = None
  id: str = ""


@dataclasses.dataclass(frozen=True)
class Reward:
  """A verdict on the host.

  Attributes:
    value: the reward; meaningless where `unscored_reason` is set.
    correct: whether the answer is right.
    unscored_reason: why no verdict exists (counted, and excluded from the gradient), or None.
  """

  value: float
  correct: bool
  unscored_reason: str | None = None


class Task(Protocol):
  """A source of problems and their verifier; every method is a pure function of its arguments and
  the seed.

  With `updates.overlap` two threads call it at once: one draws the next batch, one evaluates. What
  a task keeps between calls must bear that.
  """

  tokenizer: "PreTrainedTokenizerBase"
  stop_ids: tuple[int, ...]

  def batch(self, index: int, shard: int = 0, shards: int = 1) -> list[Problem]: ...

  def heldout(self, size: int) -> list[Problem]: ...

  def render(self, problem: Problem) -> list[int]: ...

  def reward(self, problem: Problem, completion: str) -> Reward: ...

  def rewards(self, problems: list[Problem], completions: list[str]) -> list[Reward]: ...
