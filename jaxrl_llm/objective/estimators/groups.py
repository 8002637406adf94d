"""Losses of whole groups: how a row's log-prob moves against those of the group's other rows.

Each has one coefficient c for a row, found on the full optimizer batch without gradient; a token's
loss is -c log pi. R is the mean advantage of a row, read up to a constant of its group (by `real`:
its sign). Where a paper averages over groups, `sequence_sum` averages over rows: a factor of the
group's size, which is the learning rate's.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jax.scipy.special import ndtri
from jaxtyping import Array, Bool, Float, Int

from jaxrl_llm.fields import option
from jaxrl_llm.objective.estimators import common
from jaxrl_llm.objective.estimators.registry import register
from jaxrl_llm.ops import masked

FAMILY = "row against its group"


@dataclasses.dataclass(frozen=True)
class Rows:
  """The rows of an optimizer batch, as constants. Rows without tokens belong to no group.

  Attributes:
    log_probs, anchor_log_probs, mask: as in every estimator; 0 where mask is False.
    reward: [B], R.
    group_id: [B].
    ref_log_probs: of the KL reference, where the method reads it.
  """

  log_probs: Float[Array, "B L"]
  anchor_log_probs: Float[Array, "B L"]
  mask: Bool[Array, "B L"]
  reward: Float[Array, " B"]
  group_id: Int[Array, " B"]
  ref_log_probs: Float[Array, "B L"] | None = None

  def log_ratio(self, denominator: Float[Array, "B L"]) -> Float[Array, " B"]:
    """Returns the sum of the row's log-ratios to `denominator`."""
    return jnp.sum(common.masked_log_ratio(self.log_probs, denominator, self.mask), -1)

  def centred(self, values: Float[Array, " B"]) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
    """Returns (values minus their mean in the group, rows of the group)."""
    present = jnp.any(self.mask, -1)
    count = masked.group_sum(present.astype(values.dtype), self.group_id)
    total = masked.group_sum(masked.masked(values, present), self.group_id)
    return values - masked.safe_divide(total, count), count

  def log_sum_exp(self, values: Float[Array, " B"],
                  where: Bool[Array, " B"] | bool = True) -> Float[Array, " B"]:
    """Returns log sum exp over the rows of the group for which `where`; -inf if there is none."""
    values = jnp.where(jnp.any(self.mask, -1) & where, values, -jnp.inf)
    largest = masked.group_max(values, self.group_id)
    shift = jnp.where(jnp.isfinite(largest), largest, 0.0)
    return shift + jnp.log(masked.group_sum(jnp.exp(values - shift), self.group_id))


def group_loss(name: str, numbers: type, *, columns: tuple[str, ...] = (),
                anchor: str = "recomputed") -> Callable:
  """Returns a decorator that enters an estimator, given as `coefficient(rows, cfg) -> c [B]`.

  Args:
    name, numbers, anchor: see `register`.
    columns: that it reads beside group_id.
  """
  def enter(coefficient: Callable):
    def prepare(log_probs, anchor_log_probs, advantages, mask, cfg, **columns):
      constants = (lax.stop_gradient(masked.masked(x, mask))
                   for x in (log_probs, anchor_log_probs))
      rows = Rows(*constants, mask, masked.row_mean(advantages, mask)[:, 0], **columns)
      return masked.masked(jnp.broadcast_to(coefficient(rows, cfg)[:, None], mask.shape), mask)

    @functools.wraps(coefficient)
    def loss(log_probs, anchor_log_probs, advantages, mask, cfg, *, weights, **columns):
      ones = jnp.ones_like(weights)
      return common.clipped(common.score_function_surrogate(weights, log_probs, ones, mask), mask)

    return register(name, numbers, anchor=anchor, regularized=True, prepare=prepare,
                    columns=("group_id", *columns), on_policy=lambda *arrays: arrays[-1])(loss)

  return enter


@dataclasses.dataclass(frozen=True)
class Tpo:
  """Hyperparameters of `tpo`."""

  eta: float = option(1.0, "temperature of the rewards in the target distribution", low=1e-6)
  normalize: str = option("sum", "a row's score: sum of its log-probs, or (own extension) their "
                          "mean", choices=("sum", "mean"))


@group_loss("tpo", Tpo, anchor="behavior")
def tpo(rows: Rows, cfg: Tpo) -> Float[Array, " B"]:
  """Cross-entropy between a target and the policy, as distributions over the group's rows.

    p     = softmax over the group of S,   S = sum_t log pi
    q     = softmax over the group of S_anchor + R / eta
    loss of a group = -sum_i q_i log p_i

  Coefficient: q - p. There is no ratio and no clip. It is 0 once the policy has the target; in a
  group of equal R it pulls back to the anchor. R is meant to be normalised by the population's
  standard deviation, as in the preset. With long rows q of `sum` is one-hot; `mean` is for those,
  with `sequence` aggregation, which has the 1/T of its gradient.

  Source: arXiv 2604.06159, and its code.
  """
  length = jnp.sum(rows.mask, -1) if cfg.normalize == "mean" else 1
  score, target = (masked.safe_divide(jnp.sum(x, -1), jnp.broadcast_to(length, x.shape[:1]))
                   for x in (rows.log_probs, rows.anchor_log_probs))
  target += rows.reward / cfg.eta
  p, q = (jnp.exp(x - rows.log_sum_exp(x)) for x in (score, target))
  return q - p


@dataclasses.dataclass(frozen=True)
class Gvpo:
  """Hyperparameters of `gvpo`."""

  beta: float = option(0.1, "rewards per nat of a row's log-ratio", low=1e-6)


