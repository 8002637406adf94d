"""Sampling rows from an automaton, by one policy or by several."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from experiments.tables_lib.arena.automata import Automaton, end_win, entries, limit_win
from experiments.tables_lib.arena.policies import Policy
from experiments.tables_lib.arena.setting import POLICIES_OF_A_MIXTURE, Setting


class Rows(NamedTuple):
  """Sampled rows, groups contiguous.

  Attributes:
    states: [B, L] int32, before each token.
    tokens: [B, L] int32.
    mask: [B, L] bool, False after the token that ended the row.
    chance: [B] f32, of the row to be right given its tokens; with state_rewards, the reward.
    rewards: [B] f32, 0 or 1 sampled with `chance`; or the reward.
    group_id: [B] int32.
  """

  states: Int[Array, "B L"]
  tokens: Int[Array, "B L"]
  mask: Bool[Array, "B L"]
  chance: Float[Array, " B"]
  rewards: Float[Array, " B"]
  group_id: Int[Array, " B"]


class Behavior(NamedTuple):
  """The policies that sample.

  Attributes:
    prepared: of one policy; or the tables of n memoryless policies below each other, [n S, V].
    part: [B, L] int32, which of them samples a token. None: there is one.
  """

  prepared: Any
  part: Int[Array, "B L"] | None = None

  def states(self, states: Int[Array, "B L"], number: int) -> Int[Array, "B L"]:
    """Returns the rows of `prepared` that belong to states of an automaton of `number` states."""
    return states if self.part is None else states + number * self.part


def parts(setting: Setting) -> Int[Array, "B L"] | None:
  """Returns which of the policies of a mixture samples each token, the oldest first."""
  shape = (setting.rows, setting.length)
  if setting.mixture == "none":
    return None
  if setting.mixture == "row":
    return jnp.broadcast_to(jnp.arange(shape[1]) * POLICIES_OF_A_MIXTURE // shape[1], shape)
  group = jnp.arange(shape[0]) // setting.group_size
  return jnp.broadcast_to((group % POLICIES_OF_A_MIXTURE)[:, None], shape)


def drawn(kept: Rows, choice: Int[Array, " G"], group_size: int) -> Rows:
  """Returns the chosen groups of kept rows [K, B, ...], by their numbers in K times the groups."""
  groups = kept.rewards.shape[1] // group_size

  def take(x):
    by_group = x.reshape(-1, group_size, *x.shape[2:])
    return by_group[choice].reshape(groups * group_size, *x.shape[2:])

  return jax.tree.map(take, kept)._replace(group_id=jnp.repeat(jnp.arange(groups), group_size))


def sample(automaton: Automaton, policy: Policy, behavior: Behavior, key, setting: Setting) -> Rows:
  """Returns `setting.groups` x `setting.group_size` rows; the key is consumed.

  The uniforms depend on the key only, so that methods compared on one key differ by their policies.
  """
  keys, number = jax.random.split(key, 4), automaton.starts.shape[0]
  start = jax.random.choice(keys[0], number, (setting.groups,), p=automaton.starts)
  start = jnp.repeat(start, setting.group_size)
  shape = (setting.length, setting.rows)
  noise = [jax.random.uniform(keys[1], shape)]
  if automaton.branch is not None:
    noise.append(jax.random.uniform(keys[2], shape))
  part = None if behavior.part is None else behavior.part.T
  vocabulary = automaton.first_logits.shape[1]

  def step(carry, inputs):
    state, live, memory = carry
    uniforms, part = inputs
    index = state if part is None else state + number * part
    cumulative, memory = policy.step(behavior.prepared, index, memory)
    token = (uniforms[0][:, None] >= cumulative[:, :-1]).sum(-1, dtype=jnp.int32)
    following, goes_on = _after(automaton, state * vocabulary + token, uniforms, live)
    return (jnp.where(goes_on, following, state), goes_on, memory), (state, token, live)

  live = jnp.ones(setting.rows, bool)
  carry = (start, live, policy.start(setting.rows))
  (last, live, _), walk = lax.scan(step, carry, (noise, part))
  states, tokens, mask = (x.T for x in walk)
  chance = _chance(automaton, (states, tokens, mask), last, live)
  rewards = chance
  if automaton.state_rewards is None:
    rewards = (jax.random.uniform(keys[3], chance.shape) < chance).astype(jnp.float32)
  return Rows(states, tokens, mask, chance, rewards,
              jnp.repeat(jnp.arange(setting.groups), setting.group_size))


def _after(automaton: Automaton, index, uniforms, live):
  """Returns the states [B] after tokens, and which rows continue; index: of the token in [S V]."""
  following = entries(automaton.next.reshape(-1), index)
  if automaton.branch is not None:
    branches = uniforms[1] < entries(automaton.branch_chance.reshape(-1), index)
    following = jnp.where(branches, entries(automaton.branch.reshape(-1), index), following)
  if automaton.end is None:
    return following, live
  return following, live & ~entries(automaton.end.reshape(-1), index)


def _chance(automaton: Automaton, walk, last, live) -> Float[Array, " B"]:
  """Returns `Rows.chance`, from the walk, the last states, and the rows that no token ended."""
  states, tokens, mask = walk
  if automaton.state_rewards is not None:
    next_states = jnp.concatenate([states[:, 1:], last[:, None]], 1)
    return entries(automaton.state_rewards, next_states).mean(-1)
  survives = jnp.log1p(-automaton.hazard).reshape(-1)
  index = states * automaton.hazard.shape[1] + tokens
  survival = jnp.exp(jnp.where(mask, entries(survives, index), 0.0).sum(-1))
  return survival * jnp.where(live, limit_win(automaton)[last], end_win(automaton)[last])
