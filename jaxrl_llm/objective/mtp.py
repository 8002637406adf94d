"""Losses of the head that predicts two tokens ahead (multi-token prediction, MTP), by name.

  total = policy loss + coefficient * sum(weights * loss of each token)

The coefficient is a number of the config, or calibrated on the whole optimizer batch. A loss that
reads advantages has the weights of the policy loss; the others have those of the KL and entropy
terms, which ignore advantages. The head's token counts where the policy's does, but for the second
token of a row, which nothing precedes by two.

Source: OCC, arXiv 2605.28184; what we know of it and what we chose is in objective/mtp.md.
"""

import dataclasses
from collections.abc import Callable, Collection

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrl_llm.config import ConfigError, LossConfig, MtpConfig
from jaxrl_llm.fields import option
from jaxrl_llm.objective import estimators
from jaxrl_llm.ops import masked
from jaxrl_llm.registry import MTP_LOSSES, Entry

AHEAD = 2  # columns before a token from which the head predicts it
EPSILON = 1e-8  # nats^2, in the denominator of OCC's quotient
ADVANTAGES, ANCHOR = "advantages", "mtp_anchor_log_probs"


@dataclasses.dataclass(frozen=True)
class MtpInputs:
  """Everything that a loss of the head may read; nothing but `mtp_log_probs` has a gradient.

  Attributes:
    mtp_log_probs: [B, L] f32, of the head; 0 where mask is False.
    log_probs: [B, L] f32, of the policy.
    mask: [B, L] bool, True on the policy tokens that the head predicts.
    advantages: [B, L] f32, those of the policy loss; None where not asked for.
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


@dataclasses.dataclass(frozen=True)
class MtpEntry(Entry):
  """A loss in the table.

  Attributes:
    function: `loss(inputs: MtpInputs, cfg) -> [B, L]`, the loss of each token; `cfg` is an instance
      of `numbers`.
    needs: optional MtpInputs fields that it reads. `mtp_anchor_log_probs` is found in the anchor's
      pass, and only then.
    detached: whether embedding, trunk and output head get no gradient of it.
    calibrate: `calibrate(change, mtp_change, mask, last, cfg) -> coefficient`, from what the
      updates of this rollout changed of the log-probs of the policy and of the head, [B, L] over
      the whole optimizer batch and 0 where mask is False, and the coefficient of the update before,
      at first 0. None: the coefficient is the number `coef`.
  """

  needs: frozenset[str] = frozenset()
  detached: bool = False
  calibrate: Callable | None = None


def register(name: str, numbers: type | None = None, *, needs: Collection[str] = (),
             detached: bool = False, calibrate: Callable | None = None, replace: bool = False,
             **defaults):
  """Returns a decorator that enters a loss in the table; see `MtpEntry`.

  Args:
    name: key of `mtp.name`.
    numbers: frozen dataclass of the numbers that the functions read; `fields.option` makes its
      fields. One of them is `coef`, unless there is `calibrate`.
    needs, detached, calibrate: see `MtpEntry`.
    replace: overwrites an entry on purpose, for notebooks that run a cell again.
    **defaults: the numbers and their defaults, instead of `numbers`.

  Raises:
    ValueError: the name is taken, `needs` names no optional field of MtpInputs, a loss with
      `calibrate` does not need the anchor's log-probs, or one without it has no number `coef`.
  """
  unknown = sorted(set(needs) - set(OPTIONAL))
  if unknown:
    raise ValueError(f"mtp {name!r} needs {unknown}; allowed are {list(OPTIONAL)}")
  if calibrate is not None and ANCHOR not in needs:
    raise ValueError(f"mtp {name!r}: calibrate compares with the anchor. Fix: needs={{{ANCHOR!r}}}")

  def make(function, own: type) -> MtpEntry:
    if calibrate is None and name != "none" and "coef" not in Entry(function, own).defaults:
      raise ValueError(f"mtp {name!r} has no number coef, its weight. Fix: coef=0.1")
    return MtpEntry(function, own, frozenset(needs), detached, calibrate)

  return MTP_LOSSES.register(name, numbers, replace=replace, make=make, **defaults)


def names() -> list[str]:
  """Returns the names of all losses, sorted."""
  return MTP_LOSSES.names()


def spec(name: str) -> MtpEntry:
  """Returns the entry of a name; raises ConfigError with all names if it is not registered."""
  return MTP_LOSSES[name]


def reads_anchor(cfg: MtpConfig | None) -> bool:
  """Whether the loss reads the head's log-probs under the anchor."""
  return cfg is not None and ANCHOR in spec(cfg.name).needs


def is_calibrated(cfg: MtpConfig | None) -> bool:
  """Whether the coefficient is calibrated, so that a run carries it from update to update."""
  return cfg is not None and spec(cfg.name).calibrate is not None


def predicted(mask: Bool[Array, "B L"]) -> Bool[Array, "B L"]:
  """Returns the tokens of `mask` that two tokens precede, which are all but a row's second."""
  return mask & (jnp.arange(mask.shape[1]) >= AHEAD)


