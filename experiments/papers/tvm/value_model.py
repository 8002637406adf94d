"""A value model: the probability that a row ends right, after each of its tokens.

The network is a policy's, with the critic's head: a linear map without bias from the last hidden
state to one number. It is trained on labels of `objective.value_labels` or on any others.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jaxtyping import Array, Float, Int

from experiments.tables_lib.rows import padded_rows
from jaxrl_llm.config import AggregationConfig, OptimizerConfig, StepConfig
from jaxrl_llm.fields import ConfigError
from jaxrl_llm.models import Model
from jaxrl_llm.objective.aggregation import loss_weights
from jaxrl_llm.ops import masked
from jaxrl_llm.ops.token_stats import token_stats
from jaxrl_llm.training.optimizers import make_optimizer
from jaxrl_llm.training.train_step import init_state, make_train_step
from jaxrl_llm.types import Params

LINKS = ("identity", "sigmoid")


@dataclasses.dataclass(frozen=True)
class ValueLoss:
  """The loss of a value model.

  Attributes:
    link: `identity`: the value is the head's number, and the loss is the squared error (OVM);
      `sigmoid`: the value is its sigmoid, and the loss the binary cross-entropy. Both have the
      conditional mean of the label as their minimum.
    language_coef: weight of the language model's cross-entropy on the same tokens; OVM has 1.
  """

  link: str = "identity"
  language_coef: float = 0.0

  def __post_init__(self):
    if self.link not in LINKS:
      raise ConfigError(f"link = {self.link!r}: allowed are {', '.join(LINKS)}. Fix: one of them.")


@struct.dataclass
class ValueBatch:
  """One optimizer batch of `value_loss`.

  Attributes:
    tokens: [B, L] int32, prompt and response.
    length: [B] int32, tokens in the row.
    labels: [B, L] f32 in [0, 1], of the state after each token; read where the weight is not 0.
    loss_weights: [B, L] f32; the loss is their sum with the terms of the tokens.
  """

  tokens: Int[Array, "B L"]
  length: Int[Array, " B"]
  labels: Float[Array, "B L"]
  loss_weights: Float[Array, "B L"]


def value_batch(tokens, length, labels, mask) -> ValueBatch:
  """Returns a batch whose terms are summed over the tokens of `mask` and divided by rows (OVM)."""
  weights = loss_weights(jnp.asarray(mask), None, None, AggregationConfig("sequence_sum"))
  return ValueBatch(jnp.asarray(tokens), jnp.asarray(length), jnp.asarray(labels, jnp.float32),
                    weights)


def token_values(params, tokens: Int[Array, "B L"], length: Int[Array, " B"], *, model: Model,
                 link: str = "identity") -> Float[Array, "B L"]:
  """Returns the value of the state after each token, f32; it means nothing from `length` on.

  This is one column earlier than `TokenStats.values`, which speak of the state before a token.

  Raises:
    ValueError: the model has no value head.
  """
  raw = model.values(params, _hidden(params, tokens, length, model))
  return jax.nn.sigmoid(raw) if link == "sigmoid" else raw


def _hidden(params, tokens, length, model: Model) -> Float[Array, "B L D"]:
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  segments = (positions < length[:, None]).astype(jnp.int32)
  return model.of_single_segments.hidden(params, tokens, positions, segments)[0]


def value_loss(params, batch: ValueBatch, *, model: Model,
               cfg: ValueLoss) -> tuple[Float[Array, ""], dict]:
  """Returns sum(loss_weights * term), additive over rows, and its metrics.

    identity: term = (v - label)^2        sigmoid: term = -label log s(v) - (1 - label) log s(-v)

  plus `language_coef` times -log pi of the same token.

  Source: OVM, arXiv 2311.09724, for the squared error and the language term; TVM, arXiv 2407.12863,
  for the labels. TVM's own loss is unconfirmed.
  """
  hidden = _hidden(params, batch.tokens, batch.length, model)
  raw, mask = model.values(params, hidden), batch.loss_weights > 0
  labels = masked.masked(batch.labels, mask)
  if cfg.link == "sigmoid":
    terms = optax.sigmoid_binary_cross_entropy(raw, labels)
  else:
    terms = jnp.square(raw - labels)
  loss = jnp.sum(batch.loss_weights * masked.masked(terms, mask))
  metrics = {"loss/value": masked.mean(terms, mask)}
  if cfg.language_coef:
    log_probs = token_stats(hidden, model.head(params), jnp.roll(batch.tokens, -1, 1),
                            temperature=1.0).log_probs
    # Column t - 1 predicts token t; the first token is predicted by none.
    negative = jnp.pad(-log_probs[:, :-1], ((0, 0), (1, 0)))
    loss += cfg.language_coef * jnp.sum(batch.loss_weights * masked.masked(negative, mask))
    metrics["loss/language"] = masked.mean(negative, mask)
  return loss, metrics


def make_value_step(model: Model, steps: int, learning_rate: float, cfg: ValueLoss, mesh
                    ) -> Callable[[Params, Iterable[ValueBatch]], tuple[Params, list[float]]]:
  """Returns `train_value`: (params, `steps` batches) -> (trained params, loss of each step).

  AdamW without weight decay; the learning rate falls linearly to 0, without a warm-up, as OVM's.
  The program is compiled once, also for several trainings. The given parameters stay usable.
  """
  tx = make_optimizer(OptimizerConfig(), optax.linear_schedule(learning_rate, 0.0, steps))
  step = make_train_step(functools.partial(_loss, value=cfg), model, tx, StepConfig(), mesh)

  def train_value(params, batches):
    state = init_state(jax.tree.map(jnp.array, params), tx)
    losses = []
    for _, batch in zip(range(steps), batches, strict=True):
      state, metrics = step(state, batch)
      losses.append(metrics["loss/value"])
    return state.params, [float(loss.total / loss.count) for loss in jax.device_get(losses)]

  return train_value


def _loss(params, batch, *, model, cfg, value: ValueLoss):
  """Returns `value_loss`, with the signature that `train_step` expects; `cfg` is the policy's."""
  del cfg
  return value_loss(params, batch, model=model, cfg=value)


def make_scorer(params, model: Model, link: str = "identity"
                ) -> Callable[[Sequence[Sequence[int]]], np.ndarray]:
  """Returns a function from rows of ids to the value after the last id of each, [R] float64."""

  @jax.jit
  def last_values(params, tokens, length):
    values = token_values(params, tokens, length, model=model, link=link)
    return jnp.take_along_axis(values, length[:, None] - 1, 1)[:, 0]

  def score(rows):
    values = last_values(params, *map(jnp.asarray, padded_rows(rows)))
    return np.asarray(values, np.float64)[:len(rows)]

  return score
