"""Shaping of rewards over a full rollout batch, on the host."""

import dataclasses
import math

import numpy as np

from jaxrl_llm.fields import option
from jaxrl_llm.registry import SHAPINGS


@dataclasses.dataclass(frozen=True)
class GrpoLambda:
  """Hyperparameters of `grpo_lambda`."""

  alpha: float = option(0.6, "size of the length penalty (the paper's value is unconfirmed)",
                        low=0.0, high=1.0)
  fraction: float = option(0.2, "share of groups, the most accurate, that are penalised (the "
                           "paper's value is unconfirmed)", low=0.0, high=1.0)


def grpo_lambda(correct: np.ndarray, length: np.ndarray, group_id: np.ndarray, *, alpha: float,
                fraction: float, keep: np.ndarray | None = None) -> np.ndarray:
  """Returns rewards with a length penalty in the groups that the policy solves best.

  Groups are ranked by the fraction of their kept completions that are correct. The first
  ceil(fraction * groups) pay

    r = 1 - alpha * sigmoid((length - mean) / std)   correct completions
    r = 0                                            other completions

  where mean and population std are over the group's correct rows. The other groups pay 1 or 0. The
  rule is a rank within the batch, not a threshold. Ties go to the smaller group id, so the order of
  completions changes nothing. With fewer than two correct completions, or equal lengths, r = 1 -
  alpha / 2. Fraction 0 penalises no group, fraction 1 every group.

  Args:
    correct: [B] bool.
    length: [B], tokens of the completion.
    group_id: [B] int, arbitrary and unsorted.
    alpha: largest penalty, in [0, 1].
    fraction: share of the groups, in [0, 1]; the method's lambda.
    keep: [B] bool, or None for all; a completion with False enters no statistic and its reward is
      0.

  Returns:
    [B] f32, to be centred and normalised per group (advantage `grpo`).

  Raises:
    ValueError: alpha or fraction is outside [0, 1], or the shapes differ.

  Source: arXiv 2505.18086. The paper's alpha, fraction, kind of std and rule for ties are
  unconfirmed.
  """
  for name, value in (("alpha", alpha), ("fraction", fraction)):
    if not 0 <= value <= 1:
      raise ValueError(f"grpo_lambda: {name} = {value}, allowed is [0, 1]")
  correct, group_id = np.asarray(correct, bool), np.asarray(group_id)
  length = np.asarray(length, np.float64)
  keep = np.ones(correct.shape, bool) if keep is None else np.asarray(keep, bool)
  if not correct.shape == length.shape == group_id.shape == keep.shape:
    raise ValueError(f"grpo_lambda: shapes differ: correct {correct.shape}, length {length.shape}, "
                     f"group_id {group_id.shape}, keep {keep.shape}")
  correct = correct & keep
  rewards = correct.astype(np.float64)
  groups = np.unique(group_id[keep])
  solve_rate = np.array([np.mean(correct[keep & (group_id == g)]) for g in groups])
  # 1e-9 absorbs the rounding of products such as 0.07 * 100 = 7.000000000000001.
  count = math.ceil(fraction * len(groups) - 1e-9)
  for g in groups[np.argsort(-solve_rate, kind="stable")[:count]]:
    penalty_rows = correct & (group_id == g)
    if penalty_rows.any():
      std = length[penalty_rows].std()
      z = (length[penalty_rows] - length[penalty_rows].mean()) / std if std > 0 else 0.0
      rewards[penalty_rows] = 1 - alpha * _sigmoid(z)
  return rewards.astype(np.float32)


def overlong_penalty(length: np.ndarray, limit: int, buffer: int,
                     factor: float = 1.0) -> np.ndarray:
  """Returns what is added to the rewards of completions that come near the limit.

  It is 0 up to limit - buffer, then falls linearly, and is never below -factor:

    min(0, max(-factor, -factor (length - (limit - buffer)) / buffer))

  Args:
    length: [B], tokens of the completion.
    limit: largest length, tokens.
    buffer: tokens before the limit over which the penalty grows, in [1, limit].
    factor: penalty at the limit, at least 0.

  Returns:
    [B] f32, in [-factor, 0].

  Raises:
    ValueError: buffer is outside [1, limit], or factor is negative.

  Source: arXiv 2503.14476, equation 13.
  """
  if not 1 <= buffer <= limit:
    raise ValueError(f"overlong_penalty: buffer = {buffer}, allowed is [1, {limit}], the limit")
  if factor < 0:
    raise ValueError(f"overlong_penalty: factor = {factor}, allowed is 0 or more")
  excess = (np.asarray(length, np.float64) - (limit - buffer)) / buffer
  return (-factor * np.clip(excess, 0.0, 1.0)).astype(np.float32)


def _sigmoid(z: np.ndarray | float) -> np.ndarray | float:
  return 0.5 * (1 + np.tanh(0.5 * z))


def register(name: str, numbers: type | None = None, *, replace: bool = False, **defaults):
  """Returns a decorator that enters a shaping: (rewards, correct, length, group_id, keep, cfg).

  It returns the rewards of the full rollout batch, [B]; all arrays are [B], on the host. Arguments
  as in `registry.Table.register`.
  """
  return SHAPINGS.register(name, numbers, replace=replace, **defaults)


@register("none")
def _unshaped(rewards, correct, length, group_id, keep, cfg) -> np.ndarray:
  """The verified rewards as they are."""
  del correct, length, group_id, keep, cfg
  return rewards


@register("grpo_lambda", GrpoLambda)
def _grpo_lambda(rewards, correct, length, group_id, keep, cfg: GrpoLambda) -> np.ndarray:
  """`grpo_lambda` in place of the verified rewards."""
  del rewards
  return grpo_lambda(correct, length, group_id, alpha=cfg.alpha, fraction=cfg.fraction, keep=keep)


@register("signed")
def _signed(rewards, correct, length, group_id, keep, cfg) -> np.ndarray:
  """Returns 1 for correct completions and -1 for the others: for methods that treat the signs
  differently.
  """
  del rewards, length, group_id, keep, cfg
  return np.where(correct, 1.0, -1.0).astype(np.float32)
