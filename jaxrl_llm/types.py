"""The pytrees and protocols that several packages share, and the dimension letters.

Dimensions: `B` rows (= prompts x group size), `G` group size, `P` prompt width, `L` row length
(prompt and completion are contiguous and right-padded), `V` vocabulary, `D` width, `H` heads, `K`
kv-heads, `N` layers, `k` experts per token. Inside the network there are `R` rows of `S` tokens:
the batch's own, or bins of packed rows.

Every per-token array is [B, L] and aligned with `tokens`: entry t belongs to tokens[t] given
tokens[<t]. Log-probabilities and entropies are in nats. A *policy token* is a token that the policy
sampled, where `mask` is True. The other entries are the prompt, tool output and padding; each field
says below what it holds there.
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
    tokens: [B, P] int32, the prompt from column 0 on. The columns after it may hold any id.
    prompt_length: [B] int32, tokens in the prompt, at least 1.
    row_id: [B] int32, unique in the run. It seeds the row's sampling noise.
    group_id: [B] int32, equal within a group.
  """

  tokens: Int[Array, "B P"]
  prompt_length: Int[Array, " B"]
  row_id: Int[Array, " B"]
  group_id: Int[Array, " B"]


@struct.dataclass
class Sampling:
  """Parameters of the sampling rule. They are traced, so changing one does not recompile.

  The rules are applied to the distribution at `temperature`, and the kept tokens are renormalised
  (ops/vocabulary.py). The defaults keep all tokens. They have the dtypes that `of` gives, so that
  both share one compiled program.

  Attributes:
    temperature: scalar f32; 0 means greedy.
    top_k: scalar int32, keep the top_k most likely tokens; 0 keeps all.
    top_p: scalar f32, keep the fewest most likely tokens that together reach this probability; 1
      keeps all.
    min_p: scalar f32, keep the tokens whose probability is at least min_p times the largest; 0
      keeps all.
    logit_noise: scalar f32, standard deviation of the normal noise that a sampler adds to its
      logits before the temperature; scorers ignore it.
    further: scalars f32 of other rules, by name.
  """

  temperature: Float[Array, ""]
  top_k: Int[Array, ""] | np.int32 = np.int32(0)
  top_p: Float[Array, ""] | np.float32 = np.float32(1)
  min_p: Float[Array, ""] | np.float32 = np.float32(0)
  logit_noise: Float[Array, ""] | np.float32 = np.float32(0)
  further: dict[str, Float[Array, ""] | np.float32] = dataclasses.field(default_factory=dict)

  @classmethod
  def of(cls, temperature: float, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0,
         logit_noise: float = 0.0, **further: float) -> "Sampling":
    """Converts plain numbers."""
    return cls(jnp.float32(temperature), jnp.int32(top_k), jnp.float32(top_p), jnp.float32(min_p),
               jnp.float32(logit_noise),
               {name: jnp.float32(value) for name, value in further.items()})

  @property
  def rules(self) -> dict[str, Array]:
    """Returns the values of all rules of the vocabulary, by name."""
    return {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p, **self.further}


# Values of `Rollout.stop_reason`.
STOP_TOKEN, STOP_LENGTH, STOP_STRING, STOP_ENVIRONMENT, STOP_TURNS = range(5)


@struct.dataclass
class Rollout:
  """Sampled rows.

  Attributes:
    tokens: [B, L] int32, prompt and completion; the pad id from column `length` on.
    mask: [B, L] bool, True exactly on policy tokens, the stop token included.
    length: [B] int32, tokens in prompt and completion.
    prompt_length: [B] int32, tokens in the prompt.
    behavior_log_probs: [B, L] f32, under the distribution that the token was sampled from; 0 where
      mask is False.
    truncated: [B] bool, True exactly where a length limit ended the row.
    stop_reason: [B] int32, what ended the row: STOP_TOKEN (an end-of-sequence token), STOP_LENGTH
      (a length limit), STOP_STRING (a stop string), STOP_ENVIRONMENT (the environment's own rule)
      or STOP_TURNS (the limit on policy turns).
    policy_step: [B, L] int32, `TrainState.step` of the parameters that sampled the token; 0 where
      mask is False.
    row_id: [B] int32, from the prompts.
    group_id: [B] int32, from the prompts.
    turn_id: [B, L] int32, the policy's turn, counted from 1; 0 where mask is False. None where
      every row is one turn.
    void: [B] bool, True where the row says nothing about the policy: its last turn neither called a
      tool nor answered, or the tool itself failed. None without an environment.
    routing: [B, L, N, k] int16, the experts that each of the N layers with experts sent the token
      to when it was fed to the sampler; -1 where it was not, as the last one and padding. None
      without `rollout.routing`.
  """

  tokens: Int[Array, "B L"]
  mask: Bool[Array, "B L"]
  length: Int[Array, " B"]
  prompt_length: Int[Array, " B"]
  behavior_log_probs: Float[Array, "B L"]
  truncated: Bool[Array, " B"]
  stop_reason: Int[Array, " B"]
  policy_step: Int[Array, "B L"]
  row_id: Int[Array, " B"]
  group_id: Int[Array, " B"]
  turn_id: Int[Array, "B L"] | None = None
  void: Bool[Array, " B"] | None = None
  routing: Int[Array, "B L N k"] | None = None


