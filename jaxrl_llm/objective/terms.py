"""Terms of the loss in addition to the estimator's: one table for the package's and plugins' terms.

  loss = policy loss + sum over the terms of coefficient * sum(weights * per-token loss)

A term says which statistics of the current policy and which columns of the batch it reads. KL,
entropy and the critic's value loss have their own sections of the config (`kl`, `entropy`,
`critic`); every other term is named in `term.name`, several by commas, and has its hyperparameters
there.
"""

import dataclasses
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxrl_llm.config import CriticConfig, KLConfig, LossConfig
from jaxrl_llm.fields import option
from jaxrl_llm.objective import divergences, estimators
from jaxrl_llm.objective.estimators.common import masked_log_ratio
from jaxrl_llm.ops import masked
from jaxrl_llm.registry import LOSS_TERMS, Entry
from jaxrl_llm.types import TokenStats, TrainBatch

# Statistics of the current policy that a term may ask for; log-probs are always there.
STATISTICS = frozenset({"entropy", "sum_pi_squared", "values", "mtp_log_probs"})
POLICY, REGULARIZER = "policy", "regularizer"


class TermInputs(NamedTuple):
  """Everything that a term may read.

  Attributes:
    stats: TokenStats [B, L] of the current policy, with gradient: the log-probs, and what the term
      asks for.
    batch: the rows and their constants; `batch.columns` has the columns that the term asks for.
    live: [B, L] bool, policy tokens of rows with weight that are inside the vocabulary.
    surrogate: the run's estimator, (log_probs, anchor_log_probs, advantages, mask) -> loss of each
      token [B, L].
  """

  stats: TokenStats
  batch: TrainBatch
  live: Bool[Array, "B L"]
  surrogate: Callable[..., Float[Array, "B L"]]


class TermOutput(NamedTuple):
  """Output of a loss term.

  Attributes:
    per_token_loss: [B, L] f32, finite everywhere, 0 where the term does not count a token.
    metrics: by name, each a Mean, Histogram or Extreme.
    coefficient: [B, 1] f32, the term's weight where it is no number of the config; None: `coef`.
  """

  per_token_loss: Float[Array, "B L"]
  metrics: dict[str, Any]
  coefficient: Float[Array, "B 1"] | None = None


@dataclasses.dataclass(frozen=True)
class TermEntry(Entry):
  """A term in the table.

  Attributes:
    function: `term(inputs: TermInputs, cfg) -> TermOutput`; `cfg` is an instance of `numbers`.
    stats: members of STATISTICS that it reads.
    columns: names of training/columns.py that it reads.
    row_columns: columns [B] that its transform adds to the batch.
    weights: POLICY, the weights of the policy loss with correction, or REGULARIZER, the
      aggregation's weights that ignore advantages.
    detached: whether embedding, trunk and output head get no gradient of the module that predicts
      two tokens ahead.
    transform: the update transform that finds a coefficient or column of the term; None: none.
    check: refuses configs that it cannot be trained under; its parameters name the sections that
      it gets, such as `updates`, and `name`, the term's.
  """

  stats: frozenset[str] = frozenset()
  columns: frozenset[str] = frozenset()
  row_columns: frozenset[str] = frozenset()
  weights: str = REGULARIZER
  detached: bool = False
  transform: Any = None
  check: Callable | None = None


def register(name: str, numbers: type | None = None, *, stats: Collection[str] = (),
             columns: Collection[str] = (), weights: str = REGULARIZER, replace: bool = False,
             make: Callable[..., TermEntry] | None = None, **defaults):
  """Returns a decorator that enters a term in the table; see `TermEntry`.

  Args:
    name: one of the names in `term.name`.
    numbers: frozen dataclass of the hyperparameters that the function reads; `fields.option` makes
      its fields. `coef` among them weighs the term, unless it returns a coefficient.
    stats, columns, weights: see `TermEntry`.
    replace: overwrites an entry on purpose, for notebooks that run a cell again.
    make: makes the entry of (function, numbers), for the fields that are not arguments here.
    **defaults: the hyperparameters and their defaults, instead of `numbers`.

  Raises:
    ValueError: the name is taken, or `stats` or `weights` is none of the allowed.
  """
  unknown = sorted(set(stats) - STATISTICS)
  if unknown:
    raise ValueError(f"term {name!r} needs {unknown}; allowed are {sorted(STATISTICS)}")
  if weights not in (POLICY, REGULARIZER):
    raise ValueError(f"term {name!r}: weights = {weights!r}; allowed are {POLICY!r} and "
                     f"{REGULARIZER!r}")

  def entry(function, cls: type) -> TermEntry:
    return TermEntry(function, cls, frozenset(stats), frozenset(columns), weights=weights)

  return LOSS_TERMS.register(name, numbers, replace=replace, make=make or entry, **defaults)


@register("none")
def none(inputs: TermInputs, cfg) -> TermOutput:
  """Adds nothing."""
  del cfg
  return TermOutput(jnp.zeros_like(inputs.batch.advantages), {})


@dataclasses.dataclass(frozen=True)
class Distill:
  """Hyperparameters of `distill`."""

  coef: float = option(1.0, "weight of the divergence from the teacher", low=0.0)
  divergence: str = option("k1+", "estimator of the divergence, as kl.name",
                           choices=divergences.NAMES)


