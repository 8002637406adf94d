"""Exact moments where a sample is a group of completions: every multiset of G sequences, weighed by
its probability.

Group advantages and length-dependent aggregation couple the rows of a group, so the sum runs over
groups. The order of the rows changes nothing, and C(N + G - 1, G) multisets stand for N^G ordered
groups.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.analysis import exact
from jaxrl_llm.analysis.exact_gradient import (
  Moments,
  coefficient_function,
  effective_share,
  in_chunks,
  weight_sums,
)
from jaxrl_llm.config import AdvantageConfig, AggregationConfig, EstimatorConfig
from jaxrl_llm.objective import advantages
from jaxrl_llm.types import AdvantageInputs

MULTISETS = 100_000  # more than these are a matter for sampling
CHUNK = 23188  # groups per compiled call: half the multisets of 4 among 31 sequences
SUPPLIED = frozenset({
    "anchor_log_probs", "ref_log_probs", "sum_pi_squared", "values", "correction_weights", "turn_id"
})


def not_supplied(advantage: str) -> list[str]:
  """Optional inputs that the advantage requires and that this laboratory does not have."""
  return sorted(advantages.spec(advantage).needs - SUPPLIED)


def multisets(sequences: int, group_size: int) -> np.ndarray:
  """[M, G] int32 of sequence indices, each row sorted.

  Raises:
    ValueError: more than MULTISETS of them.
  """
  count = math.comb(sequences + group_size - 1, group_size)
  if count > MULTISETS:
    raise ValueError(
        f"{count} groups of {group_size} among {sequences} sequences: at most {MULTISETS} are "
        "enumerated. "
        "Fix: a smaller tree or group, or monte_carlo.group_moments.")
  return np.array(list(itertools.combinations_with_replacement(range(sequences), group_size)),
                  np.int32)


def multiset_probs(groups: np.ndarray, probs: np.ndarray) -> np.ndarray:
  """G! / prod_s n_s! prod_s probs_s^n_s: [M]; n_s counts the sequence s in the sorted row."""
  run, permutations = np.ones(len(groups)), np.full(len(groups),
                                                    float(math.factorial(groups.shape[1])))
  for column in range(1, groups.shape[1]):
    run = np.where(groups[:, column] == groups[:, column - 1], run + 1, 1)
    permutations /= run  # the factors of every n_s! in turn
  return permutations * np.prod(probs[groups], -1)


def advantage_function(advantage: AdvantageConfig) -> Callable:
  """f(groups [M, G], tables) -> advantages [M, G, L] in float64.

  A group is its own optimizer batch. The advantage sees what training could give it: anchor and
  reference are the behavior policy, values are exact V^mu, correction weights are 1, and there is
  one turn.
  """
  call = advantages.get_advantage(advantage.name)

  def one(group, tables):
    rows = {name: table[group] for name, table in tables.items()}
    anchor, mask = rows["anchor"], rows["mask"]
    return call(
        AdvantageInputs(rewards=rows["rewards"], mask=mask, tokens=rows["tokens"],
                        group_id=jnp.zeros(len(group), jnp.int32), anchor_log_probs=anchor,
                        ref_log_probs=anchor, sum_pi_squared=rows["sum_pi_squared"],
                        values=rows["values"], correction_weights=jnp.ones_like(anchor),
                        turn_id=mask.astype(jnp.int32)), advantage)

  compiled = jax.jit(jax.vmap(one, (0, None)))
  return lambda groups, tables: in_chunks(lambda g: (compiled(g, tables),), [groups], CHUNK)[0]


def group_coefficient_function(estimator: EstimatorConfig,
                               aggregation: AggregationConfig) -> Callable:
  """f(groups [M, G], advantages [M, G, L], tables) -> (coefficients, REINFORCE's coefficients) [M,
  G, L], float64.
  """
  batch = coefficient_function(estimator, aggregation)

  def one(group, advantage, tables):
    log_probs, anchor, mask = (tables[name][group] for name in ("log_probs", "anchor", "mask"))
    return batch(log_probs, anchor, advantage, mask, jnp.zeros(len(group), jnp.int32))

  compiled = jax.jit(jax.vmap(one, (0, 0, None)))
  return lambda groups, advantage, tables: in_chunks(lambda g, a: compiled(g, a, tables),
                                                     [groups, advantage], CHUNK)


def sequence_tables(problem: exact.Problem) -> dict[str, np.ndarray]:
  """Per-sequence arrays [N] or [N, L] that a group is assembled from; `problem` without leading
  axes.
  """
  tree, behavior = problem.tree, problem.behavior_logits
  squared = np.square(np.exp(exact.log_softmax(behavior))).sum(-1)[tree.node]
  return {
      "log_probs": exact.token_log_probs(tree, problem.target_logits),
      "mask": tree.mask,
      "tokens": tree.tokens,
      "anchor": exact.token_log_probs(tree, behavior),
      "rewards": np.array(problem.rewards),
      "values": exact.state_values(tree, behavior, problem.rewards),
      "sum_pi_squared": np.where(tree.mask, squared, 0.0)
  }


def group_gradients(problem: exact.Problem, groups: np.ndarray,
                    coefficients: np.ndarray) -> np.ndarray:
  """Gradient of each group over the target's logits: [M, num_nodes, V]."""
  tree = problem.tree
  size = tree.num_nodes * tree.vocabulary
  index = (tree.node * tree.vocabulary +
           tree.tokens)[groups] + size * np.arange(len(groups))[:, None, None]
  weights = np.where(tree.mask[groups], coefficients, 0.0)
  edges = np.bincount(index.ravel(), weights.ravel(), minlength=len(groups) * size)
  edges = edges.reshape(len(groups), tree.num_nodes, tree.vocabulary)
  return edges - edges.sum(-1, keepdims=True) * np.exp(exact.log_softmax(problem.target_logits))


@dataclasses.dataclass(frozen=True, eq=False)
class Samples:
  """What the moments of group gradients are averages of, one entry per group.

  Attributes:
    gradients: [M, num_nodes, V].
    squares: [M], ||g||^2.
    sums: three [M]: tokens with an advantage, sum of their weights, and of the squared weights.
  """

  gradients: np.ndarray
  squares: np.ndarray
  sums: tuple[np.ndarray, np.ndarray, np.ndarray]

  def moments(self, probs: np.ndarray) -> Moments:
    """Averages under `probs` [M]."""
    return Moments(np.tensordot(probs, self.gradients, 1), np.asarray(probs @ self.squares),
                   effective_share(*(probs @ total for total in self.sums)))


def group_samples(problem: exact.Problem, groups: np.ndarray, advantage: Callable,
                  coefficient: Callable) -> Samples:
  """The gradient of each group.

  Args:
    problem: without leading axes.
    groups: [M, G].
    advantage: from `advantage_function`.
    coefficient: from `group_coefficient_function`.
  """
  tables = sequence_tables(problem)
  coefficients, plain = coefficient(groups, advantage(groups, tables), tables)
  gradients = group_gradients(problem, groups, coefficients)
  rows = lambda x: x.reshape(len(x), -1)
  return Samples(gradients,
                 np.square(rows(gradients)).sum(-1), weight_sums(rows(coefficients), rows(plain)))


def group_moments(problem: exact.Problem, groups: np.ndarray, advantage: Callable,
                  coefficient: Callable) -> Moments:
  """Exact moments of one group's gradient; `groups` from `multisets`, the rest as `group_samples`.
  """
  probs = multiset_probs(groups, exact.sequence_probs(problem.tree, problem.behavior_logits))
  return group_samples(problem, groups, advantage, coefficient).moments(probs)
