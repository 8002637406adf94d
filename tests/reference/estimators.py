"""The estimators of single tokens, token by token in float64: slow loops over plain numbers.

A function `name(x, row, n, shared)` returns the loss of the policy token x of the estimator `name`,
and its coefficient: the gradient with respect to x's log-prob is -coefficient, to any other token's
0. No code is shared with the package; log_r is the log-ratio, kept within 20.
"""

import dataclasses
import inspect
import math
from types import SimpleNamespace

import numpy as np

BOUND = 20.0


@dataclasses.dataclass
class Token:
  """One policy token: place, log-probs, advantage, log-ratio, and its place t among T."""

  b: int
  column: int
  lp: float
  anchor: float
  a: float
  log_r: float
  t: int
  length: int
  columns: dict

  @property
  def r(self):
    return math.exp(self.log_r)

  @property
  def moved(self):
    return math.exp(self.lp) - math.exp(self.anchor)

  @property
  def flat(self):
    return abs(self.log_r) >= BOUND


def rows_of(log_probs, anchor, advantages, mask, columns):
  rows = []
  for b in range(len(mask)):
    places = [c for c in range(mask.shape[1]) if mask[b, c]]
    row = []
    for t, c in enumerate(places, 1):
      lp, mu = float(log_probs[b, c]), float(anchor[b, c])
      extra = {name: (x[b, c] if np.ndim(x) == 2 else x[b]) for name, x in columns.items()}
      row.append(Token(b, c, lp, mu, float(advantages[b, c]), max(-BOUND, min(BOUND, lp - mu)), t,
                       len(places), extra))
    rows.append(row)
  return rows


def evaluate(name, log_probs, anchor, advantages, mask, columns=None, **numbers):
  """(per-token loss, coefficient), both [B, L] and 0 where mask is False."""
  rows = rows_of(log_probs, anchor, advantages, mask, columns or {})
  loss, coefficient = np.zeros(mask.shape), np.zeros(mask.shape)
  n = SimpleNamespace(**numbers)
  batch = [token for row in rows for token in row]
  shared = BATCH[name](batch, n) if name in BATCH else None
  for row in rows:
    for token in row:
      value, c = RULES[name](token, row, n, shared)
      loss[token.b, token.column], coefficient[token.b, token.column] = value, c
  return loss, coefficient


def clipped_ppo(x, low, high, dual, a=None):
  """(loss, coefficient) of the clipped ratio for the advantage `a`."""
  a = x.a if a is None else a
  if a < 0 and dual is not None and x.r > dual:
    return -dual * a, 0.0
  if a > 0 and x.r > high:
    return -high * a, 0.0
  if a < 0 and x.r < low:
    return -low * a, 0.0
  return -x.r * a, 0.0 if x.flat else x.r * a


def bounds(n):
  return (-math.inf if n.clip_low is None else 1 - n.clip_low,
          math.inf if n.clip_high is None else 1 + n.clip_high)


def away(x):
  return (x.a > 0 and x.log_r > 0) or (x.a < 0 and x.log_r < 0)


def row_ratio(row):
  return math.exp(max(-BOUND, min(BOUND, sum(y.log_r for y in row))))


def in_window(x, log_w, n, wide):
  """(loss, coefficient) of the weight exp(log_w), clipped at the log bounds times `wide`."""
  low = -math.inf if n.log_low is None else -n.log_low * wide
  high = math.inf if n.log_high is None else n.log_high * wide
  dual = math.inf if n.log_dual is None else n.log_dual * wide
  w = lambda v: math.exp(min(v, 10.0))
  if log_w > 10 or (x.a > 0 and log_w > high) or (x.a < 0 and not low <= log_w <= dual):
    inside = min(log_w, high) if x.a > 0 else min(max(log_w, low), dual)
    return -x.a * w(inside), 0.0
  return -x.a * w(log_w), x.a * w(log_w)


# --- of 2025 and before


def reinforce(x, row, n, _):
  return -x.a * x.lp, x.a


def ppo(x, row, n, _):
  return clipped_ppo(x, *bounds(n), n.dual_clip)


def seq_is(x, row, n, _):
  c = x.a * min(row_ratio(row), math.inf if n.cap is None else n.cap)
  return -c * x.lp, c


def topr(x, row, n, _):
  weight = 1.0 if x.a > 0 else min(row_ratio(row), math.inf if n.cap is None else n.cap)
  return -weight * x.a * x.lp, weight * x.a


def vespo(x, row, n, _):
  weight, (power, decay) = row_ratio(row), (n.k, n.lam) if x.a > 0 else (n.lam, n.k)
  c = x.a * weight**power * math.exp(max(decay * (1 - weight), -700))
  return -c * x.lp, c


