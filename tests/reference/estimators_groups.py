"""The estimators that compare the rows of a group, row by row in float64: loops over plain numbers.

It shares no code with the package. A row's reward is the mean of its advantages.
"""

import math
from statistics import NormalDist
from types import SimpleNamespace

import numpy as np

BOUND = 20.0
NAMES = ("tpo", "gvpo", "oapl", "qrpo", "real")


def evaluate(name, log_probs, anchor, advantages, mask, columns, **numbers):
  """(per-token loss, coefficient), both [B, L] and 0 where mask is False."""
  loss, coefficient = np.zeros(mask.shape), np.zeros(mask.shape)
  rows = [SimpleNamespace(b=b, places=np.flatnonzero(mask[b])) for b in range(len(mask))]
  rows = [row for row in rows if len(row.places)]
  for row in rows:
    pairs = [(float(log_probs[row.b, t]), float(anchor[row.b, t])) for t in row.places]
    row.lp, row.mu = [sum(x) for x in zip(*pairs, strict=True)]
    row.length = len(pairs)
    row.l = sum(clamp(p - q) for p, q in pairs)
    row.reward = sum(float(advantages[row.b, t]) for t in row.places) / row.length
    row.ref = sum(clamp(float(log_probs[row.b, t]) - float(columns["ref_log_probs"][row.b, t]))
                  for t in row.places) if "ref_log_probs" in columns else None
  for group in {int(columns["group_id"][row.b]) for row in rows}:
    members = [row for row in rows if columns["group_id"][row.b] == group]
    for row, c in zip(members, RULES[name](members, SimpleNamespace(**numbers)), strict=True):
      for t in row.places:
        loss[row.b, t], coefficient[row.b, t] = -c * float(log_probs[row.b, t]), c
  return loss, coefficient


def clamp(x):
  return max(-BOUND, min(BOUND, x))


def softmax(scores):
  largest = max(scores)
  powers = [math.exp(s - largest) for s in scores]
  return [x / sum(powers) for x in powers]


def tpo(rows, n):
  size = [row.length if n.normalize == "mean" else 1 for row in rows]
  p = softmax([row.lp / k for row, k in zip(rows, size, strict=True)])
  q = softmax([row.mu / k + row.reward / n.eta for row, k in zip(rows, size, strict=True)])
  return [b - a for a, b in zip(p, q, strict=True)]


def gvpo(rows, n):
  if len(rows) == 1:
    return [0.0]
  s, r = [n.beta * row.l for row in rows], [row.reward for row in rows]
  s_mean, r_mean = sum(s) / len(s), sum(r) / len(r)
  return [-n.beta / (len(rows) - 1) * ((a - s_mean) - (b - r_mean))
          for a, b in zip(s, r, strict=True)]


def oapl(rows, n):
  largest = max(row.reward for row in rows)
  mean = sum(math.exp((row.reward - largest) / n.beta_value) for row in rows) / len(rows)
  value = largest + n.beta_value * math.log(mean)
  return [-2 * n.beta * (n.beta * row.l - (row.reward - value)) for row in rows]


def qrpo(rows, n):
  out = []
  for row in rows:
    u = sum(other.reward <= row.reward for other in rows) / len(rows)
    if n.transform == "log":
      target, log_z = math.log(u), math.log(n.beta / (1 + n.beta))
    elif n.transform == "identity":
      target, log_z = u, math.log(n.beta) + 1 / n.beta
    else:
      edge = 1 / max(len(rows), 2)
      target, log_z = NormalDist().inv_cdf(min(max(u, edge), 1 - edge)), 1 / (2 * n.beta**2)
    out.append(2 * n.beta * (target - n.beta * log_z - n.beta * row.ref))
  return out


def real(rows, n):
  sums = {True: 0.0, False: 0.0}
  s = [row.l / row.length for row in rows]
  for row, mean in zip(rows, s, strict=True):
    sums[row.reward > 0] += math.exp(-mean / n.tau if row.reward > 0 else mean / n.tau)
  return [math.exp(-mean / n.tau) / (n.tau * (1 + sums[True])) if row.reward > 0 else
          -math.exp(mean / n.tau) / (n.tau * (1 + sums[False]))
          for row, mean in zip(rows, s, strict=True)]


RULES = {"tpo": tpo, "gvpo": gvpo, "oapl": oapl, "qrpo": qrpo, "real": real}
