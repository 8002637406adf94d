"""Checks that must pass before a number of the arena counts; `Lab.check` runs them."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.tables_lib.arena import automata, methods, rows, runs, updates
from experiments.tables_lib.arena.policies import get_policy
from experiments.tables_lib.arena.rows import Behavior
from experiments.tables_lib.arena.setting import Setting
from jaxrl_llm.config import ConfigError
from jaxrl_llm.reporting.tables import markdown_table

ERRORS = 4.0  # standard errors that a sampled value may be away from the exact one
LENGTH = 64  # longest rows that are checked
SEEDS, BATCHES, GROUPS, GROUP_SIZE = 4, 32, 32, 8
RELATIVE = 1e-4  # of first gradients, which are equal but for rounding
POLICY_GRADIENT = "reinforce?advantage=none&aggregation=sequence_sum"
# Of which each has REINFORCE's gradient where the policy is the sampler.
COMPARED = ("reinforce?advantage=grpo", "grpo?aggregation=token", "cispo", "minpro",
            "gspo?aggregation=token", "ctpo?aggregation=token", "seq_is?aggregation=token",
            "dppo_tv?advantage=grpo&aggregation=token")


class Measured(NamedTuple):
  """Sampled minus exact, in standard errors, with the sampled and the exact value."""

  sampled: float
  exact: float
  errors: float


def check(setting: Setting) -> str:
  """Returns a table of all checks, on rows of at most 64 tokens.

    return    for every task that is registered: the sampler's mean reward is the exact return
    gradient  where the policy is memoryless: REINFORCE's mean gradient on a huge batch is the
              derivative of the exact return
    age 0     methods agree in the first gradient
    ring      the policy of each age is the right one, and an age beyond the ring is an error

  Raises:
    RuntimeError: names the check that failed, and by how much.
  """
  short = dataclasses.replace(setting, length=min(setting.length, LENGTH), mixture="none",
                              groups=GROUPS, group_size=GROUP_SIZE, batches=1)
  lines = []
  for task in sorted({*automata.AUTOMATA.names(), setting.task}):
    of_task = dataclasses.replace(short, task=task)
    lines.append(_line(f"return, {task}", sampled_return(of_task)))
    if get_policy(setting.policy).memoryless:
      lines.append(_line(f"gradient, {task}", sampled_gradient(of_task)))
  gradient_gap = first_gradients(dataclasses.replace(short, optimizer="sgd"))
  if gradient_gap > RELATIVE:
    raise RuntimeError(
        f"age 0: first gradients of methods differ by {gradient_gap:.1e} of their norm; "
                       f"at most {RELATIVE} is rounding")
  check_ring(setting)
  lines += [("age 0, largest difference of first gradients", f"{gradient_gap:.1e}", "0", "-"),
            ("ring", f"holds ages 0 to {setting.ring - 1}", "-", "-")]
  return markdown_table(("check", "sampled", "exact", "standard errors"), lines)


def _line(name: str, measured: Measured) -> tuple:
  """Returns a line of the table; raises RuntimeError if the two values differ by too much."""
  if not abs(measured.errors) <= ERRORS:
    raise RuntimeError(f"{name}: sampled {measured.sampled:.5f}, exact {measured.exact:.5f}: "
                       f"{measured.errors:+.1f} standard errors apart; at most {ERRORS} are chance")
  return name, f"{measured.sampled:.5f}", f"{measured.exact:.5f}", f"{measured.errors:+.2f}"


def sampled_return(setting: Setting) -> Measured:
  """Compares the mean reward of first policies with their exact return, over several automata."""
  policy = get_policy(setting.policy)

  def returns(seed):
    begin = runs.start(seed, setting)
    prepared = Behavior(policy.prepare(begin.params, begin.fixed, begin.automaton.first_logits))

    def batch(number):
      samples = rows.sample(begin.automaton, policy, prepared,
                            jax.random.fold_in(begin.key, number), setting)
      return samples.rewards.reshape(setting.groups, -1).mean(-1)  # of a group: one start

    return jax.lax.map(batch, jnp.arange(BATCHES)).reshape(-1), begin.first_return

  sampled, exact = map(np.asarray, jax.jit(lambda s: jax.lax.map(returns, s))(jnp.arange(SEEDS)))
  variance = sampled.var(1, ddof=1) / sampled.shape[1]
  error = np.sqrt(variance.sum()) / SEEDS
  return Measured(sampled.mean(), exact.mean(), (sampled.mean() - exact.mean()) / error)


def sampled_gradient(setting: Setting) -> Measured:
  """Compares REINFORCE's gradient, projected on the exact one, with the exact one's square.

  The policy is moved away from its start, where gradients of all states have the same scale.
  """
  method = methods.parse(POLICY_GRADIENT, setting.length)
  policy = get_policy(setting.policy)
  begin = runs.start(0, setting)
  context = updates.Context(method, setting, policy, begin.automaton, begin.fixed)
  params = begin.params + 0.3 * jax.random.normal(jax.random.key(1), begin.params.shape)

  def exact(params):
    probs = jnp.exp(context.prepare(params).log_probs)
    return automata.exact_return(begin.automaton, probs, setting.length)

  direction = jax.grad(exact)(params)

  def batch(number):
    behavior = Behavior(context.prepare(params))
    samples = rows.sample(begin.automaton, policy, behavior,
                          jax.random.fold_in(begin.key, number), setting)
    scored = updates.scored(context, samples, behavior, behavior.prepared, _no_critic(begin))
    weights = updates.loss_weights(method, scored)
    gradient = jax.grad(lambda p: updates.surrogate(context, p, scored, weights)[0])(params)
    return -gradient @ direction

  projected = np.asarray(jax.jit(lambda n: jax.lax.map(batch, n))(jnp.arange(4 * BATCHES)))
  square = float(direction @ direction)
  error = projected.std(ddof=1) / np.sqrt(len(projected))
  return Measured(float(projected.mean()), square, float((projected.mean() - square) / error))


def first_gradients(setting: Setting) -> float:
  """Returns the largest difference of methods' first gradients on one batch, over the norm."""
  policy, begin = get_policy(setting.policy), runs.start(0, setting)
  prepared = Behavior(policy.prepare(begin.params, begin.fixed, begin.automaton.first_logits))
  samples = rows.sample(begin.automaton, policy, prepared, begin.key, setting)

  def gradient(text):
    method = methods.parse(text, setting.length)
    context = updates.Context(method, setting, policy, begin.automaton, begin.fixed)
    batch = updates.scored(context, samples, prepared, prepared.prepared, _no_critic(begin))
    learner = updates.learner(method, setting, begin.params)
    return updates.update(context, learner, batch, 1.0)[0].params - begin.params

  method_gradients = np.asarray(jax.jit(lambda: jnp.stack([gradient(text) for text in COMPARED]))())
  first = method_gradients[0]
  return float(np.abs(method_gradients - first).max() / np.linalg.norm(first))


def check_ring(setting: Setting) -> None:
  """Raises RuntimeError if the ring gives a wrong policy for an age, or may be too short."""
  size = setting.ring
  ages = jnp.asarray(sorted({0, size // 2, size - 1}))

  def iterate(ring, iteration):
    ring = ring.at[iteration % size].set(jnp.full(1, iteration, jnp.float32))
    return ring, jax.vmap(lambda age: runs.policy_of_age(ring, iteration, age)[0])(ages)

  count = 2 * size + 1
  _, reached = jax.lax.scan(iterate, jnp.zeros((size, 1)), jnp.arange(count))
  expected = np.maximum(np.arange(count)[:, None] - np.asarray(ages), 0)
  if not np.array_equal(reached, expected):
    raise RuntimeError(f"ring = {size}: a policy of age {np.asarray(ages)} is not the one that was "
                       "there so many iterations ago")
  try:
    setting.check_ages([size])
  except ConfigError:
    return
  raise RuntimeError(f"ring = {size}: an age of {size} is accepted, and the ring would wrap")


def _no_critic(begin: runs.Start):
  return jnp.zeros((8, begin.automaton.starts.shape[0]))