def ctpo(x, row, n, _):
  return in_window(x, sum(y.log_r for y in row[:x.t]), n, x.t**n.power)


def ctpo_geomean(x, row, n, _):
  return in_window(x, sum(y.log_r for y in row[:x.t]) / x.t, n, x.t**n.power)


def minpro(x, row, n, _):
  smallest = min((y.log_r for y in row[:x.t - 1]), default=0.0)
  smallest = min(smallest, 0.0) if n.cap_at_one else smallest
  low, high = bounds(n)
  c = x.a * min(max(math.exp(min(smallest + x.log_r, BOUND)), low), high)
  return -c * x.lp, c


def cispo(x, row, n, _):
  low, high = bounds(n)
  c = x.a * min(max(x.r, low), high)
  return -c * x.lp, c


def sapo(x, row, n, _):
  tau = n.tau_pos if x.a > 0 else n.tau_neg
  gate = 1 / (1 + math.exp(min(-tau * (x.r - 1), 700)))
  return -4 / tau * gate * x.a, 0.0 if x.flat else 4 * gate * (1 - gate) * x.r * x.a


def gmpo(x, row, n, _):
  high = math.inf if n.log_high is None else n.log_high
  low = math.inf if n.log_low is None else n.log_low
  clip = lambda y: min(y.log_r, high) if y.a > 0 else max(y.log_r, -low) if y.a < 0 else y.log_r
  c = x.a * math.exp(min(sum(map(clip, row)) / len(row), 10.0))
  return -c, c if clip(x) == x.log_r and not x.flat else 0.0


# --- m2po


def m2_pool(batch, n):
  return sorted(x.log_r**2 for x in batch if n.m2_scope == "all" or away(x))


def m2_threshold(batch, n):
  """The largest square that stays (drop), or the square of the window's half width (cap)."""
  pool, tau = m2_pool(batch, n), math.inf if n.tau is None else n.tau
  if n.m2_rule == "cap":
    if not pool or sum(pool) / len(pool) <= tau:
      return math.inf
    passing = [v for v in pool if sum(min(u, v) for u in pool) / len(pool) < tau]
    return max(passing, default=0.0)
  while pool:
    mean = sum(pool) / len(pool)
    if mean < tau or (mean == tau and n.m2_scope == "away"):
      return pool[-1]
    largest = pool[-1]
    pool = [v for v in pool if v != largest]
  return -1.0


def m2po(x, row, n, threshold):
  if n.m2_rule == "drop":
    if (n.m2_scope == "all" or away(x)) and x.log_r**2 > threshold:
      return 0.0, 0.0
    return -x.r * x.a, 0.0 if x.flat else x.r * x.a
  width = math.sqrt(threshold)
  low, high = math.exp(-width), math.exp(width) if width < 700 else math.inf
  low = low if n.min_low is None else min(low, 1 - n.min_low)
  high = high if n.min_high is None else max(high, 1 + n.min_high)
  if away(x) and x.log_r**2 == threshold:  # on the bound: it stays, whatever the rounding of exp
    return -x.r * x.a, 0.0 if x.flat else x.r * x.a
  return clipped_ppo(x, low, high, None)


# --- token ratios


def dro(x, row, n, _):
  if n.span == "sequence":
    total = sum(y.log_r for y in row)
    return -x.a * x.lp + n.beta / 2 * total**2 / len(row), x.a - n.beta * total
  return -x.a * x.lp + n.beta / 2 * x.log_r**2, x.a - (0.0 if x.flat else n.beta * x.log_r)


def gspo(x, row, n, _):
  turn = [y.columns.get("turn_id") for y in row]
  same = [y.log_r for y, t in zip(row, turn, strict=True)
          if n.span == "sequence" or t == x.columns["turn_id"]]
  mean = sum(same) / len(same)
  s, (low, high) = math.exp(min(mean, 10.0)), bounds(n)
  if x.a > 0 and s > high:
    return -high * x.a, 0.0
  if x.a < 0 and s < low:
    return -low * x.a, 0.0
  return -s * x.a, 0.0 if mean > 10 else s * x.a


def ce_gppo(x, row, n, _):
  if x.a < 0 and n.dual_clip is not None and x.r > n.dual_clip:
    return -n.dual_clip * x.a, 0.0
  low, high = bounds(n)
  c = x.r * x.a
  if x.a < 0 and x.r < low:
    c = n.beta_low * low * x.a
  if x.a > 0 and x.r > high:
    c = n.beta_high * high * x.a
  return -c, 0.0 if x.flat else c