@struct.dataclass
class TokenStats:
  """Statistics of the next-token distribution at given tokens; None where not asked for.

  The shape is the tokens' shape, [B, L] for full rows. There column 0, which nothing precedes, is
  0 (False); prompt and padding columns are either 0 (False) or meaningless.

  Attributes:
    log_probs: f32, of the given token. With a pruned vocabulary: under the renormalised
      distribution.
    entropy: f32, nats.
    sum_pi_squared: f32, sum of squared probabilities.
    kept_mass: f32, probability of the kept vocabulary before renormalisation; 1 without pruning.
    in_support: bool, False where the token is outside the kept vocabulary. Its log-prob is then the
      logit minus the kept tokens' normaliser: finite, and a constant for gradients.
    values: f32, the value head's estimate for the state before the token.
    mtp_log_probs: f32, of the given token under the head that predicts two tokens ahead, from the
      tokens up to the one but last before it; 0 in columns 0 and 1. At padding it means nothing.
    routing: [N, R, S, k] int32, the experts that each layer sent the token to; padding is routed
      too. R rows of S tokens are the network's: [B, L], or the bins of packed rows.
    likely_routing: likewise, the routers' choice where recorded experts take its place; else None.
  """

  log_probs: Array
  entropy: Array | None = None
  sum_pi_squared: Array | None = None
  kept_mass: Array | None = None
  in_support: Array | None = None
  values: Array | None = None
  routing: Array | None = None
  likely_routing: Array | None = None
  mtp_log_probs: Array | None = None


@struct.dataclass
class AdvantageInputs:
  """Everything that an advantage may read. No [B, L] field is read where mask is False.

  Attributes:
    rewards: [B] f32, of the full row; not read where keep is False.
    mask: [B, L] bool, True on policy tokens.
    tokens: [B, L] int32.
    group_id: [B] int32, equal within a group; any integers, in any order.
    keep: [B] bool, False where the row is dropped from every statistic. None keeps all rows.
    token_rewards: [B, L] f32, added to the row's reward, which belongs to the last policy token (a
      KL penalty in the reward). None adds nothing.
    anchor_log_probs: [B, L] f32, denominator of the ratio; None where not given.
    ref_log_probs: [B, L] f32, under the KL reference; None where not given.
    sum_pi_squared: [B, L] f32, under the anchor; None where not given.
    values: [B, L] f32, values[t] = V(tokens[<t]); None without a critic.
    correction_weights: [B, L] f32, 0 on rejected tokens; None where not given.
    turn_id: [B, L] int32, the policy's turn, counted from 1; 0 where mask is False. None where not
      given.
    entropy: [B, L] f32, nats, of the anchor's distribution that the token was sampled from; None
      where not given.
    columns: [B, L] arrays by name, which the advantage reads (training/columns.py); None where it
      asks for none.
    reward_parts: [B, K] f32, the parts whose sum is the row's reward; not read where keep is False.
      None where not given.
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
  entropy: Float[Array, "B L"] | None = None
  columns: dict[str, Array] | None = None
  reward_parts: Float[Array, "B K"] | None = None


@struct.dataclass
class Bins:
  """Packing of R rows for the network: rows n K .. n K + K - 1 lie in bin n (ops/bins.py).

  Attributes:
    capacity: C, tokens of a bin.
    rows: K, rows of a bin, of which some may be empty.
    shared: [R] int32, tokens at the beginning of a row that are not stored again, because the last
      row before it in the bin with 0 here begins with the same tokens; None: 0 everywhere. Rows
      that share with the same row have the same number.
  """

  capacity: int = struct.field(pytree_node=False)
  rows: int = struct.field(pytree_node=False)
  shared: Int[Array, " R"] | None = None


@struct.dataclass
class TrainBatch:
  """One optimizer batch of `policy_loss`. All arrays are constants for gradients.

  Attributes:
    rollout: the rows.
    advantages: [B, L] f32; 0 where mask is False and on dropped rows.
    loss_weights: [B, L] f32, with loss = sum(loss_weights * per_token_loss); 0 where mask is False
      and on dropped rows.
    anchor_log_probs: [B, L] f32, denominator of the ratio; not read where mask is False. None where
      the anchor is the current policy: its own detached log-probs are then used.
    correction_weights: [B, L] f32, 0 on rejected tokens; 1 where mask is False.
    ref_log_probs: [B, L] f32, under the KL reference; not read where mask is False. None without a
      KL term.
    values: [B, L] f32, the critic's estimates at rollout time; not read where mask is False. None
      without a critic.
    returns: [B, L] f32, the critic's targets; 0 where mask is False. None without a critic.
    regularizer_weights: [B, L] f32, weights of the KL, entropy and value terms; 0 where mask is
      False. None where they are `loss_weights`.
    estimator_weights: [B, L] f32, what a statistic of the full optimizer batch gives each token
      (m2po). None where the estimator needs none.
    in_support: [B, L] bool, False where the token is outside the anchor's pruned vocabulary. None
      where all are inside.
    bins: how the rows of a micro-batch are packed; None where each has a separate row.
    columns: arrays by name that lead with rows: the columns of training/columns.py that a loss
      term, the estimator or an update transform asks for, not read where mask is False, and what a
      transform adds for its term. None where nothing asks.
    at_anchor: [B] bool, the same on all rows: True in a rollout's first optimizer batch, where the
      policy still is the anchor. None where no column is of the anchor.
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
  bins: Bins | None = None
  columns: dict[str, Array] | None = None
  at_anchor: Bool[Array, " B"] | None = None


