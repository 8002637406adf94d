"""Rows with one planted decisive token, and how much of an advantage lands on it.

A row is a walk through two states. Until the decisive position it is open; there the token GOOD
makes it right and every other token makes it wrong. After that, the token REPAIR makes it right
again. The reward is 1 if the row ends right. The policy of a position does not depend on the tokens
before, so exact values follow by a recursion from the end. Own derivation.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrl_llm.config import AdvantageConfig
from jaxrl_llm.objective import advantages
from jaxrl_llm.types import AdvantageInputs

GOOD = 0  # token that makes a row right at the decisive position
WRONG, RIGHT = 0, 1  # states after the decisive position


@dataclasses.dataclass(frozen=True)
class Planted:
  """A policy and a reward.

  Attributes:
    length: T, tokens of a row.
    position: of the decisive token, from 0.
    vocabulary: V; the token V - 1 is REPAIR.
    scale: standard deviation of the logits; a larger one makes rows more alike.
    good: probability of GOOD at the decisive position.
    repair: probability of REPAIR at every later position.
    seed: seed of the logits.
  """

  length: int = 12
  position: int = 6
  vocabulary: int = 8
  scale: float = 1.0
  good: float = 0.5
  repair: float = 0.0
  seed: int = 0


def policy(case: Planted) -> np.ndarray:
  """Returns the probability of each token at each position, [T, V] float64."""
  rng = np.random.default_rng([case.seed, case.length, case.vocabulary])
  logits = case.scale * rng.normal(size=(case.length, case.vocabulary))
  probs = np.exp(logits - logits.max(1, keepdims=True))
  probs[:, -1] = 0
  probs /= probs.sum(1, keepdims=True)
  later = np.arange(case.length) > case.position
  probs[later] *= 1 - case.repair
  probs[later, -1] = case.repair
  other_probs = probs[case.position].copy()
  other_probs[GOOD] = 0
  probs[case.position] = (1 - case.good) * other_probs / other_probs.sum()
  probs[case.position, GOOD] = case.good
  return probs


@dataclasses.dataclass(frozen=True)
class Scored:
  """The distributions and columns that a method may read of the policy that sampled the rows.

  Attributes:
    probs: [T, V], of the policy.
    reference: [T, V], of the reference.
    columns: [T] each, by name: columns of training/columns.py that an advantage may read.
  """

  probs: np.ndarray
  reference: np.ndarray
  columns: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

  def advantage_inputs(self, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the fields of AdvantageInputs, each shaped as `tokens` [..., T]."""
    t = np.arange(len(self.probs))
    entropy = -np.sum(self.probs * np.log(np.where(self.probs > 0, self.probs, 1)), -1)
    of_positions = {"sum_pi_squared": np.square(self.probs).sum(-1), "entropy": entropy}
    return {"anchor_log_probs": np.log(self.probs[t, tokens]),
            "ref_log_probs": np.log(self.reference[t, tokens]),
            **{name: np.broadcast_to(x, tokens.shape) for name, x in of_positions.items()},
            "columns": {name: np.broadcast_to(x, tokens.shape)
                        for name, x in self.columns.items()}}


def state_values(case: Planted) -> np.ndarray:
  """Returns the expected reward before position t in a state, [T + 1, 2] float64.

  Entries up to the decisive position, where the state is open, are equal in both columns.
  """
  values = np.zeros((case.length + 1, 2))
  values[-1, RIGHT] = 1.0
  for t in range(case.length - 1, -1, -1):
    after = values[t + 1]
    if t > case.position:
      values[t] = [case.repair * after[RIGHT] + (1 - case.repair) * after[WRONG], after[RIGHT]]
    elif t == case.position:
      values[t] = case.good * after[RIGHT] + (1 - case.good) * after[WRONG]
    else:
      values[t] = after
  return values


def sample(case: Planted, groups: int, group_size: int, seed: int,
           probs: np.ndarray | None = None) -> np.ndarray:
  """Returns tokens [groups, G, T] int32 of the case's policy, or of `probs` [T, V]."""
  rng = np.random.default_rng([seed, case.seed])
  uniform = rng.random((groups, group_size, case.length, 1))
  tokens = (uniform > np.cumsum(policy(case) if probs is None else probs, -1)).sum(-1)
  return np.minimum(tokens, case.vocabulary - 1).astype(np.int32)