def token_losses(inputs: MtpInputs, cfg: LossConfig) -> Float[Array, "B L"]:
  """Returns the loss of each token, 0 where `inputs.mask` is False.

  Raises:
    ConfigError: an unknown name, or a number that the loss does not read.
  """
  numbers = MTP_LOSSES.numbers(cfg.mtp)
  return masked.masked(spec(cfg.mtp.name).function(inputs, numbers), inputs.mask)


def surrogate_of(cfg: LossConfig) -> Callable[..., Float[Array, "B L"]]:
  """Returns the run's estimator as `MtpInputs.surrogate`."""
  estimator = estimators.get_estimator(cfg.estimator.name)

  def surrogate(log_probs, anchor_log_probs, advantages, mask):
    return estimator(log_probs, anchor_log_probs, advantages, mask, cfg.estimator).per_token_loss

  return surrogate


def calibrated(change: Float[Array, "B L"], mtp_change: Float[Array, "B L"],
               mask: Bool[Array, "B L"], last: Float[Array, ""],
               cfg: MtpConfig) -> Float[Array, ""]:
  """Returns the coefficient of a calibrated loss; arguments as `MtpEntry.calibrate`."""
  found = spec(cfg.name).calibrate(change, mtp_change, mask, last, MTP_LOSSES.numbers(cfg))
  return jnp.asarray(found, jnp.float32)


def cosine(change: Float[Array, "B L"], mtp_change: Float[Array, "B L"]) -> Float[Array, ""]:
  """Returns the cosine of the two changes; 0 where one of them is 0."""
  size = jnp.sqrt(jnp.sum(jnp.square(change)) * jnp.sum(jnp.square(mtp_change)))
  return masked.safe_divide(jnp.sum(change * mtp_change), size)


# --- the package's losses


@dataclasses.dataclass(frozen=True)
class Weight:
  """Numbers of a loss with a fixed coefficient."""

  coef: float = option(0.1, "weight of the loss of the head that predicts two tokens ahead",
                       low=0.0)


@register("none")
def none(inputs: MtpInputs, cfg) -> Float[Array, "B L"]:
  """There is no head, so this is never called."""
  raise ConfigError("mtp.name = 'none' has no loss. Fix: LossConfig(mtp=None).")


def _cross_entropy(inputs: MtpInputs, cfg: Weight) -> Float[Array, "B L"]:
  """Returns -log pi_mtp of the sampled token."""
  del cfg
  return -inputs.mtp_log_probs


register("detach", Weight, detached=True)(_cross_entropy)
register("ce", Weight)(_cross_entropy)


def _policy(inputs: MtpInputs, cfg) -> Float[Array, "B L"]:
  """Returns the estimator's loss with the head's log-probs, its own anchor and the advantages."""
  del cfg
  return inputs.surrogate(inputs.mtp_log_probs, inputs.mtp_anchor_log_probs, inputs.advantages,
                          inputs.mask)


register("policy", Weight, needs={ADVANTAGES, ANCHOR})(_policy)


@dataclasses.dataclass(frozen=True)
class Occ:
  """Numbers of `occ`. What is unconfirmed is not said by the sources that we have read."""

  lambda_plus: float = option(1.0, "the coefficient is this times <change, head's change> / "
                              "|head's change|^2", low=0.0)
  lambda_min: float | None = option(0.0, "smallest coefficient, unconfirmed; none: unbounded",
                                    low=-100.0, high=0.0)
  lambda_max: float | None = option(1.0, "largest coefficient, unconfirmed; none: unbounded",
                                    low=0.0)
  carry: bool = option(True, "keeps the last coefficient where the head has not changed, as in a "
                       "rollout's first optimizer batch; False: 0 there. unconfirmed")


def calibrate(change: Float[Array, "B L"], mtp_change: Float[Array, "B L"],
              mask: Bool[Array, "B L"], last: Float[Array, ""], cfg: Occ) -> Float[Array, ""]:
  """Returns the coefficient of OCC, from differences of log-probs instead of gradients.

    lambda = lambda_plus <d, d_mtp> / (|d_mtp|^2 + 1e-8)     d = log pi - log anchor
    clamped to [lambda_min, lambda_max]; the last one, or 0, where |d_mtp| = 0

  It stands for <g, g_mtp> / |g_mtp|^2, to which the best coefficient is proportional. What it
  measures depends on the step that made the change: objective/mtp.md derives three cases, of which
  only a step along the head's own gradient gives that number.

  Source: arXiv 2605.28184; the clamp, the scope of the sums and the last line are ours.
  """
  del mask  # both changes are 0 outside
  size = jnp.sum(jnp.square(mtp_change))
  found = cfg.lambda_plus * jnp.sum(change * mtp_change) / (size + EPSILON)
  return jnp.where(size > 0, jnp.clip(found, cfg.lambda_min, cfg.lambda_max),
                   last if cfg.carry else 0.0)


register("occ", Occ, needs={ADVANTAGES, ANCHOR}, calibrate=calibrate)(_policy)