@struct.dataclass
class SupervisedBatch:
  """One optimizer batch of `sft_loss`.

  Attributes:
    tokens: [B, L] int32, prompt and completion; any id from column `length` on.
    length: [B] int32, tokens in the row.
    loss_weights: [B, L] f32, with loss = -sum(loss_weights * log_probs); 0 on prompt and padding.
  """

  tokens: Int[Array, "B L"]
  length: Int[Array, " B"]
  loss_weights: Float[Array, "B L"]


@struct.dataclass
class EstimatorOutput:
  """The result of an estimator.

  Attributes:
    per_token_loss: [B, L] f32, finite everywhere; ignored where mask is False.
    metrics: by name, each a Mean, Histogram or Extreme.
  """

  per_token_loss: Float[Array, "B L"]
  metrics: dict[str, Any]


@struct.dataclass
class TrainState:
  """The training state that an optimizer update reads and replaces.

  Attributes:
    step: scalar int32, optimizer updates so far.
    params: the trained leaves (models/trainable.py).
    opt_state: the optimizer's state of `params`.
    frozen: the leaves that are not trained; None where all are.
  """

  step: Int[Array, ""]
  params: Params
  opt_state: Any
  frozen: Any = None


@struct.dataclass
class CarryingState(TrainState):
  """The TrainState of a run whose update transforms carry something from update to update.

  It is a separate class, so that the checkpoints of other runs stay as they are.

  Attributes:
    carried: by the name of the transform.
  """

  carried: dict[str, Any] | None = None


@struct.dataclass
class Mean:
  """A mean that merges exactly across micro-batches and devices: only the writer divides.

  Attributes:
    total: f32, scalar or vector, the sum of the values.
    count: f32, of the same shape, how many values were added.
  """

  total: Array
  count: Array

  def reduce(self) -> "Mean":
    """Merges the entries along a leading axis."""
    return Mean(jnp.sum(self.total, 0), jnp.sum(self.count, 0))


@struct.dataclass
class Histogram:
  """Counts of values between fixed edges, from which the writer reads quantiles.

  Attributes:
    counts: [len(edges) + 1] f32; counts[i] is the number of values in [edges[i-1], edges[i]). The
      first and the last interval are unbounded.
    edges: floats, ascending, in the unit of the values.
  """

  counts: Array
  edges: tuple = struct.field(pytree_node=False)

  def reduce(self) -> "Histogram":
    """Merges the entries along a leading axis."""
    return self.replace(counts=jnp.sum(self.counts, 0))


@struct.dataclass
class Extreme:
  """Smallest and largest value seen.

  Attributes:
    min: scalar in the values' dtype; +inf where no value was seen.
    max: scalar in the values' dtype; -inf where no value was seen.
  """

  min: Array
  max: Array

  def reduce(self) -> "Extreme":
    """Merges the entries along a leading axis."""
    return Extreme(jnp.min(self.min, 0), jnp.max(self.max, 0))


