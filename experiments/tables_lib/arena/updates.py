"""One optimizer batch of an arena's run, by the package's own objective."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from experiments.tables_lib.arena.method import Method
from experiments.tables_lib.arena.policies import Policy
from experiments.tables_lib.arena.rows import Behavior, Rows
from experiments.tables_lib.arena.setting import MARKS, OPTIMIZERS, Setting
from jaxrl_llm.config import AdvantageConfig
from jaxrl_llm.objective import advantages, aggregation, correction, estimators
from jaxrl_llm.objective.advantages.critic import value_targets
from jaxrl_llm.registry import TRANSFORMS
from jaxrl_llm.training.transforms import StepParts
from jaxrl_llm.types import AdvantageInputs, Rollout, TrainBatch

CRITIC_RATE = 0.1  # of the way of a cell towards the mean of its targets, each iteration
NO_MODEL: Any = StepParts(None, None, None)  # type: ignore[arg-type]


class Learner(NamedTuple):
  """The state that an update changes: parameters [n], optimizer state, state of the transforms."""

  params: Float[Array, " n"]
  optimizer: Any
  carried: dict


class Batch(NamedTuple):
  """Rows with their constants, all with the rows leading."""

  rows: Rows
  behavior_log_probs: Float[Array, "B L"]
  anchor_log_probs: Float[Array, "B L"]
  advantages: Float[Array, "B L"]
  columns: dict[str, Array]


class Context(NamedTuple):
  """Arguments shared by a run's functions: static parts, automaton, the policy's fixed arrays."""

  method: Method
  setting: Setting
  policy: Policy
  automaton: Any
  fixed: Any

  def prepare(self, params):
    return self.policy.prepare(params, self.fixed, self.automaton.first_logits)


def transforms(method: Method) -> dict:
  """Returns the method's update transforms by name; they get no model."""
  numbers = TRANSFORMS.numbers(method.transform)
  return {name: entry.function(numbers)
          for name, entry in TRANSFORMS.parts(method.transform.name).items() if name != "none"}


def learner(method: Method, setting: Setting, params) -> Learner:
  """Returns the learner of a run's start."""
  carry = {name: transform.first() for name, transform in transforms(method).items()}
  return Learner(params, OPTIMIZERS[setting.optimizer]().init(params), carry)


def scored(context: Context, rows: Rows, behavior: Behavior, current, critic) -> Batch:
  """Returns the rows with log-probs, advantages, and the columns that the method reads.

  Args:
    current: the policy prepared from the parameters of the iteration's start.
    critic: [MARKS, S], the value of a state by eighths of the row.
  """
  method, policy = context.method, context.policy
  number = context.automaton.starts.shape[0]
  sampler_states = behavior.states(rows.states, number)
  log_behavior = policy.log_probs(behavior.prepared, sampler_states, rows.tokens)
  columns = estimators.required(method.estimator)
  log_anchor = log_recomputed = log_behavior
  source = (behavior.prepared, sampler_states)
  if method.anchor == "recomputed" or "recomputed_log_probs" in columns or transforms(method):
    log_recomputed = policy.log_probs(current, rows.states, rows.tokens)
  if method.anchor == "recomputed":
    log_anchor, source = log_recomputed, (current, rows.states)
  needs = advantages.needs(method.advantage)
  statistics = {}
  if {"entropy", "sum_pi_squared"} & (needs | columns):
    log_policy = policy.distributions(*source)
    statistics = {"entropy": -(jnp.exp(log_policy) * log_policy).sum(-1),
                  "sum_pi_squared": jnp.exp(2 * log_policy).sum(-1)}
  rewards = 2 * rows.rewards - 1 if method.signed else rows.rewards
  input_columns = statistics | {"anchor_log_probs": log_anchor,
                                "turn_id": rows.mask.astype(jnp.int32),
                                "values": critic_values(critic, rows)}
  weights = None if method.anchor == "behavior" else correction.correction_weights(
      log_anchor, log_behavior, rows.mask, method.correction)[0]
  inputs = AdvantageInputs(rewards=rewards, mask=rows.mask, tokens=rows.tokens,
                           group_id=rows.group_id, correction_weights=weights,
                           **{name: input_columns[name]
                              for name in sorted(needs & input_columns.keys())})
  advantage = advantages.get_advantage(method.advantage.name)(inputs, method.advantage)
  every_column = {"group_id": rows.group_id, "row_id": jnp.arange(rows.rewards.shape[0]),
                  "rewards": rewards, "turn_id": input_columns["turn_id"],
                  "entropy": statistics.get("entropy"), "recomputed_log_probs": log_recomputed}
  names = columns | ({"recomputed_log_probs"} if transforms(method) else set())
  return Batch(rows, log_behavior, log_anchor, advantage,
               {name: every_column[name] for name in sorted(names)})


def critic_values(critic: Float[Array, "M S"], rows: Rows) -> Float[Array, "B L"]:
  """Returns the critic's values of the states before the tokens."""
  return critic[_part(rows), rows.states]


