"""A policy that is a table, three logits an outlet, trained by any of the package's objectives.

A verdict is sampled letter by letter; its reward is the day's cell of the table of verdicts. Ratio,
baseline and weighting are the package's, named as in the arena: `grpo`, `cispo`,
`gspo?clip_low=3e-4`.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float, Int

from experiments.papers.portfolio import simulation, verdicts
from experiments.tables_lib.arena import methods
from experiments.tables_lib.arena.method import Method
from jaxrl_llm.objective import advantages, aggregation, estimators
from jaxrl_llm.types import AdvantageInputs

PROMPTS, GROUP, UPDATES = 32, 8, 4  # days of an iteration, verdicts of a day, steps on them
LETTERS = len(verdicts.LETTERS)


@dataclasses.dataclass(frozen=True)
class Days:
  """Days of a table as arrays: outlets [T, A] and rewards [T, 3^A], in percent."""

  outlets: np.ndarray
  rewards: np.ndarray

  @classmethod
  def of(cls, days: list[verdicts.Day]) -> "Days":
    """Returns the arrays of days whose prompts end in the outlets' letters."""
    outlets = [[simulation.OUTLETS.index(letter) for letter in day.prompt[-day.assets:]]
               for day in days]
    return cls(np.array(outlets), 100 * np.array([day.rewards for day in days], np.float32))


def columns(letters: Int[Array, "... A"]) -> Int[Array, "..."]:
  """Returns the table's columns of verdicts as indices into LETTERS."""
  places = LETTERS**jnp.arange(letters.shape[-1])[::-1]
  return (letters * places).sum(-1)


def letter_log_probs(logits: Float[Array, "O 3"], outlets: Int[Array, "B A"],
                     letters: Int[Array, "B A"]) -> Float[Array, "B A"]:
  log_probs = jax.nn.log_softmax(logits)[outlets]
  return jnp.take_along_axis(log_probs, letters[..., None], -1)[..., 0]


def surrogate(logits, batch: dict, method: Method) -> Float[Array, ""]:
  """Returns the method's loss on rows: outlets, letters, anchor log-probs, advantages, weights."""
  log_probs = letter_log_probs(logits, batch["outlets"], batch["letters"])
  mask = jnp.ones(log_probs.shape, bool)
  output = estimators.get_estimator(method.estimator.name)(
      log_probs, batch["anchor"], batch["advantages"], mask, method.estimator)
  return jnp.sum(batch["weights"] * output.per_token_loss)


def iteration(state, key, outlets, rewards, method: Method, tx):
  """Samples PROMPTS days and GROUP verdicts of each, and makes UPDATES steps on all of them.

  Returns:
    ((logits, optimizer state), mean reward). The key is consumed.
  """
  logits, _ = state
  of_days, of_letters = jax.random.split(key)
  rows = jnp.repeat(jax.random.randint(of_days, (PROMPTS,), 0, outlets.shape[0]), GROUP)
  letters = jax.random.categorical(of_letters, logits[outlets[rows]])
  gains = rewards[rows, columns(letters)]
  mask, groups = jnp.ones(letters.shape, bool), jnp.arange(PROMPTS * GROUP) // GROUP
  anchor = lax.stop_gradient(letter_log_probs(logits, outlets[rows], letters))
  inputs = AdvantageInputs(rewards=gains, mask=mask, tokens=letters, group_id=groups)
  advantage = advantages.get_advantage(method.advantage.name)(inputs, method.advantage)
  batch = {"outlets": outlets[rows], "letters": letters, "anchor": anchor, "advantages": advantage,
           "weights": aggregation.loss_weights(mask, advantage, groups, method.aggregation)}

  def step(state, _):
    logits, optimizer = state
    updates, optimizer = tx.update(jax.grad(surrogate)(logits, batch, method), optimizer)
    return (optax.apply_updates(logits, updates), optimizer), None

  return lax.scan(step, state, None, UPDATES)[0], gains.mean()


@functools.partial(jax.jit, static_argnames=("method", "iterations", "rate"))
def _trained(key, outlets, rewards, method, iterations: int, rate: float):
  tx = optax.adam(rate)
  logits = jnp.zeros((len(simulation.OUTLETS), LETTERS))
  (logits, _), gains = lax.scan(
      lambda state, key: iteration(state, key, outlets, rewards, method, tx),
      (logits, tx.init(logits)), jax.random.split(key, iterations))
  return logits, gains


def train(days: Days, text: str, seed: int, iterations: int = 200,
          rate: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
  """Returns the logits [outlets, 3] that a method learns from even ones, and its rewards by
  iteration.

  Args:
    text: a method of the arena that reads log-probs, advantages and mask alone.

  Raises:
    ConfigError: a text that names no method.
  """
  method = methods.parse(text, days.outlets.shape[1])
  logits, gains = _trained(jax.random.key(seed), days.outlets, days.rewards, method, iterations,
                           rate)
  return np.asarray(logits), np.asarray(gains)


def greedy(logits: np.ndarray, days: Days) -> list[str]:
  """Returns the likeliest verdict of each day."""
  return ["".join(verdicts.LETTERS[letter] for letter in row)
          for row in logits[days.outlets].argmax(-1)]