@struct.dataclass
class EffectiveShare:
  """Effective sample size of weights as a share of their number, (sum w)^2 / (n sum w^2): 1 if they
  are equal, 1 / n if one outweighs the others. Merges across micro-batches and devices.

  Source: L. Kish, Survey Sampling, 1965, section 11.7.

  Attributes:
    total: f32 scalar, the sum of the weights.
    squares: f32 scalar, the sum of their squares.
    count: f32 scalar, how many they are, n.
  """

  total: Array
  squares: Array
  count: Array

  def reduce(self) -> "EffectiveShare":
    """Merges the entries along a leading axis."""
    return EffectiveShare(*(jnp.sum(x, 0) for x in (self.total, self.squares, self.count)))


def no_metrics(shapes: dict) -> dict:
  """Returns metrics of these shapes (`jax.eval_shape`) that change nothing they are merged with."""

  def nothing(metric):
    if isinstance(metric, Extreme):
      return Extreme(jnp.full_like(metric.min, jnp.inf), jnp.full_like(metric.max, -jnp.inf))
    return jax.tree.map(jnp.zeros_like, metric)

  return {name: nothing(metric) for name, metric in shapes.items()}


def merge_metrics(metrics: list[dict]) -> dict:
  """Merges dicts of metrics that have the same names."""
  stacks = jax.tree.map(lambda *leaves: jnp.stack(leaves), *metrics)
  return {name: metric.reduce() for name, metric in stacks.items()}


@dataclasses.dataclass(frozen=True)
class Problem:
  """A problem of a task.

  Attributes:
    prompt: text.
    answer: what the verifier compares a completion with.
    demonstration: a worked completion; None where the task has none.
    id: unique in the task.
    context: the problem's own messages before the prompt, as (role, content).
    teacher: name of the teacher of its completions, where `teacher.pretrained` has several.
  """

  prompt: str
  answer: str
  demonstration: str | None = None
  id: str = ""
  context: tuple[tuple[str, str], ...] = ()
  teacher: str = ""


@dataclasses.dataclass(frozen=True)
class Reward:
  """The verdict on a completion.

  Attributes:
    value: the reward; meaningless where `unscored_reason` is set.
    correct: whether the answer is right; None where the reward does not say.
    unscored_reason: why there is no verdict; None where there is one. An unscored row is counted,
      and dropped from the update.
    components: (name, value) pairs that `value` was added up from, before their weights; empty
      where the reward is one number.
    rung: comparison that decided (`grading/comparisons.Verdict`); None where the task names none.
  """

  value: float
  correct: bool | None
  unscored_reason: str | None = None
  components: tuple[tuple[str, float], ...] = ()
  rung: str | None = dataclasses.field(default=None, compare=False)


class Task(Protocol):
  """A source of problems and their verifier.

  Each method depends only on its arguments and the seed. With `updates.overlap` two threads use a
  task concurrently, one for the next batch and one for evaluation, so whatever a task keeps between
  calls must be thread-safe.

  Attributes:
    tokenizer: the checkpoint's, or the task's own.
    stop_ids: tokens that end a completion.
    tool, protocol: names of the tool and of the notation of calls (rollouts/environment.py); None:
      the task uses no tool.
    has_demonstrations: whether each problem has a demonstration, as a warm start needs.
  """

  tokenizer: "PreTrainedTokenizerBase"
  stop_ids: tuple[int, ...]
  tool: str | None
  protocol: str | None
  has_demonstrations: bool

  def batch(self, index: int, shard: int = 0, shards: int = 1) -> list[Problem]:
    """Returns the training problems of batch `index`: the contiguous share of process `shard` of
    `shards`.
    """

  def heldout(self, size: int) -> list[Problem]:
    """Returns the first `size` held-out problems, the same for every seed; -1: all, if they are
    counted.
    """

  def render(self, problem: Problem) -> list[int]:
    """Returns the token ids of the prompt."""

  def reward(self, problem: Problem, completion: str) -> Reward:
    """Returns the verdict on one completion, given as text."""

  def rewards(self, problems: list[Problem], completions: list[str]) -> list[Reward]:
    """Returns the verdicts on problems[i] and completions[i], in order."""

  def longest_prompt(self) -> int:
    """Returns the number of tokens of the longest prompt."""

  def longest_demonstration(self) -> int:
    """Returns the number of tokens of the longest demonstration."""

  def demonstration(self, problem: Problem) -> list[int]:
    """Returns the completion ids of the demonstrated answer, the end of sequence included."""

  def demonstration_mask(self, problem: Problem) -> list[bool]:
    """Returns True on the ids of `demonstration` that the policy writes."""
