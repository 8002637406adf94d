"""Rewards of a group from a judge that compares its completions in pairs, without the conflicts.

  python experiments/main.py --config=experiments/extend/config.py --workdir=runs/judges \
    --config.plugins=experiments/judges/reward.py --config.reward.name=task,tournament \
    --config.reward.url=http://127.0.0.1:8000

`tournament` asks a judge behind HTTP; `rule_tournament` has a rule in its place, and needs none.
The mean of the component `conflict` is the share of prompts whose preferences contain a cycle
(`reward/component/conflict`). Source: Taming the Judge (arXiv 2510.15514), as in the public code of
RM-Gallery; see README.md.
"""

import asyncio
import dataclasses
import difflib
import hashlib
import itertools
import json
import urllib.request

import numpy as np
from scipy.sparse import csgraph

from jaxrl_llm import register
from jaxrl_llm.fields import option

TIE_COST = 0.1  # of deleting an edge that stands for a tie; deleting a win costs its weight
MOST = 16  # completions up to which all orders are compared
EQUAL = 1e-9  # costs of two orders that differ by less are equal
WINS = {"first": 1.0, "second": -1.0, "tie": 0.0}


@dataclasses.dataclass(frozen=True)
class Tournament:
  """The numbers of both rewards. Those of the paper itself are unconfirmed."""

  method: str = option("dgr", "`dgr` deletes the conflicts, `copeland` keeps them",
                       choices=("dgr", "copeland"))
  order: str = option("symmetric", "mean over all best orders, or the first one, as the public code "
                      "does", choices=("symmetric", "first"))
  ties: str = option("random", "a tie is an edge of random direction and weight 0, as in the public "
                     "code, or none", choices=("random", "none"))
  tournament_weight: float = option(1.0, "weight of the component")


@dataclasses.dataclass(frozen=True)
class Asked(Tournament):
  """The numbers of `tournament`, beside those of every asynchronous reward."""

  url: str = option("http://127.0.0.1:8000", "address of the judge")


@dataclasses.dataclass(frozen=True)
class Ruled(Tournament):
  """The numbers of `rule_tournament`."""

  noise: float = option(0.0, "probability that a pair's verdict is reversed", low=0.0, high=1.0)


@register.reward("tournament", Asked, group=True)
async def tournament(problem, completions, cfg):
  """Asks for {"winner": "first", "second" or "tie"} of a prompt and each pair of distinct texts.

  One call that fails or is late leaves the whole group unscored, `reward.timeout` being the time
  for a group.
  """
  pairs = distinct_pairs(completions)
  found = await asyncio.gather(*(_asked(problem, pair, cfg) for pair in pairs))
  return components(problem, completions, dict(zip(pairs, found, strict=True)), cfg)


async def _asked(problem, pair, cfg) -> float:
  body = json.dumps({"prompt": problem.prompt, "first": pair[0], "second": pair[1]}).encode()
  request = urllib.request.Request(cfg.url, body, {"Content-Type": "application/json"})
  answer = await asyncio.to_thread(_post, request, cfg.timeout)
  winner = answer.get("winner") if isinstance(answer, dict) else answer
  if winner not in WINS:
    raise ValueError(f"the judge at {cfg.url} answered {str(answer)[:80]!r}. Fix: "
                     '{"winner": "first"}, "second" or "tie"')
  return WINS[winner]


def _post(request, timeout):
  with urllib.request.urlopen(request, timeout=timeout) as reply:
    return json.load(reply)


@register.reward("rule_tournament", Ruled, group=True)
def rule_tournament(problem, completions, cfg):
  """Prefers the text that is more like the answer; `reward.noise` reverses some verdicts."""
  like = {text: difflib.SequenceMatcher(None, text, problem.answer).ratio() for text in completions}
  verdicts = {}
  for first, second in distinct_pairs(completions):
    flipped = drawn("noise", problem.prompt, first, second) < cfg.noise
    verdicts[first, second] = float(np.sign(like[first] - like[second])) * (-1 if flipped else 1)
  return components(problem, completions, verdicts, cfg)


def distinct_pairs(completions: list[str]) -> list[tuple[str, str]]:
  """Returns the pairs of different texts, each once; neither depends on the order of the group."""
  return list(itertools.combinations(sorted(set(completions)), 2))