def learnt_critic(critic: Float[Array, "M S"], rows: Rows, rewards: Float[Array, " B"],
                  cfg: AdvantageConfig) -> Float[Array, "M S"]:
  """Returns the critic after it moved towards the mean target of each cell that was visited."""
  inputs = AdvantageInputs(rewards=rewards, mask=rows.mask, tokens=rows.tokens,
                           group_id=rows.group_id, values=critic_values(critic, rows))
  targets = value_targets(inputs, cfg)
  cell = (jnp.broadcast_to(_part(rows), rows.states.shape), rows.states)
  count = jnp.zeros_like(critic).at[cell].add(rows.mask.astype(critic.dtype))
  total = jnp.zeros_like(critic).at[cell].add(jnp.where(rows.mask, targets, 0.0))
  return jnp.where(count > 0, critic + CRITIC_RATE * (total / jnp.maximum(count, 1) - critic),
                   critic)


def _part(rows: Rows):
  length = rows.states.shape[1]
  return jnp.arange(length) * MARKS // length


def update(context: Context, state: Learner, batch: Batch,
           step_size) -> tuple[Learner, tuple[Array, ...]]:
  """Returns the learner after a step, and (spread and mean of L_t at the marks, dropped share)."""
  method, setting, rows = context.method, context.setting, batch.rows
  weights = loss_weights(method, batch)
  acting = transforms(method)
  if acting:
    state, batch, weights = _before(acting, state, batch, weights)

  def loss(params):
    return surrogate(context, params, batch, weights)

  gradient, (log_probs, drop_share) = jax.grad(loss, has_aux=True)(state.params)
  direction, optimizer = OPTIMIZERS[setting.optimizer]().update(gradient, state.optimizer)
  updates = -step_size * direction
  carry = state.carried
  if acting:
    updates, carry = _after(acting, updates, state, train_batch(batch, weights))
  drift = jnp.where(rows.mask, log_probs - batch.behavior_log_probs, 0.0)
  sums = jnp.cumsum(drift.reshape(drift.shape[0], MARKS, -1).sum(-1), -1)
  return (Learner(state.params + updates, optimizer, carry),
          (sums.std(0), sums.mean(0), drop_share))


def loss_weights(method: Method, batch: Batch) -> Float[Array, "B L"]:
  """Returns aggregation times correction, [B, L]."""
  rows = batch.rows
  weights = aggregation.loss_weights(rows.mask, batch.advantages, rows.group_id, method.aggregation)
  if method.anchor == "behavior":
    return weights
  return weights * correction.correction_weights(
      batch.anchor_log_probs, batch.behavior_log_probs, rows.mask, method.correction)[0]


def surrogate(context: Context, params, batch: Batch, weights):
  """Returns the loss, and (constant log-probs [B, L], share of tokens without gradient)."""
  method, rows = context.method, batch.rows
  log_probs = context.policy.log_probs(context.prepare(params), rows.states, rows.tokens)
  arrays = (log_probs, batch.anchor_log_probs, batch.advantages, rows.mask)
  estimator = estimators.get_estimator(method.estimator.name)
  names = estimators.required(method.estimator)
  output = estimator(*arrays, method.estimator,
                     **{name: batch.columns[name] for name in sorted(names)})
  if method.correction.sequence_delta is not None:
    weights = weights * correction.sequence_mask(*arrays, method.correction)
  drop_share = output.metrics.get("clip/dropped")
  share = 0.0 if drop_share is None else drop_share.total / jnp.maximum(drop_share.count, 1)
  loss = jnp.sum(weights * jnp.where(rows.mask, output.per_token_loss, 0.0))
  return loss, (lax.stop_gradient(log_probs), share)


def train_batch(batch: Batch, weights) -> TrainBatch:
  """Returns the batch as update transforms see it; `columns` hold the recomputed log-probs."""
  rows = batch.rows
  count = rows.rewards.shape[0]
  zeros = jnp.zeros(count, jnp.int32)
  rollout = Rollout(rows.tokens, rows.mask, rows.mask.sum(-1, dtype=jnp.int32), zeros,
                    batch.behavior_log_probs, rows.mask[:, -1], zeros, 0 * rows.tokens,
                    jnp.arange(count),
                    rows.group_id)
  return TrainBatch(rollout, batch.advantages, weights, batch.anchor_log_probs,
                    jnp.ones_like(weights), columns=batch.columns)


def _before(acting: dict, state: Learner, batch: Batch, weights):
  """Returns learner, batch and weights after what transforms do before the gradient."""
  train_rows, carry = train_batch(batch, weights), dict(state.carried)
  for name, transform in acting.items():
    train_rows, carry[name], _ = transform.before(state.params, train_rows, carry[name], NO_MODEL)
  return (state._replace(carried=carry),
          batch._replace(advantages=train_rows.advantages,
                         anchor_log_probs=train_rows.anchor_log_probs),
          train_rows.loss_weights * train_rows.correction_weights)


def _after(acting: dict, updates, state: Learner, train_rows: TrainBatch):
  """Returns (updates, carried) after what transforms do to the optimizer's updates."""
  carry = dict(state.carried)
  for name, transform in acting.items():
    updates, carry[name], _ = transform.after(updates, train_rows, carry[name], NO_MODEL)
  return updates, carry


def replace_rows(setting: Setting, groups: int, group_size: int) -> Setting:
  """Returns a setting with other groups, to evaluate a policy on."""
  return dataclasses.replace(setting, groups=groups, group_size=group_size)
