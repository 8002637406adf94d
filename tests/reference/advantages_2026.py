"""Advantages of 2025-26 of one group, as loops over plain numbers; no code of the package."""

import itertools
import math
import statistics


def maxrl(rewards, epsilon=1e-6):
  mean = sum(rewards) / len(rewards)
  return [(r - mean) / (mean + epsilon) if mean > 0 else 0.0 for r in rewards]


def opmd(rewards, tau=1.0):
  mean = sum(math.exp(r / tau) for r in rewards) / len(rewards)
  return [r - tau * math.log(mean) for r in rewards]


def asymre(rewards, shift=-0.1):
  mean = sum(rewards) / len(rewards)
  return [r - (mean + shift) for r in rewards]


def pass_k(rewards, k):
  """By enumeration of all sets of k rows: the mean over the sets with the row of (set's reward -
  mean over all sets), over the deviation over all sets.
  """
  if len(rewards) < k:
    return [0.0] * len(rewards)
  sets = list(itertools.combinations(range(len(rewards)), k))
  best = {s: float(any(rewards[i] > 0 for i in s)) for s in sets}
  mean = sum(best.values()) / len(sets)
  deviation = math.sqrt(sum((v - mean) ** 2 for v in best.values()) / len(sets))
  out = []
  for i in range(len(rewards)):
    gains = [best[s] - mean for s in sets if i in s]
    out.append(sum(gains) / len(gains) / (deviation + 1e-6) if deviation > 0 else 0.0)
  return out


def pass_k_best(rewards, normalize=True):
  order = sorted(rewards, reverse=True)
  lead = order[0] - order[1]
  if normalize:
    lead /= statistics.stdev(rewards) + 1e-6
  first = rewards.index(order[0])
  return [lead if i == first else 0.0 for i in range(len(rewards))]


def gdpo_scores(parts, weights, epsilon=1e-6):
  """z of each row of one group, before whitening; parts[k][i]."""
  out = [0.0] * len(parts[0])
  for part, weight in zip(parts, weights, strict=True):
    mean, deviation = sum(part) / len(part), statistics.stdev(part)
    out = [z + weight * (r - mean) / (deviation + epsilon) for z, r in zip(out, part, strict=True)]
  return out


def whitened(values):
  """(x - mean) / sqrt(var + 1e-8), Bessel's variance."""
  mean = sum(values) / len(values)
  variance = sum((v - mean) ** 2 for v in values) / (len(values) - 1)
  return [(v - mean) / math.sqrt(variance + 1e-8) for v in values]


def reverse_kl(teacher, anchor, rewards, coef=1.0, reward=0.0, bound=None):
  """Rows of log-probs of the policy's tokens, all of one group."""
  mean = sum(rewards) / len(rewards)
  out = []
  for q, p, r in zip(teacher, anchor, rewards, strict=True):
    differences = [a - b for a, b in zip(q, p, strict=True)]
    if bound is not None:
      differences = [max(-bound, min(bound, d)) for d in differences]
    out.append([coef * d + reward * (r - mean) for d in differences])
  return out


def opob(rewards, log_energies, normalize=False):
  """Of one group; energies are W^2 g^2."""
  energies = [math.exp(e - max(log_energies)) for e in log_energies]
  baseline = sum(e * r for e, r in zip(energies, rewards, strict=True)) / sum(energies)
  deviation = statistics.pstdev(rewards) if normalize else 1.0
  return [(r - baseline) / deviation if deviation else 0.0 for r in rewards]
