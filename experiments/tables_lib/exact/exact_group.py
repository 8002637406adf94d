"""Exact moments where a sample is a group of completions: a sum over every multiset of G sequences.

Group advantages and length-dependent aggregation couple the rows of a group, so the sum runs over
groups. The order of the rows changes nothing: C(N + G - 1, G) multisets, each weighted by its
probability, replace N^G ordered groups.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from experiments.tables_lib.exact import exact
from experiments.tables_lib.exact.exact_gradient import (
  Moments,
  coefficient_function,
  effective_share,
  in_chunks,
  weight_sums,
)
from jaxrl_llm.config import AdvantageConfig, AggregationConfig, EstimatorConfig
from jaxrl_llm.objective import advantages
from jaxrl_llm.types import AdvantageInputs

MULTISETS = 100_000  # at most; for more, sample groups
CHUNK = 23188  # groups per compiled call: half the multisets of 4 among 31 sequences
SUPPLIED = frozenset({
    "anchor_log_probs", "ref_log_probs", "sum_pi_squared", "values", "correction_weights", "turn_id"
})


def not_supplied(advantage: str) -> list[str]:
  """Returns the optional inputs that the advantage needs and this laboratory does not have."""
  return sorted(advantages.needs(AdvantageConfig(advantage)) - SUPPLIED)


def multisets(sequences: int, group_size: int) -> np.ndarray:
  """Returns every multiset as sequence indices, [M, G] int32, each row sorted.

  Raises:
    ValueError: there are more than MULTISETS.
  """
  count = math.comb(sequences + group_size - 1, group_size)
  if count > MULTISETS:
    raise ValueError(
        f"{count} groups of {group_size} among {sequences} sequences: at most {MULTISETS} are "
        "enumerated. Fix: a smaller tree or group, or monte_carlo.group_report.")
  return np.array(list(itertools.combinations_with_replacement(range(sequences), group_size)),
                  np.int32)


def multiset_probs(groups: np.ndarray, probs: np.ndarray) -> np.ndarray:
  """Returns the probability of each multiset [M], from the `probs` [N] of the sequences.

    G! / prod_s n_s! prod_s probs_s^n_s     (n_s: how often the sequence s is in the group)
  """
  repeats = np.ones(len(groups))
  permutations = np.full(len(groups), float(math.factorial(groups.shape[1])))
  for column in range(1, groups.shape[1]):
    # The rows are sorted: dividing by the length of each run so far divides by every n_s!.
    repeats = np.where(groups[:, column] == groups[:, column - 1], repeats + 1, 1)
    permutations /= repeats
  return permutations * np.prod(probs[groups], -1)


def advantage_function(advantage: AdvantageConfig) -> Callable:
  """Returns f(groups [M, G], tables) -> advantages [M, G, L] in float64.

  A group is its own optimizer batch. The advantage sees the inputs that training could give it:
  anchor and reference are the behavior policy, values are the exact V^mu, correction weights are 1,
  and there is one turn.
  """
  call = advantages.get_advantage(advantage.name)

  def group_advantages(group, tables):
    anchor, mask = tables["anchor"][group], tables["mask"][group]
    inputs = AdvantageInputs(
        rewards=tables["rewards"][group],
        mask=mask,
        tokens=tables["tokens"][group],
        group_id=jnp.zeros(len(group), jnp.int32),
        anchor_log_probs=anchor,
        ref_log_probs=anchor,
        sum_pi_squared=tables["sum_pi_squared"][group],
        values=tables["values"][group],
        correction_weights=jnp.ones_like(anchor),
        turn_id=mask.astype(jnp.int32),
    )
    return (call(inputs, advantage),)

  program = jax.jit(jax.vmap(group_advantages, (0, None)))

  def advantages_of_groups(groups, tables):
    def chunk(indices):
      return program(indices, tables)

    return in_chunks(chunk, [groups], CHUNK)[0]

  return advantages_of_groups


def group_coefficient_function(estimator: EstimatorConfig,
                               aggregation: AggregationConfig) -> Callable:
  """Returns the `coefficient_function` for groups that are each a separate optimizer batch.

    f(groups [M, G], advantages [M, G, L], tables) -> (coefficients, REINFORCE's coefficients)

  Both results are [M, G, L], float64.
  """
  batch = coefficient_function(estimator, aggregation)

  def coefficients(group, advantage, tables):
    log_probs, anchor, mask = (tables[name][group] for name in ("log_probs", "anchor", "mask"))
    return batch(log_probs, anchor, advantage, mask, jnp.zeros(len(group), jnp.int32))

  program = jax.jit(jax.vmap(coefficients, (0, 0, None)))

  def coefficients_of_groups(groups, advantage, tables):
    def chunk(indices, values):
      return program(indices, values, tables)

    return in_chunks(chunk, [groups, advantage], CHUNK)

  return coefficients_of_groups


def sequence_tables(case: exact.Case) -> dict[str, np.ndarray]:
  """Returns per-sequence arrays, [N] or [N, L], from which groups are assembled.

  `case` has no leading axes.
  """
  tree, behavior = case.tree, case.behavior_logits
  squares = np.square(np.exp(exact.log_softmax(behavior))).sum(-1)[tree.node]
  return {
      "log_probs": exact.token_log_probs(tree, case.target_logits),
      "mask": tree.mask,
      "tokens": tree.tokens,
      "anchor": exact.token_log_probs(tree, behavior),
      "rewards": np.array(case.rewards),
      "values": exact.state_values(tree, behavior, case.rewards),
      "sum_pi_squared": np.where(tree.mask, squares, 0.0),
  }


def group_gradients(case: exact.Case, groups: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
  """Returns the gradient of each group over the target's logits, [M, num_nodes, V]."""
  tree = case.tree
  size = tree.num_nodes * tree.vocabulary
  edge = (tree.node * tree.vocabulary + tree.tokens)[groups]
  index = edge + size * np.arange(len(groups))[:, None, None]
  weights = np.where(tree.mask[groups], coefficients, 0.0)
  edges = np.bincount(index.ravel(), weights.ravel(), minlength=len(groups) * size)
  edges = edges.reshape(len(groups), tree.num_nodes, tree.vocabulary)
  return edges - edges.sum(-1, keepdims=True) * np.exp(exact.log_softmax(case.target_logits))


@dataclasses.dataclass(frozen=True, eq=False)
class Samples:
  """Per-group quantities whose averages are the moments.

  Attributes:
    gradients: [M, num_nodes, V].
    squares: [M], ||g||^2.
    sums: three [M]: tokens with an advantage, sum of their weights, sum of the squared weights.
  """

  gradients: np.ndarray
  squares: np.ndarray
  sums: tuple[np.ndarray, np.ndarray, np.ndarray]

  def moments(self, probs: np.ndarray) -> Moments:
    """Returns the averages under `probs` [M]."""
    return Moments(
        mean=np.tensordot(probs, self.gradients, 1),
        square=np.asarray(probs @ self.squares),
        effective=effective_share(*(probs @ total for total in self.sums)),
    )


def group_samples(case: exact.Case, groups: np.ndarray, advantage: Callable,
                  coefficient: Callable) -> Samples:
  """Computes the gradient of each group.

  Args:
    case: without leading axes.
    groups: [M, G].
    advantage: from `advantage_function`.
    coefficient: from `group_coefficient_function`.
  """
  tables, count = sequence_tables(case), len(groups)
  coefficients, plain = coefficient(groups, advantage(groups, tables), tables)
  gradients = group_gradients(case, groups, coefficients)
  return Samples(
      gradients=gradients,
      squares=np.square(gradients.reshape(count, -1)).sum(-1),
      sums=weight_sums(coefficients.reshape(count, -1), plain.reshape(count, -1)),
  )


def group_moments(case: exact.Case, groups: np.ndarray, advantage: Callable,
                  coefficient: Callable) -> Moments:
  """Returns the exact moments of one group's gradient.

  `groups` is from `multisets`; the other arguments are as in `group_samples`.
  """
  probs = multiset_probs(groups, exact.sequence_probs(case.tree, case.behavior_logits))
  return group_samples(case, groups, advantage, coefficient).moments(probs)