@register("distill", Distill, columns={"teacher_log_probs"})
def distill(inputs: TermInputs, cfg: Distill) -> TermOutput:
  """Returns the divergence of each token from the teacher: reverse KL on the policy's completions.

  Source: arXiv 2306.13649; the estimators are in `divergences.get_divergence`.
  """
  teacher = inputs.batch.columns["teacher_log_probs"]
  divergence = divergences.get_divergence(cfg.divergence)(inputs.stats.log_probs, teacher,
                                                          inputs.live)
  return TermOutput(divergence, {"distill/divergence": masked.mean(lax.stop_gradient(divergence),
                                                                   inputs.live)})


def kl(inputs: TermInputs, cfg: KLConfig) -> TermOutput:
  """Returns the divergence from the reference policy, per token."""
  batch = inputs.batch
  divergence = kl_terms(inputs.stats.log_probs, batch.ref_log_probs,
                        batch.rollout.behavior_log_probs, inputs.live, cfg)
  return TermOutput(divergence, {
      "kl/reference": masked.mean(lax.stop_gradient(divergence), batch.rollout.mask)})


def entropy(inputs: TermInputs, cfg) -> TermOutput:
  """Returns the negative entropy of each policy token: a bonus where `coef` is positive."""
  del cfg
  return TermOutput(-masked.masked(inputs.stats.entropy, inputs.batch.rollout.mask), {})


def critic(inputs: TermInputs, cfg: CriticConfig) -> TermOutput:
  """Returns the clipped value loss of each policy token."""
  batch, values, mask = inputs.batch, inputs.stats.values, inputs.batch.rollout.mask
  losses = value_terms(values, batch.values, batch.returns, mask, cfg)
  return TermOutput(losses, {"critic/loss": masked.mean(losses, mask),
                             "critic/value": masked.mean(values, mask),
                             "critic/return": masked.mean(batch.returns, mask)})


KL, ENTROPY = TermEntry(kl), TermEntry(entropy, stats=frozenset({"entropy"}))
CRITIC = TermEntry(critic, stats=frozenset({"values"}))


class ActiveTerm(NamedTuple):
  """A term of a run: its entry, and the hyperparameters that its function reads."""

  entry: TermEntry
  numbers: Any


def active(cfg: LossConfig) -> list[ActiveTerm]:
  """Returns the terms of a loss, in the order in which they are added."""
  terms = []
  if cfg.kl.coef and cfg.kl.place == "loss":
    terms.append(ActiveTerm(KL, cfg.kl))
  if cfg.entropy.coef:
    terms.append(ActiveTerm(ENTROPY, cfg.entropy))
  if cfg.critic is not None:
    terms.append(ActiveTerm(CRITIC, cfg.critic))
  if cfg.term is not None:
    numbers = LOSS_TERMS.numbers(cfg.term)
    terms += [ActiveTerm(entry, numbers)
              for name, entry in LOSS_TERMS.parts(cfg.term.name).items() if name != "none"]
  return terms


def surrogate_of(cfg: LossConfig) -> Callable[..., Float[Array, "B L"]]:
  """Returns the run's estimator as `TermInputs.surrogate`."""
  estimator = estimators.get_estimator(cfg.estimator.name)

  def surrogate(log_probs, anchor_log_probs, advantages, mask):
    return estimator(log_probs, anchor_log_probs, advantages, mask, cfg.estimator).per_token_loss

  return surrogate


def add(loss: Float[Array, ""], metrics: dict, inputs: TermInputs, cfg: LossConfig,
        weights: dict[str, Float[Array, "B L"]]) -> tuple[Float[Array, ""], dict]:
  """Returns the loss with all terms of `cfg`, and the metrics with the terms' metrics.

  Args:
    weights: of the tokens, by `TermEntry.weights`.
  """
  for term in active(cfg):
    output = term.entry.function(inputs, term.numbers)
    of_tokens = weights[term.entry.weights]
    if output.coefficient is None:
      loss += term.numbers.coef * jnp.sum(of_tokens * output.per_token_loss)
    else:
      loss += jnp.sum(output.coefficient * of_tokens * output.per_token_loss)
    metrics = metrics | output.metrics
  return loss, metrics


def kl_terms(log_probs, ref_log_probs, behavior_log_probs, mask,
             cfg: KLConfig) -> Float[Array, "B L"]:
  """Returns the divergence of each token; with `importance`, times the ratio pi / behavior.

  Gradients flow through that ratio. With k3 and `importance` the expected gradient is the gradient
  of KL(pi || ref), also off-policy.

  Source: DeepSeek-V3.2, arXiv 2512.02556.
  """
  divergence = divergences.get_divergence(cfg.name)(log_probs, ref_log_probs, mask)
  if not cfg.importance:
    return divergence
  return divergence * jnp.exp(masked_log_ratio(log_probs, behavior_log_probs, mask))


def value_terms(values, old_values, returns, mask, cfg: CriticConfig) -> Float[Array, "B L"]:
  """Returns max((V - R)^2, (clip(V, V_old +- clip) - R)^2) / 2, 0 where mask is False.

  Source: the clipped value loss of OpenAI baselines' PPO2.
  """
  values, old_values, returns = (masked.masked(x, mask) for x in (values, old_values, returns))
  error = jnp.square(values - returns)
  if cfg.clip is not None:
    near = jnp.clip(values, old_values - cfg.clip, old_values + cfg.clip)
    error = jnp.maximum(error, jnp.square(near - returns))
  return masked.masked(error / 2, mask)
