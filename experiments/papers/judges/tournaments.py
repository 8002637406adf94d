"""Rewards from preferences between pairs of completions, without preferences that contradict each
other.

A tournament is an antisymmetric array [n, n]: entry ij > 0 is the weight of the win of i over j, 0
a tie. Wins that form a cycle rank nothing, so that as little as possible of them is deleted.

Source: Taming the Judge (arXiv 2510.15514), as in the public code of RM-Gallery.
"""

import hashlib
import itertools
import json
from collections.abc import Callable

import numpy as np
from scipy.sparse import csgraph

TIE_COST = 0.1  # of deleting an edge of a tie; deleting a win costs its weight
MOST = 16  # completions up to which all orders are compared
EQUAL = 1e-9  # costs of two orders that differ by less are equal


def dgr_rewards(preferences: np.ndarray, order: str = "symmetric",
                directions: np.ndarray | None = None) -> np.ndarray:
  """Returns the Deconflicted Graph Rewards [n] in [-1, 1] of n completions, float64.

    kept = the wins that agree with an order whose disagreements weigh least
    reward_i = (sum_j kept_ij - sum_j kept_ji) / max_k |the same of k|

  Deviations from the public code: `order="symmetric"` takes the mean of `wins` over all best
  orders, so that nothing depends on the enumeration (own derivation), and dynamic programming over
  subsets replaces the list of n! orders. With all kept wins balanced, all rewards are 0.

  Args:
    preferences: [n, n], antisymmetric; entry ij > 0 is the weight of the win of i over j, 0 a tie.
    order: "symmetric" or "first", the best order that comes first in lexicographic order.
    directions: [n, n]; a tie with entry ij > 0 is an edge from i to j, of weight 0, whose
      disagreement weighs TIE_COST. None: ties are no edges.

  Raises:
    ValueError: preferences that are not square, finite and antisymmetric, or an unknown order.
  """
  wins = kept_wins(preferences, order, directions)
  return scaled(wins.sum(1) - wins.sum(0))


def distinct_pairs(texts: list[str]) -> list[tuple[str, str]]:
  """Returns the pairs of different texts, each once; nothing depends on the order of `texts`."""
  return list(itertools.combinations(sorted(set(texts)), 2))


def between(texts: list[str], decided: Callable[[str, str], float]) -> np.ndarray:
  """Returns the tournament [n, n] of texts of which some may be equal; equal ones tie.

  Args:
    decided: of the texts of a pair in the order of `distinct_pairs`: above 0 if the first one wins.
  """
  tournament = np.zeros((len(texts),) * 2)
  pairs = set(distinct_pairs(texts))
  for i, j in itertools.permutations(range(len(texts)), 2):
    if (texts[i], texts[j]) in pairs:
      tournament[i, j] = decided(texts[i], texts[j])
      tournament[j, i] = -tournament[i, j]
  return tournament


def drawn(*texts: str) -> float:
  """Returns a number in [0, 1) that depends on nothing but the texts, so that runs repeat."""
  digest = hashlib.blake2b(json.dumps(texts).encode(), digest_size=8).digest()
  return int.from_bytes(digest, "big") / 2**64


def kept_wins(preferences: np.ndarray, order: str = "symmetric",
              directions: np.ndarray | None = None) -> np.ndarray:
  """Returns the weights [n, n] of the wins that stay, for the arguments of `dgr_rewards`.

  More than MOST completions are ordered by their net wins, as the public code does with more than
  10; equal ones are in either order, half and half, or with "first" as they came.
  """
  preferences = np.asarray(preferences, float)
  if (preferences.ndim != 2 or not np.isfinite(preferences).all()
      or not np.array_equal(preferences, -preferences.T)):
    raise ValueError(f"preferences of shape {preferences.shape}: a square, finite, antisymmetric "
                     "array was expected. Fix: entry ji = -entry ij, 0 for a tie")
  if order not in ("symmetric", "first"):
    raise ValueError(f"order = {order!r}: allowed are 'symmetric' and 'first'")
  wins = np.maximum(preferences, 0.0)
  if len(wins) > MOST:
    net = preferences.sum(1)
    before = (net[:, None] > net).astype(float)
    equal = net[:, None] == net
    before += np.triu(equal, 1) if order == "first" else 0.5 * equal
  else:
    tied = 0.0 if directions is None else (preferences == 0) & (np.asarray(directions) > 0)
    before = shares(wins + TIE_COST * tied, order)
  return wins * before


def scaled(net: np.ndarray) -> np.ndarray:
  """Returns net wins divided by the largest of their magnitudes; zeros if all are zero."""
  largest = np.abs(net).max(initial=0.0)
  return net / largest if largest > EQUAL else np.zeros_like(net)


def shares(costs: np.ndarray, order: str) -> np.ndarray:
  """Returns [n, n]: the share of the best orders in which i comes before j.

    best(S) = min over i in S of best(S - i) + sum over j in S - i of costs_ij
    tail(S) = min over i not in S of sum over j in S of costs_ij + tail(S + i)

  An order's cost is the sum of costs_ij over the pairs in the opposite order, j before i. S runs
  over the 2^n subsets, as bit masks; the numbers of optimal ways to both sides of each step count
  the orders without listing them.

  Args:
    costs: [n, n] of the edges from i to j, >= 0, with n <= MOST.
    order: as in `dgr_rewards`.
  """
  n = len(costs)
  sets, bit = np.arange(1 << n), 1 << np.arange(n)
  inside = (sets[:, None] & bit) > 0
  step = inside @ costs.T  # [2^n, n]: of placing i below the members of S
  size = inside.sum(1)
  best, ways = np.zeros(1 << n), np.ones(1 << n)
  tail, ends = np.zeros(1 << n), np.ones(1 << n)
  for k in range(1, n + 1):
    for S, into, cost, count in ((sets[size == k], True, best, ways),
                                 (sets[size == n - k], False, tail, ends)):
      neighbour = S[:, None] ^ bit  # without i, or with i
      paid = step[neighbour if into else S[:, None], np.arange(n)] + cost[neighbour]
      paid = np.where(inside[S] == into, paid, np.inf)
      cost[S] = paid.min(1)
      count[S] = np.where(paid <= cost[S, None] + EQUAL, count[neighbour], 0.0).sum(1)
  after = sets[:, None] | bit
  optimal = ~inside & (best[:, None] + step + tail[after] <= tail[0] + EQUAL)
  if order == "first":
    return _first_path_shares(optimal)
  return inside.T @ np.where(optimal, ways[:, None] * ends[after], 0.0) / ends[0]


def _first_path_shares(optimal: np.ndarray) -> np.ndarray:
  """Returns `shares` of the lexicographically first path along the optimal steps [2^n, n]."""
  n, S = optimal.shape[1], 0
  before = np.zeros((n, n))
  for _ in range(n):
    i = int(np.argmax(optimal[S]))
    before[[j for j in range(n) if S >> j & 1], i] = 1.0
    S |= 1 << i
  return before


def has_conflict(preferences: np.ndarray) -> bool:
  """Returns whether the wins (entries > 0 of [n, n]) contain a cycle.

  They do where a strongly connected component has more than one node. Ties are no edges here.
  """
  count, _ = csgraph.connected_components(np.asarray(preferences) > 0, connection="strong")
  return count < len(preferences)


def conflict_rate(tournaments: list[np.ndarray]) -> float:
  """Returns the share of preferences, one array [n, n] per prompt, that contain a cycle."""
  return float(np.mean([has_conflict(tournament) for tournament in tournaments]))