def values_and_rewards(case: Planted, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns the exact value before and after each token, [..., T + 1], and rewards [...]."""
  positions = np.arange(case.length)
  right = np.where(positions == case.position, tokens == GOOD,
                   (positions > case.position) & (tokens == case.vocabulary - 1))
  state = np.maximum.accumulate(right, -1).astype(np.int32)
  state = np.concatenate([np.zeros((*tokens.shape[:-1], 1), np.int32), state], -1)
  values = state_values(case)[np.arange(case.length + 1), state]
  return values, values[..., -1]


@dataclasses.dataclass(frozen=True)
class Landing:
  """Credit that an advantage gives by position, over all tokens of many groups.

  Attributes:
    share: of the sum of |A|, what lies on the decisive tokens.
    alignment: cosine of A and the exact advantage Q - V, over all tokens.
    by_position: [T], mean of |A|, divided by its sum over positions.
  """

  share: float
  alignment: float
  by_position: list[float]


class Groups(NamedTuple):
  """Groups that are sampled: rows of each, how many, and the seed."""

  size: int
  number: int
  seed: int


def landing(case: Planted, advantage: AdvantageConfig, groups: Groups, value_error: float = 0.0,
            scored: Scored | None = None) -> Landing:
  """Samples groups, and looks where the advantage lands.

  Args:
    advantage: of the registry; each group is a separate optimizer batch.
    value_error: standard deviation of the errors of a critic's values, one for each state and
      position. They are sampled once: a critic is wrong in the same way about all rows.
    scored: the policy, if it is another one than the case's; the case must not have repair then.
  """
  if scored is None:
    probs = policy(case)
    scored = Scored(probs, probs)
  else:
    case = dataclasses.replace(case, good=float(scored.probs[case.position, GOOD]))
  tokens = sample(case, groups.number, groups.size, groups.seed, scored.probs)
  exact, rewards = values_and_rewards(case, tokens)
  errors = value_error * np.random.default_rng([groups.seed, 1]).normal(size=(case.length, 2))
  # A right row and a wrong one differ in their values, so the value says which error they get.
  right = (exact[..., :-1] == state_values(case)[:-1, RIGHT]).astype(int)
  values = exact[..., :-1] + errors[np.arange(case.length), right]
  stats = jax.tree.map(lambda x: x.astype(np.float32),
                       {**scored.advantage_inputs(tokens), "values": values})
  advantages = np.asarray(_advantages(advantage, tokens, rewards.astype(np.float32), stats),
                          np.float64)
  size, truth = np.abs(advantages), np.diff(exact, axis=-1)
  total = size.sum()
  if total == 0:
    return Landing(float("nan"), float("nan"), [float("nan")] * case.length)
  norm = np.sqrt(np.square(advantages).sum() * np.square(truth).sum())
  return Landing(float(size[..., case.position].sum() / total),
                 float((advantages * truth).sum() / norm), (size.sum((0, 1)) / total).tolist())


@functools.partial(jax.jit, static_argnames="advantage")
def _advantages(advantage: AdvantageConfig, tokens: Int[Array, "M G T"],
                rewards: Float[Array, "M G"],
                stats: dict) -> Float[Array, "M G T"]:
  """Returns the advantages of M groups, each a separate optimizer batch; `stats`: arrays [M, G, T]
  by their field, and the arrays of `columns` by name.
  """
  call = advantages.get_advantage(advantage.name)

  def group_advantages(tokens, rewards, stats):
    inputs = AdvantageInputs(
        rewards=rewards, mask=jnp.ones(tokens.shape, bool), tokens=tokens,
        group_id=jnp.zeros(len(tokens), jnp.int32),
        correction_weights=jnp.ones(tokens.shape, jnp.float32),
        turn_id=jnp.ones(tokens.shape, jnp.int32), **stats)
    return call(inputs, advantage)

  return jax.vmap(group_advantages)(tokens, rewards, stats)