def aspo(x, row, n, _):
  entropies = sorted(float(y.columns["entropy"]) for y in row)
  place = n.entropy_quantile * (len(entropies) - 1)
  k = min(int(place), len(entropies) - 1)
  above = entropies[min(k + 1, len(entropies) - 1)]
  quantile = entropies[k] + (place - k) * (above - entropies[k])
  eps = n.clip_entropy if float(x.columns["entropy"]) > quantile else n.clip
  if (x.a > 0 and x.r > 1 + eps) or (x.a < 0 and x.r < 1 - eps):
    return 0.0, 0.0
  weight = min(1 / x.r if x.a > 0 else x.r, n.cap)
  return -weight * x.a * x.lp, weight * x.a


def rec(x, row, n, _):
  mean = math.exp(min(sum(y.log_r for y in row) / len(row), 10.0))
  r = mean if n.clip == "one_side_row" else x.r
  inside = 1 - n.clip_low <= r <= 1 + n.clip_high
  one_side = (x.a >= 0 and r <= 1 + n.clip_high) or (x.a <= 0 and r >= 1 - n.clip_low)
  ring = (x.a >= 0 and r <= 1 - n.ring_low) or (x.a <= 0 and r >= 1 + n.ring_high)
  keep = {"none": True, "two_side": inside, "one_side": one_side, "one_side_row": one_side,
          "ring": inside or ring}[n.clip]
  weight = {"none": 1.0, "ratio": x.r, "row_ratio": mean,
            "clipped_ratio": min(max(x.r, 1 - n.ring_low), 1 + n.ring_high)}[n.weight]
  c = weight * x.a if keep else 0.0
  return -c * x.lp + n.k2 * x.log_r**2, c - (0.0 if x.flat else 2 * n.k2 * x.log_r)


def delight(x, row, n, _):
  chi = -x.a * x.lp / n.eta
  gate = 1 / (1 + math.exp(-chi)) if chi > -700 else 0.0
  return -gate * x.a * x.lp, gate * x.a


# --- probabilities


def both_sides(x, keep, kl_tau):
  c = x.r * x.a if keep else 0.0
  return -c + kl_tau * x.log_r**2, 0.0 if x.flat else c - 2 * kl_tau * x.log_r


def ipo(x, row, n, _):
  return both_sides(x, n.delta is None or abs(x.moved) <= n.delta, n.kl_tau)


def kpop(x, row, n, _):
  p, q = (min(max(math.exp(v), 1e-6), 1 - 1e-6) for v in (x.lp, x.anchor))
  d = lambda p, q: p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
  return both_sides(x, n.phi is None or max(d(p, q), d(q, p)) <= n.phi, n.kl_tau)


def drpo(x, row, n, _):
  r = x.r if n.ratio_cap is None else min(x.r, n.ratio_cap)
  m = x.moved if n.weighted else r - 1
  sign = (x.a > 0) - (x.a < 0)
  value = -x.a * r + abs(x.a) * m * (r - 1) / (2 * n.eps)
  return value, 0.0 if x.flat else r * x.a * (1 - sign * m / n.eps)


def dppo(x, n, kl):
  mu = float(x.columns["recomputed_log_probs"]) if n.mask_anchor == "recomputed" else x.anchor
  p, q = math.exp(x.lp), math.exp(mu)
  rest = lambda p: max(1 - p, 1e-9)
  log_ratio = max(-BOUND, min(BOUND, x.lp - mu))
  distance = abs(p - q) if not kl else -q * log_ratio + rest(q) * math.log(rest(q) / rest(p))
  keep = True
  if x.a > 0 and p > q and n.delta_high is not None:
    keep = distance <= n.delta_high
  if x.a < 0 and p < q and n.delta_low is not None:
    keep = distance <= n.delta_low
  c = x.a * min(x.r, math.inf if n.ratio_cap is None else n.ratio_cap) if keep else 0.0
  return -c * x.lp, c


def dppo_tv(x, row, n, _):
  return dppo(x, n, kl=False)


def dppo_kl(x, row, n, _):
  return dppo(x, n, kl=True)


def cppo(x, row, n, _):
  moves = [abs(y.moved) for y in row]
  d_b = n.d_b
  if n.adaptive:
    d_b = min(max(float(np.quantile(moves, 0.9)), n.d_b), 2 * n.d_b)
  weights = [1 - (1 - n.w_min) * ((y.t - 1) / (y.length - 1) if y.length > 1 else 0.0) for y in row]
  k = x.t - 1
  earned = n.d + d_b * sum(weights[:k]) - sum(w * m for w, m in zip(weights[:k], moves[:k],
                                                                    strict=True))
  keep = x.a * x.log_r <= 0 or weights[k] * moves[k] <= min(n.d, earned)
  return (-x.r * x.a, x.r * x.a) if keep and not x.flat else (0.0, 0.0)


# --- prefixes, suffixes, rows


def prefix_power(x, row, n, _):
  log_w = sum(y.log_r for y in row[:x.t]) / x.t ** (1 - n.alpha)
  return in_window(x, log_w, n, x.t ** (n.alpha - 0.5))


