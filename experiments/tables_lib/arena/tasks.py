"""The arena's own tasks: 32 states, 4 tokens. Their difficulty hardly depends on the length."""

import jax
import jax.numpy as jnp

from experiments.tables_lib.arena.automata import Automaton, task, visits

STATES, VOCABULARY = 32, 4
FIRST_RETURN = 0.15  # of `verdict` and `warm`, about
RARE_RETURN = 0.01  # of `sparse`, about
FATAL = 0.9999  # hazard of a fatal token of `warm`
LEVELS = 4  # of `ending`


@task("verdict")
def verdict(key, length: int) -> Automaton:
  """0 or 1 at the end: a row is right if no token was fatal; hazards are of the order 1 / length.

  A cold start: the first policy is as likely to do wrong in every state.
  """
  keys = jax.random.split(key, 5)
  first_logits = jax.random.normal(keys[0], (STATES, VOCABULARY))
  following = jax.random.randint(keys[1], (STATES, VOCABULARY), 0, STATES)
  right = jax.random.randint(keys[2], (STATES, 1), 0, VOCABULARY)
  decisive = jax.random.uniform(keys[3], (STATES, 1)) < 0.5
  risk = jax.random.uniform(keys[4], (STATES, VOCABULARY), minval=0.3)
  risk = jnp.where(decisive & (jnp.arange(VOCABULARY) != right), risk, 0.0)
  probs = jax.nn.softmax(first_logits)
  share = (visits(following, probs)[:, None] * probs * risk).sum()
  scale = -jnp.log(FIRST_RETURN) / (length * jnp.maximum(share, 1e-3))
  return Automaton(following, jnp.minimum(scale * risk, 0.95), None, None, _anywhere(),
                   first_logits)


@task("warm")
def warm(key, length: int) -> Automaton:
  """As after pretraining: in half of the states one token is fatal, and already rare, 1 / length.

  The first policy is right in about 15 % of its rows.
  """
  keys = jax.random.split(key, 5)
  logits = jax.random.normal(keys[0], (STATES, VOCABULARY))
  following = jax.random.randint(keys[1], (STATES, VOCABULARY), 0, STATES)
  decisive = jax.random.uniform(keys[2], (STATES, 1)) < 0.5
  fatal_token = jax.random.randint(keys[3], (STATES, 1), 0, VOCABULARY)
  fatal = decisive & (jnp.arange(VOCABULARY) == fatal_token)
  weight = jax.random.uniform(keys[4], (STATES, 1), minval=0.3)
  other_mass = jax.nn.logsumexp(jnp.where(fatal, -jnp.inf, logits), -1, keepdims=True)
  share = visits(following, jax.nn.softmax(jnp.where(fatal, -30.0, logits)))[:, None]
  total = jnp.maximum((share * weight * decisive).sum(), 0.05)
  chance = jnp.minimum(-jnp.log(FIRST_RETURN) / length * weight / total, 0.5)
  first_logits = jnp.where(fatal, jnp.log(chance / (1 - chance)) + other_mass, logits)
  return Automaton(following, jnp.where(fatal, FATAL, 0.0), None, None, _anywhere(), first_logits)


@task("sparse")
def sparse(key, length: int) -> Automaton:
  """0 or 1 at the end, and almost never 1: in every state one of the tokens is right, and the
  others are fatal, all alike. The first policy is right in about 1 % of its rows, so that most
  groups have equal rewards.
  """
  keys = jax.random.split(key, 3)
  logits = jax.random.normal(keys[0], (STATES, VOCABULARY))
  following = jax.random.randint(keys[1], (STATES, VOCABULARY), 0, STATES)
  right = jax.random.randint(keys[2], (STATES, 1), 0, VOCABULARY) == jnp.arange(VOCABULARY)
  wrong = jnp.where(right, 0.0, jax.nn.softmax(logits)).sum(-1)
  risk = (1 - RARE_RETURN ** (1 / length)) / wrong.mean()
  return Automaton(following, jnp.where(right, 0.0, jnp.minimum(risk, 0.95)), None, None,
                   _anywhere(), logits)


@task("ending")
def ending(key, length: int) -> Automaton:
  """Lengths differ with correctness: the last token ends the row, which pays at the top level only.

  The state is one of 4 levels of progress and a local state. In each local state one token
  progresses with the chance 12 / length; the others are fatal with a chance of the order
  1 / length. Ending is right with the chance .02, .1, .3 or 1 by level; a truncated row is wrong.
  """
  keys = jax.random.split(key, 4)
  width, moves = STATES // LEVELS, VOCABULARY - 1
  local, level = jnp.arange(STATES) % width, jnp.arange(STATES)[:, None] // width
  step = jax.random.randint(keys[0], (width, moves), 0, width)[local]
  right = jax.random.randint(keys[1], (width, 1), 0, moves)[local] == jnp.arange(moves)
  risk = jax.random.uniform(keys[2], (width, moves), minval=0.3)[local]
  risk = jnp.where(right, 0.0, jnp.minimum(2 * risk / length, 0.9))
  progress = jnp.where(right, jnp.minimum(12.0 / length, 0.9), 0.0)
  logits = jax.random.normal(keys[3], (STATES, VOCABULARY))
  other_mass = jax.nn.logsumexp(logits[:, :-1], -1)
  first_logits = logits.at[:, -1].set(jnp.log(2.0 / length) + other_mass + 0.3 * logits[:, -1])
  win = jnp.array([0.02, 0.1, 0.3, 1.0])[level[:, 0]]
  return Automaton(
      next=_with_end(level * width + step, 0), hazard=_with_end(risk, 0.0),
      end=jnp.broadcast_to(jnp.arange(VOCABULARY) == moves, logits.shape), win=win,
      starts=(level[:, 0] == 0) / width, first_logits=first_logits,
      branch=_with_end(jnp.minimum(level + 1, LEVELS - 1) * width + step, 0),
      branch_chance=_with_end(progress, 0.0))


@task("dense")
def dense(key, length: int) -> Automaton:
  """The row's reward is the mean over its tokens of a reward of the states that they lead to."""
  del length
  keys = jax.random.split(key, 3)
  shape = (STATES, VOCABULARY)
  return Automaton(jax.random.randint(keys[1], shape, 0, STATES), jnp.zeros(shape), None, None,
                   _anywhere(), jax.random.normal(keys[0], shape),
                   state_rewards=jax.random.uniform(keys[2], (STATES,)))


def _anywhere():
  return jnp.full((STATES,), 1 / STATES)


def _with_end(columns, value):
  """Returns [S, V] with the value in the column of the token that ends a row."""
  return jnp.pad(columns, ((0, 0), (0, 1)), constant_values=value)