def components(problem, completions: list[str], verdicts: dict, cfg: Tournament) -> list[dict]:
  """Returns the components of each completion.

  Args:
    verdicts: of each of `distinct_pairs`: 1 if the first one wins, -1 if the second one does, 0.
  """
  preferences, directions = (np.zeros((len(completions),) * 2) for _ in range(2))
  for i, j in itertools.permutations(range(len(completions)), 2):
    pair = completions[i], completions[j]
    if pair in verdicts:
      preferences[i, j], preferences[j, i] = verdicts[pair], -verdicts[pair]
      if cfg.ties == "random":
        points = 1 if drawn("tie", problem.prompt, *pair) < 0.5 else -1
        directions[i, j], directions[j, i] = points, -points
  if cfg.method == "copeland":
    rewards = scaled(preferences.sum(1))
  else:
    rewards = dgr_rewards(preferences, cfg.order, directions)
  found = float(has_conflict(preferences))
  return [{"tournament": (float(reward), cfg.tournament_weight), "conflict": (found, 0.0)}
          for reward in rewards]


def drawn(*texts: str) -> float:
  """Returns a number in [0, 1) that depends on nothing but the texts, so that runs repeat."""
  digest = hashlib.blake2b(json.dumps(texts).encode(), digest_size=8).digest()
  return int.from_bytes(digest, "big") / 2**64


def dgr_rewards(preferences: np.ndarray, order: str = "symmetric",
                directions: np.ndarray | None = None) -> np.ndarray:
  """Returns the Deconflicted Graph Rewards [n] in [-1, 1] of n completions, float64.

    kept = the wins that agree with an order whose disagreements weigh least
    reward_i = (sum_j kept_ij - sum_j kept_ji) / max_k |the same of k|

  Deviations from the public code: `order="symmetric"` takes the mean of `kept` over all best
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
  kept = kept_wins(preferences, order, directions)
  return scaled(kept.sum(1) - kept.sum(0))


def kept_wins(preferences: np.ndarray, order: str = "symmetric",
              directions: np.ndarray | None = None) -> np.ndarray:
  """Returns the weights [n, n] of the wins that stay, for the arguments of `dgr_rewards`.

  More than MOST completions are ordered by their net wins, as the public code does with more than
  10; equal ones stand in either order, half and half, or with "first" as they came.
  """
  preferences = np.asarray(preferences, float)
  if (preferences.ndim != 2 or not np.isfinite(preferences).all()
      or not np.array_equal(preferences, -preferences.T)):
    raise ValueError(f"preferences of shape {preferences.shape}: a square, finite, antisymmetric "
                     "array was expected. Fix: entry ji = -entry ij, 0 for a tie")
  if order not in ("symmetric", "first"):
    raise ValueError(f"reward.order = {order!r}: allowed are 'symmetric' and 'first'")
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
  """Returns [n, n]: the share of the best orders in which i stands before j.

    best(S) = min over i in S of best(S - i) + sum over j in S - i of costs_ij
    rest(S) = min over i not in S of sum over j in S of costs_ij + rest(S + i)

  An order's cost is the sum of costs_ij over the pairs that stand the other way round, j before i.
  S runs over the 2^n subsets, as bit masks; the numbers of optimal ways to both sides of each step
  count the orders without listing them.

  Args:
    costs: [n, n] of the edges from i to j, >= 0, with n <= MOST.
    order: as in `dgr_rewards`.
  """
  n = len(costs)
  sets, bit = np.arange(1 << n), 1 << np.arange(n)
  inside = (sets[:, None] & bit) > 0
  step = inside @ costs.T  # [2^n, n]: of placing i behind the members of S
  size = inside.sum(1)
  best, ways = np.zeros(1 << n), np.ones(1 << n)
  rest, ends = np.zeros(1 << n), np.ones(1 << n)
  for k in range(1, n + 1):
    for S, into, cost, count in ((sets[size == k], True, best, ways),
                                 (sets[size == n - k], False, rest, ends)):
      other = S[:, None] ^ bit  # without i, or with i
      paid = step[other if into else S[:, None], np.arange(n)] + cost[other]
      paid = np.where(inside[S] == into, paid, np.inf)
      cost[S] = paid.min(1)
      count[S] = np.where(paid <= cost[S, None] + EQUAL, count[other], 0.0).sum(1)
  after = sets[:, None] | bit
  optimal = ~inside & (best[:, None] + step + rest[after] <= rest[0] + EQUAL)
  if order == "first":
    return _of_one(optimal)
  return inside.T @ np.where(optimal, ways[:, None] * ends[after], 0.0) / ends[0]


def _of_one(optimal: np.ndarray) -> np.ndarray:
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
  return float(np.mean([has_conflict(one) for one in tournaments]))