def fipo(x, row, n, _):
  dual = math.inf if n.dual_clip is None else n.dual_clip
  if n.max_dual is not None and sum(y.a < 0 and y.r > dual for y in row) > n.max_dual:
    return 0.0, 0.0
  gamma = 0.5 ** (1 / n.half_life)
  future = sum(gamma ** (y.t - x.t) * y.log_r for y in row[x.t - 1:] if y.r <= dual)
  f = math.exp(max(-BOUND, min(BOUND, future)))
  f = min(max(f, 1.0 if n.high_only else 1 - n.width), 1 + n.width)
  if n.safety is not None and x.a < 0 and x.r > n.safety:
    f = min(max(f, 0.8), 1.0)
  return clipped_ppo(x, *bounds(n), n.dual_clip, a=f * x.a)


def row_kept(row, n):
  s = math.exp(sum(y.log_r for y in row) / len(row))
  return (n.row_low is None or s >= n.row_low) and (n.row_high is None or s <= n.row_high)


def geo_mask(x, row, n, _):
  c = x.a if row_kept(row, n) else 0.0
  return -c * x.lp, c


def seq_mis(x, row, n, _):
  c = row_ratio(row) * x.a if row_kept(row, n) else 0.0
  return -c * x.lp, c


def mis_po(x, row, n, _):
  token = (n.token_low is None or x.r >= n.token_low) and (
      n.token_high is None or x.r <= n.token_high)
  c = x.a if token and row_kept(row, n) else 0.0
  return -c * x.lp, c


# --- batches


def bapo_bounds(batch, n):
  def share(low, high):
    up = down = 0.0
    for x in batch:
      if n.contribution == "live" and (x.r > high if x.a >= 0 else x.r < low):
        continue
      e = x.a * (min(x.r, high) if x.a >= 0 else max(x.r, low))
      up, down = up + max(e, 0.0), down + max(-e, 0.0)
    return math.inf if down == 0 else up / down

  low, high, i, j = n.low_start, n.high_start, 0, 0
  while share(low, high) < n.target and low < n.low_max - 1e-9:
    i += 1
    low = min(n.low_start + i * n.low_step, n.low_max)
  while share(low, high) < n.target and high < n.high_max - 1e-9:
    j += 1
    high = min(n.high_start + j * n.high_step, n.high_max)
  return low, high


def bapo(x, row, n, bound):
  return clipped_ppo(x, *bound, n.dual_clip)


def covariances(batch):
  a, lp = np.mean([x.a for x in batch]), np.mean([x.lp for x in batch])
  return [(x.a - a) * (x.lp - lp) for x in batch]


def scramble(word):
  word = (word ^ (word >> 16)) * 0x85EBCA6B % 2**32
  word = (word ^ (word >> 13)) * 0xC2B2AE35 % 2**32
  return word ^ (word >> 16)


def draw(x):
  word = scramble((int(x.columns["row_id"]) * 0x9E3779B9 + 0x85EBCA6B) % 2**32) ^ x.t
  return scramble(word * 0xC2B2AE35 % 2**32)


def clip_cov_chosen(batch, n):
  if not batch:
    return set()
  low, high = bounds(n)
  clipped = lambda x: (x.a > 0 and x.r > high) or (x.a < 0 and x.r < low)
  candidates = [x for x, v in zip(batch, covariances(batch), strict=True)
                if n.cov_low < v < n.cov_high and not clipped(x)]
  order = sorted(candidates, key=draw)
  return {(x.b, x.column) for x in order[:max(int(n.share * len(batch)), 1)]}


def clip_cov(x, row, n, chosen):
  return (0.0, 0.0) if (x.b, x.column) in chosen else clipped_ppo(x, *bounds(n), None)


def kl_cov_chosen(batch, n):
  if not batch:
    return set()
  values = covariances(batch)
  if max(values) == min(values):
    return set()
  ranked = sorted(values, reverse=True)
  last = ranked[max(int(n.share * len(batch)), 1) - 1]
  return {(x.b, x.column) for x, v in zip(batch, values, strict=True) if v >= last}


def kl_cov(x, row, n, chosen):
  pull = n.coef if (x.b, x.column) in chosen else 0.0
  sign = (x.log_r > 0) - (x.log_r < 0)
  return -x.r * x.a + pull * abs(x.log_r), 0.0 if x.flat else x.r * x.a - pull * sign


RULES = {name: function for name, function in list(globals().items())
         if inspect.isfunction(function)
         and [*inspect.signature(function).parameters][:3] == ["x", "row", "n"]}
BATCH = {"m2po": m2_threshold, "bapo": bapo_bounds, "clip_cov": clip_cov_chosen,
         "kl_cov": kl_cov_chosen}
NAMES = tuple(RULES)
