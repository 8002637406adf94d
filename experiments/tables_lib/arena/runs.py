"""Complete RL runs as one program: a loop over seeds, vectorized over learning rates, staleness and
noise.

Random numbers depend on the seed only (common random numbers): methods, rates and values of
staleness see the same automaton and the same uniforms, so that differences are paired.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from experiments.tables_lib.arena import automata, rows, updates
from experiments.tables_lib.arena.method import Method
from experiments.tables_lib.arena.policies import get_policy, table_of
from experiments.tables_lib.arena.rows import Behavior
from experiments.tables_lib.arena.setting import MARKS, POLICIES_OF_A_MIXTURE, Setting
from experiments.tables_lib.arena.updates import Context
from jaxrl_llm.objective import advantages

EVALUATED = (32, 4)  # groups and rows of a group, for a policy whose return is not exact


class Start(NamedTuple):
  """Initial state of a seed."""

  automaton: automata.Automaton
  params: Float[Array, " n"]
  fixed: Any
  key: Array
  optimum: Float[Array, ""]
  first_return: Float[Array, ""]


class Place(NamedTuple):
  """A point of a sweep: learning rate of the optimizer, staleness in iterations, engine noise.

  The noise is the standard deviation of normal noise on the sampler's logits, sampled in each
  iteration for each state; its log-probs are the ones that it sampled with.
  """

  step: Float[Array, ""]
  age: Array
  noise: Float[Array, ""]


class Record(NamedTuple):
  """Results of a run; E evaluations.

  Attributes:
    curve: [E], (return - first return) / (optimum - first return), plus nothing: 0 is the start, 1
      the optimum. `returns` are the returns over the optimum.
    returns: [E].
    dropped: [E], share of tokens without gradient, by the estimator's own count.
    length: [E], mean number of tokens of a row over the length limit.
    drift, spread: [8], mean and standard deviation over rows of L_t = sum of the log-ratios to the
      sampling policy at t = T/8, 2T/8 ... T, averaged over the run.
  """

  curve: Float[Array, " E"]
  returns: Float[Array, " E"]
  dropped: Float[Array, " E"]
  length: Float[Array, " E"]
  drift: Float[Array, " M"]
  spread: Float[Array, " M"]


def start(seed, setting: Setting) -> Start:
  """Returns a seed's automaton, first policy, and both ends of the scale; exact for all policies,
  whose first logits are the automaton's.
  """
  keys = jax.random.split(jax.random.fold_in(jax.random.key(0), seed), 3)
  automaton = automata.make(setting.task, keys[0], setting.length)
  params, constants = get_policy(setting.policy).init(keys[1], *automaton.first_logits.shape)
  probs = jax.nn.softmax(automaton.first_logits)
  return Start(automaton, params, constants, keys[2], automata.optimum(automaton, setting.length),
               automata.exact_return(automaton, probs, setting.length))


def policy_of_age(ring: Float[Array, "K n"], iteration, age) -> Float[Array, " n"]:
  """Returns the parameters of `age` iterations ago, or the first ones; the ring exceeds the age."""
  return ring[jnp.maximum(iteration - age, 0) % ring.shape[0]]


def behavior(context: Context, ring, iteration, place: Place, key) -> Behavior:
  """Returns the policies that sample an iteration's rows; the key is consumed."""
  setting, logits = context.setting, context.automaton.first_logits
  logits = logits + place.noise * jax.random.normal(key, logits.shape)
  if setting.mixture in ("none", "replay"):
    age = place.age if setting.mixture == "none" else 0
    params = policy_of_age(ring, iteration, age)
    return Behavior(context.policy.prepare(params, context.fixed, logits))
  last = POLICIES_OF_A_MIXTURE - 1
  tables = [context.policy.prepare(policy_of_age(ring, iteration, place.age * (last - n) // last),
                                   context.fixed, logits).log_probs for n in range(last + 1)]
  return Behavior(table_of(jnp.concatenate(tables)), rows.parts(setting))


def replayed(context: Context, ring, kept: rows.Rows, iteration, age, key):
  """Returns groups drawn from those of the last `age` + 1 iterations, and their policies.

  The key is consumed. No group is drawn twice.

  Args:
    ring: [K, n], parameters of the last K iterations.
    kept: [K, B, ...], the rows that they sampled, in the same places.
  """
  setting, size = context.setting, context.setting.ring
  ages = (iteration - jnp.arange(size)) % size
  noisy = jax.random.gumbel(key, (size, setting.groups))
  noisy = jnp.where((ages <= jnp.minimum(age, iteration))[:, None], noisy, -jnp.inf)
  _, choice = lax.top_k(noisy.reshape(-1), setting.groups)
  tables = jax.vmap(lambda params: context.prepare(params).log_probs)(ring)
  place = jnp.repeat(choice // setting.groups, setting.group_size)[:, None]
  part = jnp.broadcast_to(place, (setting.rows, setting.length))
  return (rows.drawn(kept, choice, setting.group_size),
          Behavior(table_of(tables.reshape(-1, tables.shape[-1])), part))


def exact_or_sampled(context: Context, params, key) -> Float[Array, ""]:
  """Returns the policy's return; for one that remembers, the mean over 128 rows. Key consumed."""
  setting, policy = context.setting, context.prepare(params)
  if context.policy.memoryless:
    return automata.exact_return(context.automaton, jnp.exp(policy.log_probs), setting.length)
  evaluation = updates.replace_rows(setting, *EVALUATED)
  return rows.sample(context.automaton, context.policy, Behavior(policy), key,
                     evaluation).chance.mean()


def run(begin: Start, place: Place, method: Method, setting: Setting) -> Record:
  """Returns the record of one run."""
  context = Context(method, setting, get_policy(setting.policy), begin.automaton, begin.fixed)
  block_length = setting.iterations // setting.evaluations

  def iterate(carry, iteration):
    return _iterate(context, begin.key, place, carry, iteration)

  def block(carry, number):
    carry, measures = lax.scan(iterate, carry, number * block_length + jnp.arange(block_length))
    key = jax.random.fold_in(begin.key, setting.iterations + number)
    value = exact_or_sampled(context, carry[0].params, key)
    return carry, (value, jax.tree.map(lambda x: x.mean(0), measures))

  ring = jnp.broadcast_to(begin.params, (setting.ring, *begin.params.shape))
  critic = jnp.full((MARKS, begin.automaton.starts.shape[0]), begin.first_return)
  carry = (updates.learner(method, setting, begin.params), ring, critic, _no_rows(setting))
  _, (value, (spread, drift, drop_share, length)) = lax.scan(
      block, carry, jnp.arange(setting.evaluations))
  scale = begin.optimum - begin.first_return
  return Record((value - begin.first_return) / scale, value / begin.optimum, drop_share, length,
                drift.mean(0), spread.mean(0))


def _no_rows(setting: Setting) -> rows.Rows | None:
  """Returns places for the rows of `ring` iterations, where they are drawn again."""
  if setting.mixture != "replay":
    return None
  per_row = jnp.zeros((setting.ring, setting.rows))
  per_token = jnp.zeros((*per_row.shape, setting.length), jnp.int32)
  return rows.Rows(per_token, per_token, per_token.astype(bool), per_row, per_row,
                   per_row.astype(jnp.int32))


def _iterate(context: Context, key, place: Place, carry, iteration):
  """One iteration: samples rows from an older policy, and updates on each optimizer batch."""
  learner, ring, critic, kept = carry
  method, setting = context.method, context.setting
  ring = ring.at[iteration % setting.ring].set(learner.params)
  sampling, noise = jax.random.split(jax.random.fold_in(key, iteration))
  sampler = behavior(context, ring, iteration, place, noise)
  samples = rows.sample(context.automaton, context.policy, sampler, sampling, setting)
  if "values" in advantages.needs(method.advantage):
    critic = updates.learnt_critic(critic, samples, samples.rewards, method.advantage)
  trained = samples
  if setting.mixture == "replay":
    kept = jax.tree.map(lambda ring, x: ring.at[iteration % setting.ring].set(x), kept, samples)
    trained, sampler = replayed(context, ring, kept, iteration, place.age,
                                jax.random.fold_in(sampling, 1))
  batch = updates.scored(context, trained, sampler, context.prepare(learner.params), critic)
  count = setting.rows // setting.batches
  split = jax.tree.map(lambda x: x.reshape(setting.batches, count, *x.shape[1:]), batch)

  def step(learner, batch):
    return updates.update(context, learner, batch, place.step)

  def epoch(learner, _):
    learner, measures = lax.scan(step, learner, split)
    return learner, jax.tree.map(lambda x: x.mean(0), measures)

  learner, measures = lax.scan(epoch, learner, length=setting.epochs)
  spread, drift, drop_share = jax.tree.map(lambda x: x.mean(0), measures)
  return (learner, ring, critic, kept), (spread, drift, drop_share, samples.mask.mean())


def program(method: Method, setting: Setting):
  """Returns the jitted function (seeds [N], places [P]) -> Record with [N, P] leading."""
  over_places = jax.vmap(run, in_axes=(None, 0, None, None))

  def runs_of(seeds, places: Place) -> Record:
    return lax.map(lambda seed: over_places(start(seed, setting), places, method, setting), seeds)

  return jax.jit(runs_of)