@group_loss("gvpo", Gvpo)
def gvpo(rows: Rows, cfg: Gvpo) -> Float[Array, " B"]:
  """Regression of log-ratios on rewards, both centred in their group of n rows.

    s    = beta sum_t l_t
    loss of a group = 1 / (n - 1) sum_i 1/2 ((s_i - mean s) - (R_i - mean R))^2

  Coefficient: beta / (n - 1) ((R - mean R) - (s - mean s)); 0 in a group of one.

  Source: arXiv 2504.19599, from the code of verl-recipe, whose R is `grpo`'s advantage.
  """
  residual, count = rows.centred(rows.reward - cfg.beta * rows.log_ratio(rows.anchor_log_probs))
  return masked.safe_divide(cfg.beta * residual, count - 1)


@dataclasses.dataclass(frozen=True)
class Oapl:
  """Hyperparameters of `oapl`. Its own are unconfirmed; these are A*-PO's."""

  beta: float = option(1e-3, "rewards per nat of a row's log-ratio", low=1e-6)
  beta_value: float = option(0.5, "temperature of the value: large is the mean reward, small the "
                             "largest", low=1e-3)


@group_loss("oapl", Oapl, anchor="behavior")
def oapl(rows: Rows, cfg: Oapl) -> Float[Array, " B"]:
  """Regression of log-ratios on rewards above the group's soft value.

    V    = beta_value log mean_i exp(R_i / beta_value)
    loss of a row = (beta sum_t l_t - (R - V))^2

  Coefficient: 2 beta ((R - V) - beta sum_t l_t): `dro` of the sequence with the advantage `opmd`,
  times 2 beta. In a group of equal R it pulls back to the anchor.

  Source: arXiv 2602.19362, second-hand; with a fixed reference it is A*-PO, 2505.20686.
  """
  reward, count = rows.centred(rows.reward)
  total = rows.log_sum_exp(reward / cfg.beta_value) - jnp.log(count)
  score = cfg.beta * rows.log_ratio(rows.anchor_log_probs)
  return 2 * cfg.beta * (reward - cfg.beta_value * total - score)


@dataclasses.dataclass(frozen=True)
class Qrpo:
  """Hyperparameters of `qrpo`."""

  beta: float = option(0.1, "rewards per nat of a row's log-ratio", low=1e-6)
  transform: str = option("log", "of the quantile: its logarithm, itself, or that of the normal "
                          "distribution", choices=("log", "identity", "normal"))


@group_loss("qrpo", Qrpo, columns=("ref_log_probs",))
def qrpo(rows: Rows, cfg: Qrpo) -> Float[Array, " B"]:
  """Regression of log-ratios to the KL reference on the reward's quantile in its group of n rows.

    u    = share of the group's rows with a reward <= R
    loss of a row = (T(u) - beta log Z - beta sum_t log(pi / pi_ref))^2

    transform   T(u)                               log Z
    log         log u                              log(beta / (1 + beta))
    identity    u                                  log beta + 1 / beta
    normal      Phi^-1(u within 1/n and 1 - 1/n)   1 / (2 beta^2)

  Coefficient: 2 beta (T - beta log Z - beta sum_t log(pi / pi_ref)), which is not 0 on-policy
  either. The anchor is not read.

  Source: arXiv 2507.08068, from its code; there u is among rewards of the reference, the group in
  its place is ours.
  """
  others = (rows.group_id[:, None] == rows.group_id) & jnp.any(rows.mask, -1)
  count = jnp.maximum(jnp.sum(others, 1).astype(rows.reward.dtype), 1)
  u = jnp.maximum(jnp.sum(others & (rows.reward <= rows.reward[:, None]), 1), 1) / count
  beta, edge = cfg.beta, 1 / jnp.maximum(count, 2)
  target = {"log": lambda: jnp.log(u) - beta * math.log(beta / (1 + beta)),
            "identity": lambda: u - beta * math.log(beta) - 1,
            "normal": lambda: ndtri(jnp.clip(u, edge, 1 - edge)) - 1 / (2 * beta)}[cfg.transform]()
  return 2 * beta * (target - beta * rows.log_ratio(rows.ref_log_probs))


@dataclasses.dataclass(frozen=True)
class Real:
  """Hyperparameters of `real`."""

  tau: float = option(0.5, "temperature; the coefficient is below 1 / tau", low=1e-3)


@group_loss("real", Real)
def real(rows: Rows, cfg: Real) -> Float[Array, " B"]:
  """Rewards as labels: a classification of the group's rows by their mean log-ratio s.

    loss of a group = log(1 + sum over R > 0 of e^(-s / tau))
                      + log(1 + sum over R <= 0 of e^(s / tau))

  Coefficient: e^(-s / tau) / (tau (1 + sum)) where R > 0, -e^(s / tau) / (tau (1 + sum)) elsewhere,
  with the sum of the row's side. The 1/T of s comes from the aggregation (`sequence`). Rows of
  equal rewards count as wrong.

  Source: arXiv 2602.05630, from the code of ms-swift.
  """
  log_ratio = common.masked_log_ratio(rows.log_probs, rows.anchor_log_probs, rows.mask)
  sign = jnp.where(rows.reward > 0, 1.0, -1.0)
  exponent = -sign * masked.row_mean(log_ratio, rows.mask)[:, 0] / cfg.tau
  positive, negative = (rows.log_sum_exp(exponent, sign == side) for side in (1, -1))
  total = jnp.logaddexp(0.0, jnp.where(sign > 0, positive, negative))
  return sign * jnp.exp(exponent - total) / cfg.tau
