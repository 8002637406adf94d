"""Per-token value and gradient coefficient of each estimator, one token at a time, in float64.

The gradient of token t's loss with respect to its own log-prob is -coefficient; with respect to any
other token's, 0.
"""

import inspect
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
    ratios = [
        float(np.clip(float(log_probs[b, t]) - float(anchor[b, t]), -BOUND, BOUND)) for t in tokens
    ]
    for k, t in enumerate(tokens):
      a, lp = float(advantages[b, t]), float(log_probs[b, t])
      row = {"advantages": [float(advantages[b, i]) for i in tokens]}
      loss[b, t], coefficient[b, t] = _RULES[name](a, lp, ratios, k, numbers | row)
  return loss, coefficient


def _reinforce(a, lp, ratios, k, n):
  return -a * lp, a


def _ppo(a, lp, ratios, k, n):
  low, high = _window(n["clip_low"], n["clip_high"])
  value, c = _clipped(math.exp(ratios[k]), low, high, a)
  if n["dual_clip"] is not None and a < 0 and math.exp(ratios[k]) > n["dual_clip"]:
    return -n["dual_clip"] * a, 0.0
  return -value, 0.0 if abs(ratios[k]) >= BOUND else c


def _seq_is(a, lp, ratios, k, n):
  weight = math.exp(min(max(sum(ratios), -BOUND), BOUND))
  weight = weight if n["cap"] is None else min(weight, n["cap"])
  return -weight * a * lp, weight * a


def _ctpo(a, lp, ratios, k, n, mean=False):
  total, scale = sum(ratios[:k + 1]), (k + 1) ** n["power"]
  total = total / (k + 1) if mean else total
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


def _ctpo_geomean(a, lp, ratios, k, n):
  return _ctpo(a, lp, ratios, k, n, mean=True)


def _cispo(a, lp, ratios, k, n):
  low, high = _window(n["clip_low"], n["clip_high"])
  weight = min(max(math.exp(ratios[k]), low), high)
  return -weight * a * lp, weight * a


def _sapo(a, lp, ratios, k, n):
  tau, ratio = (n["tau_pos"] if a > 0 else n["tau_neg"]), math.exp(ratios[k])
  gate = 1 / (1 + math.exp(min(-tau * (ratio - 1), 700)))
  return -4 / tau * gate * a, 0.0 if abs(ratios[k]) >= BOUND else 4 * gate * (1 - gate) * ratio * a


def _gmpo(a, lp, ratios, k, n):
  high = math.inf if n["log_high"] is None else n["log_high"]
  low = math.inf if n["log_low"] is None else n["log_low"]
  clip = lambda r, adv: min(r, high) if adv > 0 else max(r, -low) if adv < 0 else r
  clipped = [clip(r, adv) for r, adv in zip(ratios, n["advantages"], strict=True)]
  weight = math.exp(min(sum(clipped) / len(clipped), 10.0))
  live = clipped[k] == ratios[k] and abs(ratios[k]) < BOUND
  return -weight * a, weight * a if live else 0.0


def _topr(a, lp, ratios, k, n):
  cap = math.inf if n["cap"] is None else n["cap"]
  weight = 1.0 if a > 0 else min(math.exp(min(max(sum(ratios), -BOUND), BOUND)), cap)
  return -weight * a * lp, weight * a


def _vespo(a, lp, ratios, k, n):
  weight = math.exp(min(max(sum(ratios), -BOUND), BOUND))
  power, decay = (n["k"], n["lam"]) if a > 0 else (n["lam"], n["k"])
  bump = weight**power * math.exp(max(decay * (1 - weight), -700))
  return -bump * a * lp, bump * a


def _is_rule(function) -> bool:
  """Whether it is an estimator's formula for a token, called with (a, lp, ratios, k, n)."""
  parameters = list(inspect.signature(function).parameters.values())
  return ([p.name for p in parameters[:5]] == ["a", "lp", "ratios", "k", "n"]
          and all(p.default is not p.empty for p in parameters[5:]))


# The rule `_name` is that of the estimator `name`.
_RULES = {name.removeprefix("_"): rule for name, rule in list(globals().items())
          if inspect.isfunction(rule) and _is_rule(rule)}
NAMES = tuple(_RULES)
