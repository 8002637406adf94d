"""Token automata: what a sampled token does to a row, and the exact return of a policy on them.

A row starts in a state. Each token moves it to another state, is fatal with some chance (the row is
wrong, whatever follows), or ends the row. The reward comes at the row's end; so the policy faces
what an RL run of a language model faces, while every expectation is a power of a small matrix.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxrl_llm.registry import Table

AUTOMATA: Table = Table("automaton", "experiments.tables_lib.arena.tasks", "task")


class Automaton(NamedTuple):
  """S states, V tokens. None in an optional field means that the automaton has no such thing.

  Attributes:
    next: [S, V] int32, the state that follows a token.
    hazard: [S, V] f32, chance that a token is fatal.
    end: [S, V] bool, where a token ends the row. None: only the length limit ends rows.
    win: [S] f32, chance that a row is right if a token ends it in this state. None: 1.
    starts: [S] f32, chance to start in a state.
    first_logits: [S, V] f32, of the policy at the start of a run.
    branch, branch_chance: [S, V], a token leads to `branch` instead of `next` with this chance.
      None: never.
    limit_win: [S] f32, chance that a row is right if the length limit ends it. None: 1 where `end`
      is None, else 0: a truncated row is wrong.
    state_rewards: [S] f32; if given, the row's reward is their mean over the states that its tokens
      lead to, and not a verdict of 0 or 1. Only without hazard and end.
  """

  next: Int[Array, "S V"]
  hazard: Float[Array, "S V"]
  end: Bool[Array, "S V"] | None
  win: Float[Array, " S"] | None
  starts: Float[Array, " S"]
  first_logits: Float[Array, "S V"]
  branch: Int[Array, "S V"] | None = None
  branch_chance: Float[Array, "S V"] | None = None
  limit_win: Float[Array, " S"] | None = None
  state_rewards: Float[Array, " S"] | None = None


Maker = Callable[[Array, int], Automaton]


def task(name: str, *, replace: bool = False) -> Callable[[Maker], Maker]:
  """Returns a decorator that enters a task: a function (key, length) -> Automaton.

  The function is traced, so that automata of many seeds are made in one call. The key is consumed.

  Args:
    name: value of `Lab.task`.
    replace: overwrites an entry on purpose, for notebooks that run a cell again.

  Raises:
    ValueError: the name is taken.
  """
  return AUTOMATA.register(name, replace=replace)


def entries(table: Array, index: Int[Array, "*N"]) -> Array:
  """Returns table[index] for indices that are known to be inside: a check of each would take as
  long as the look-up, and a run of the arena is mostly look-ups.
  """
  return table.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)


def limit_win(automaton: Automaton) -> Float[Array, " S"]:
  """Returns the chance of a row to be right if the length limit ends it, by state."""
  if automaton.limit_win is not None:
    return automaton.limit_win
  return jnp.full(automaton.starts.shape, 1.0 if automaton.end is None else 0.0)


def end_win(automaton: Automaton) -> Float[Array, " S"]:
  """Returns the chance of a row to be right if a token ends it, by state."""
  return jnp.ones_like(automaton.starts) if automaton.win is None else automaton.win


def transitions(automaton: Automaton, probs: Float[Array, "S V"]) -> Float[Array, "S S"]:
  """Returns the probability of moving to a state without a fatal token, [from, to]."""
  alive = probs * (1 - automaton.hazard)
  if automaton.end is not None:
    alive = jnp.where(automaton.end, 0.0, alive)
  states = probs.shape[0]
  rows = jnp.arange(states)[:, None]
  matrix = jnp.zeros((states, states), probs.dtype)
  if automaton.branch is None:
    return matrix.at[rows, automaton.next].add(alive)
  chance = automaton.branch_chance
  return matrix.at[rows, automaton.next].add(alive * (1 - chance)).at[
      rows, automaton.branch].add(alive * chance)


def exact_return(automaton: Automaton, probs: Float[Array, "S V"], length: int) -> Float[Array, ""]:
  """Returns the expected reward of a row of at most `length` tokens; differentiable.

    (d_T, J_T) = (starts, 0) A^T,    A = [[M, c], [0, 1]],    J = J_T + d_T . limit_win

  M are the `transitions`; c_s is what a token brings in state s: the chance that it ends the row
  and the row is right, or the reward of the following state over T.

  Source: own derivation.
  """
  matrix = transitions(automaton, probs)
  gain = jnp.zeros_like(automaton.starts)
  if automaton.end is not None:
    gain = jnp.where(automaton.end, probs, 0.0).sum(-1) * end_win(automaton)
  if automaton.state_rewards is not None:
    gain = matrix @ automaton.state_rewards / length
  states = gain.shape[0]
  extension = jnp.zeros((states + 1, states + 1)).at[:states, :states].set(matrix)
  extension = extension.at[:states, states].set(gain).at[states, states].set(1.0)
  final = jnp.append(automaton.starts, 0.0) @ jnp.linalg.matrix_power(extension, length)
  verdict = 0.0 if automaton.state_rewards is not None else final[:states] @ limit_win(automaton)
  return final[states] + verdict


def optimum(automaton: Automaton, length: int) -> Float[Array, ""]:
  """Returns the largest expected reward of any policy, also one that knows the position."""
  alive = 1 - automaton.hazard
  bonus = 0.0 if automaton.state_rewards is None else automaton.state_rewards / length
  value = jnp.zeros_like(automaton.starts) if automaton.state_rewards is not None else limit_win(
      automaton)

  def earlier(value, _):
    following = value + bonus
    onward = following[automaton.next]
    if automaton.branch is not None:
      chance = automaton.branch_chance
      onward = (1 - chance) * onward + chance * following[automaton.branch]
    onward = alive * onward
    if automaton.end is not None:
      onward = jnp.where(automaton.end, end_win(automaton)[:, None], onward)
    return onward.max(-1), None

  value, _ = lax.scan(earlier, value, None, length=length)
  return value @ automaton.starts


def visits(next_state: Int[Array, "S V"], probs: Float[Array, "S V"]) -> Float[Array, " S"]:
  """Returns roughly the share of time that a policy spends in each state, if no row ends."""
  states = probs.shape[0]
  matrix = jnp.zeros((states, states)).at[jnp.arange(states)[:, None], next_state].add(probs)
  return jnp.linalg.matrix_power(matrix, 32).mean(0)


def make(name: str, key: Array, length: int) -> Automaton:
  """Returns the automaton of a task; the key is consumed. Raises ConfigError for a wrong one."""
  with AUTOMATA.blamed(name):
    automaton = AUTOMATA[name].function(key, length)
    _check(automaton)
  return automaton


def _check(automaton: Automaton) -> None:
  """Raises ValueError where shapes disagree, or fields that exclude each other are set."""
  if not isinstance(automaton, Automaton):
    raise ValueError(f"it returned {type(automaton).__name__}; an Automaton was expected")
  shape = automaton.first_logits.shape
  by_token = ("next", "hazard", "end", "branch", "branch_chance")
  for name, value in automaton._asdict().items():
    right_shape = shape if name in by_token else shape[:1]
    if value is not None and name != "first_logits" and jnp.shape(value) != right_shape:
      raise ValueError(f"{name} has the shape {jnp.shape(value)}; first_logits {shape} asks for "
                       f"{right_shape}")
  if (automaton.branch is None) != (automaton.branch_chance is None):
    raise ValueError("branch and branch_chance: give both or neither")
  if automaton.state_rewards is not None and automaton.end is not None:
    raise ValueError("state_rewards with end: their mean over rows of different lengths has no "
                     "exact return here. Fix: end=None")
