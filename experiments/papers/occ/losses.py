"""Losses of the head that predicts two tokens ahead (multi-token prediction, MTP), by name.

  total = policy loss + coefficient * sum(weights * loss of each token)

The coefficient is a number of the config, or calibrated on the full optimizer batch. A loss that
reads advantages has the weights of the policy loss; the others have the weights of the KL and
entropy terms, which ignore advantages. The head's token counts where the policy's does, but for the
second token of a row, which nothing precedes by two.

Each loss is a term of the loss (objective/terms.py), so `term.name` chooses it.

Source: OCC, arXiv 2605.28184; its public code and what we chose instead is in derivations.md.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from experiments.papers.occ import checks
from experiments.papers.occ.calibration import COEFFICIENT, Calibration
from jaxrl_llm import register
from jaxrl_llm.fields import option, when
from jaxrl_llm.objective import terms
from jaxrl_llm.objective.row_stats import predicted_ahead
from jaxrl_llm.ops import masked
from jaxrl_llm.registry import Entry
from jaxrl_llm.types import Mean

STATISTIC = "mtp_log_probs"
EPSILON = 1e-8  # nats^2, in the denominator of OCC's quotient
ADVANTAGES, ANCHOR = "advantages", "mtp_anchor_log_probs"


@dataclasses.dataclass(frozen=True)
class MtpInputs:
  """Everything that a loss of the head may read; nothing but `mtp_log_probs` has a gradient.

  Attributes:
    mtp_log_probs: [B, L] f32, of the head; 0 where mask is False.
    log_probs: [B, L] f32, of the policy.
    mask: [B, L] bool, True on the policy tokens that the head predicts.
    advantages: [B, L] f32, as in the policy loss; None where not asked for.
    mtp_anchor_log_probs: [B, L] f32, of the head at the start of the rollout's updates; None where
      not asked for.
    surrogate: the run's estimator, (log_probs, anchor_log_probs, advantages, mask) -> loss of each
      token [B, L].
  """

  mtp_log_probs: Float[Array, "B L"]
  log_probs: Float[Array, "B L"]
  mask: Bool[Array, "B L"]
  advantages: Float[Array, "B L"] | None
  mtp_anchor_log_probs: Float[Array, "B L"] | None
  surrogate: Callable[..., Float[Array, "B L"]]


OPTIONAL = (ADVANTAGES, ANCHOR)


register.statistic_column(ANCHOR, STATISTIC)


def mtp(name: str, numbers: type | None = None, *, needs: Collection[str] = (),
        detached: bool = False, calibrate: Callable | None = None, replace: bool = False,
        **defaults):
  """Returns a decorator that enters a loss of the head as a term of the loss.

  The function is `loss(inputs: MtpInputs, cfg) -> [B, L]`, the loss of each token; `cfg` is an
  instance of the hyperparameters.

  Args:
    name: one of the names in `term.name`.
    numbers: frozen dataclass of the hyperparameters that the functions read; `fields.option` makes
      its fields. One of them is `coef`, unless there is `calibrate`.
    needs: optional MtpInputs fields that it reads. `mtp_anchor_log_probs` comes from the anchor's
      pass, and only then.
    detached: whether embedding, trunk and output head get no gradient of it.
    calibrate: `calibrate(change, mtp_change, mask, last, cfg) -> coefficient`, from what the
      updates of this rollout changed of the log-probs of the policy and of the head, [B, L] over
      the full optimizer batch and 0 where mask is False, and the coefficient of the update before,
      at first 0. None: the coefficient is the number `coef`.
    replace: overwrites an entry on purpose, for notebooks that run a cell again.
    **defaults: the hyperparameters and their defaults, instead of `numbers`.

  Raises:
    ValueError: the name is taken, `needs` names no optional field of MtpInputs, a loss with
      `calibrate` does not need the anchor's log-probs, or one without it has no number `coef`.
  """
  unknown = sorted(set(needs) - set(OPTIONAL))
  if unknown:
    raise ValueError(f"mtp {name!r} needs {unknown}; allowed are {list(OPTIONAL)}")
  if calibrate is not None and ANCHOR not in needs:
    raise ValueError(f"mtp {name!r}: calibrate compares with the anchor. Fix: needs={{{ANCHOR!r}}}")

  def make(function, cls: type) -> MtpTerm:
    if calibrate is None and "coef" not in Entry(function, cls).defaults:
      raise ValueError(f"mtp {name!r} has no number coef, its weight. Fix: coef=0.1")
    return MtpTerm(
        function=functools.partial(_term, loss=function, needs=frozenset(needs),
                                   calibrated=calibrate is not None),
        numbers=cls, stats=frozenset({STATISTIC}), columns=frozenset(needs) & {ANCHOR},
        row_columns=frozenset() if calibrate is None else frozenset({COEFFICIENT}),
        weights=terms.POLICY if ADVANTAGES in needs else terms.REGULARIZER, detached=detached,
        transform=None if calibrate is None else functools.partial(
            Calibration, name=name, calibrate=calibrate),
        check=checks.check, loss=function)

  return register.loss_term(name, numbers, replace=replace, make=make, **defaults)


@dataclasses.dataclass(frozen=True)
class MtpTerm(terms.TermEntry):
  """A loss of the head in the table of terms.

  Attributes:
    loss: the function as it was registered.
  """

  loss: Callable | None = None

  @property
  def where(self) -> str:
    """Returns the place of the loss."""
    return Entry(self.loss).where


def _term(inputs: terms.TermInputs, cfg, *, loss: Callable, needs: frozenset[str],
          calibrated: bool) -> terms.TermOutput:
  """Returns the loss of the head as a term; the coefficient is in the batch or is `cfg.coef`."""
  batch, mask = inputs.batch, predicted_ahead(inputs.live)
  columns = batch.columns or {}
  anchor = None
  if calibrated and COEFFICIENT not in columns:
    raise ValueError(f"a calibrated loss without the column {COEFFICIENT!r}. Fix: train_step finds "
                     "it, or experiments/papers/occ/calibration.py.")
  advantages = batch.advantages if ADVANTAGES in needs else None
  is_code_form = getattr(cfg, "code_compat", False)
  if ANCHOR in needs:
    anchor = batch.anchor_log_probs if is_code_form else columns.get(ANCHOR)
    at_start = inputs.stats.log_probs if is_code_form else inputs.stats.mtp_log_probs
    anchor = lax.stop_gradient(at_start) if anchor is None else anchor
  if is_code_form:
    advantages = columns[COEFFICIENT][:, None] * advantages
  losses = MtpInputs(masked.masked(inputs.stats.mtp_log_probs, mask),
                     lax.stop_gradient(inputs.stats.log_probs), mask, advantages, anchor,
                     inputs.surrogate)
  per_token = masked.masked(loss(losses, cfg), mask)
  metrics = {"mtp/loss": masked.mean(lax.stop_gradient(per_token), mask),
             "mtp/log_prob": masked.mean(lax.stop_gradient(losses.mtp_log_probs), mask)}
  if not calibrated:
    count = jnp.sum(mask).astype(jnp.float32)
    metrics["mtp/coefficient"] = Mean(cfg.coef * count, count)
    return terms.TermOutput(per_token, metrics,
                            jnp.full((mask.shape[0], 1), cfg.coef, jnp.float32))
  coefficient = columns[COEFFICIENT][:, None]
  return terms.TermOutput(per_token, metrics,
                          jnp.ones_like(coefficient) if is_code_form else coefficient)


# --- the paper's losses


@dataclasses.dataclass(frozen=True)
class Weight:
  """Hyperparameters of a loss with a fixed coefficient."""

  coef: float = option(0.1, "weight of the loss of the head that predicts two tokens ahead",
                       low=0.0)


def _cross_entropy(inputs: MtpInputs, cfg: Weight) -> Float[Array, "B L"]:
  """Returns -log pi_mtp of the sampled token."""
  del cfg
  return -inputs.mtp_log_probs


mtp("mtp_detach", Weight, detached=True)(_cross_entropy)
mtp("mtp_ce", Weight)(_cross_entropy)


def _policy(inputs: MtpInputs, cfg) -> Float[Array, "B L"]:
  """Returns the estimator's loss with the head's log-probs, its own anchor and the advantages."""
  del cfg
  return inputs.surrogate(inputs.mtp_log_probs, inputs.mtp_anchor_log_probs, inputs.advantages,
                          inputs.mask)


mtp("mtp_policy", Weight, needs={ADVANTAGES, ANCHOR})(_policy)


@dataclasses.dataclass(frozen=True)
class Occ:
  """Hyperparameters of `occ`."""

  lambda_plus: float = option(1.0, "the coefficient is this times <change, head's change> / "
                              "|head's change|^2", low=0.0)
  lambda_min: float | None = option(
      0.0, "smallest coefficient, ours; none: unbounded", low=-100.0, high=0.0,
      when=when(".code_compat", False))
  lambda_max: float | None = option(1.0, "largest coefficient, ours; none: unbounded", low=0.0,
                                    when=when(".code_compat", False))
  carry: bool = option(True, "keeps the last coefficient where the head has not changed, as in a "
                       "rollout's first optimizer batch; False: 0 there, as in the public code",
                       when=when(".code_compat", False))
  code_compat: bool = option(False, "the form of the public code, see derivations.md")


def calibrate(change: Float[Array, "B L"], mtp_change: Float[Array, "B L"],
              mask: Bool[Array, "B L"], last: Float[Array, ""], cfg: Occ) -> Float[Array, ""]:
  """Returns the coefficient of OCC, from differences of log-probs instead of gradients.

    lambda = lambda_plus <d, d_mtp> / (|d_mtp|^2 + 1e-8)     d = log pi - log anchor
    clamped to [lambda_min, lambda_max]; the last one, or 0, where |d_mtp| = 0

  It replaces <g, g_mtp> / |g_mtp|^2, to which the best coefficient is proportional. What it
  measures depends on the step that made the change: derivations.md derives three cases, of which
  only a step along the head's own gradient gives that number.

  With `code_compat` it is the mean of the tokens' quotients over all columns of completions,
  padding included, without a clamp; d_mtp is then taken against the policy's anchor:

    lambda = lambda_plus mean_t d d_mtp / (d_mtp^2 + 1e-8)

  Source: arXiv 2605.28184 and its public code, `loss_func` of megatron_actor.py; the other form,
  with its clamp and its last line, is ours.
  """
  if cfg.code_compat:
    quotients = change * mtp_change / (jnp.square(mtp_change) + EPSILON)
    return cfg.lambda_plus * jnp.sum(quotients) / mask.size  # 0 where a token does not count
  # Both changes are 0 outside the mask.
  size = jnp.sum(jnp.square(mtp_change))
  coefficient = cfg.lambda_plus * jnp.sum(change * mtp_change) / (size + EPSILON)
  return jnp.where(size > 0, jnp.clip(coefficient, cfg.lambda_min, cfg.lambda_max),
                   last if cfg.carry else 0.0)


mtp("occ", Occ, needs={ADVANTAGES, ANCHOR}, calibrate=calibrate)(_policy)
