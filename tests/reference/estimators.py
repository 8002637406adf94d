"""Per-token value and gradient coefficient of each estimator, one token at a time, in float64.

The gradient of token t's loss with respect to its own log-prob is -coefficient; with respect to any other token's, 0.
"""

import math

import numpy as np

BOUND = 20.0


def _window(low, high):
  return (0.0 if low is None else 1 - low), (math.inf if high is None else 1 + high)


def _clipped(weight, low, high, a):
  """(surrogate min(w A, clip(w) A), coefficient) for one token."""
  if a > 0 and weight > high:
    return high * a, 0.0
  if a < 0 and weight < low:
    return low * a, 0.0
  return weight * a, weight * a


def evaluate(name, log_probs, anchor, advantages, mask, **numbers):
  """(per-token loss, coefficient), both [B, L] and 0 where mask is False."""
  loss, coefficient = np.zeros(mask.shape), np.zeros(mask.shape)
  for b in range(mask.shape[0]):
    tokens = [t for t in range(mask.shape[1]) if mask[b, t]]
    ratios = [float(np.clip(float(log_probs[b, t]) - float(anchor[b, t]), -BOUND, BOUND)) for t in tokens]
    for k, t in enumerate(tokens):
      a, lp = float(advantages[b, t]), float(log_probs[b, t])
      loss[b, t], coefficient[b, t] = _RULES[name](a, lp, ratios, k, numbers)
  return loss, coefficient


def _reinforce(a, lp, ratios, k, n):
  return -a * lp, a


def _ppo(a, lp, ratios, k, n):
  low, high = _window(n["clip_low"], n["clip_high"])
  value, c = _clipped(math.exp(ratios[k]), low, high, a)
  if n["dual_clip"] is not None and a < 0 and math.exp(ratios[k]) > n["dual_clip"]:
    return -n["dual_clip"] * a, 0.0
  return -value, 0.0 if abs(ratios[k]) >= BOUND else c


def _gspo(a, lp, ratios, k, n):
  log_s = sum(ratios) / len(ratios)
  value, c = _clipped(math.exp(min(log_s, 10.0)), *_window(n["clip_low"], n["clip_high"]), a)
  return -value, 0.0 if log_s > 10.0 else c


def _seq_is(a, lp, ratios, k, n):
  weight = math.exp(min(max(sum(ratios), -BOUND), BOUND))
  weight = weight if n["cap"] is None else min(weight, n["cap"])
  return -weight * a * lp, weight * a


def _ctpo(a, lp, ratios, k, n):
  total, scale = sum(ratios[:k + 1]), (k + 1) ** n["power"]
  inf = math.inf
  low = -inf if n["log_low"] is None else -n["log_low"] * scale
  high = inf if n["log_high"] is None else n["log_high"] * scale
  dual = inf if n["log_dual"] is None else n["log_dual"] * scale
  bounded = lambda x: math.exp(min(x, 10.0))
  if a >= 0:
    live, used = total <= high, min(total, high)
  else:
    live, used = low <= total <= dual, min(max(total, low), dual)
  live = live and total <= 10.0
  return -a * bounded(used), a * bounded(total) if live else 0.0


def _minpro(a, lp, ratios, k, n):
  low, high = _window(n["clip_low"], n["clip_high"])
  smallest = min(ratios[:k]) if k else 0.0
  smallest = min(smallest, 0.0) if n["cap_at_one"] else smallest
  weight = min(max(math.exp(min(smallest + ratios[k], BOUND)), low), high)
  return -weight * a * lp, weight * a


_RULES = {"reinforce": _reinforce, "ppo": _ppo, "gspo": _gspo, "seq_is": _seq_is, "ctpo": _ctpo, "minpro": _minpro}
NAMES = tuple(_RULES)
