"""A policy of planted rows that is trained through a low-rank adapter, for credit that looks at it.

The hidden state of position t is (W + B A / sqrt(r)) x_t with a fixed random feature x_t, and the
logits are U times it. W is such that without the adapter this is `planted.policy`. Positions have
features in common, as tokens of a language model have, so an adapter that learns one position moves
the others, too. Own derivation.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from experiments.papers.arca import residual
from experiments.tables_lib.planted import GOOD, Planted, Scored, policy
from jaxrl_llm.config import AdvantageConfig
from jaxrl_llm.objective.advantages import get_advantage
from jaxrl_llm.types import AdvantageInputs


@dataclasses.dataclass(frozen=True)
class AdapterTraining:
  """Training of the adapter: Adam on the advantage of `grpo`, one update per batch.

  Attributes:
    rank: r.
    updates: of the adapter; 0 leaves it at its start, where it changes nothing.
    width: D, of features and hidden states; at least the tokens of a row and the vocabulary.
    groups, group_size: size of a batch.
    learning_rate: of Adam.
  """

  rank: int
  updates: int
  width: int = 16
  groups: int = 16
  group_size: int = 16
  learning_rate: float = 0.01


def train(case: Planted, cfg: AdapterTraining, seed: int) -> Scored:
  """Returns the trained policy, the one without its adapter, and the residual of each position.

  Raises:
    ValueError: rows of the case can be repaired, or the width is too small.
  """
  if case.repair:
    raise ValueError(f"repair = {case.repair}: the adapter is trained on rows without repair. "
                     "Fix: repair=0.")
  min_width = max(case.length, case.vocabulary)
  if cfg.width < min_width:
    raise ValueError(f"width = {cfg.width}: features and logits need {min_width} or more.")
  rng = np.random.default_rng([seed, case.seed, 2])
  features = rng.normal(size=(case.length, cfg.width)) / np.sqrt(cfg.width)
  head = rng.normal(size=(cfg.width, case.vocabulary - 1)) / np.sqrt(cfg.width)
  # The last token, REPAIR, has probability 0 and no logit.
  states = np.log(policy(case)[:, :-1]) @ np.linalg.pinv(head)
  fixed = {"features": features, "states": states, "head": head}
  fixed = {name: jnp.asarray(x, jnp.float32) for name, x in fixed.items()}
  adapter = _trained_adapter(fixed, jax.random.key(seed), case=case, cfg=cfg)
  change = np.asarray(_change(adapter, fixed["features"], cfg.rank), np.float64)
  return Scored(_probs(states + change, head), policy(case),
                {residual.COLUMN: np.linalg.norm(change, axis=-1)})


def _probs(states: np.ndarray, head: np.ndarray) -> np.ndarray:
  logits = states @ head
  probs = np.exp(logits - logits.max(1, keepdims=True))
  probs = np.concatenate([probs, np.zeros((len(probs), 1))], 1)
  return probs / probs.sum(1, keepdims=True)


def _change(adapter: dict, features: Float[Array, "T D"], rank: int) -> Float[Array, "T D"]:
  """Returns the adapter's addition to the hidden states."""
  return features @ adapter["a"] @ adapter["b"] / rank**0.5


@functools.partial(jax.jit, static_argnames=("case", "cfg"))
def _trained_adapter(fixed: dict, key, *, case: Planted, cfg: AdapterTraining) -> dict:
  init_key, train_key = jax.random.split(key)
  adapter = {"a": jax.random.normal(init_key, (cfg.width, cfg.rank)),
             "b": jnp.zeros((cfg.rank, cfg.width))}
  optimizer = optax.adam(cfg.learning_rate)

  def update(carry, key):
    adapter, state = carry
    gradient = jax.grad(_loss)(adapter, fixed, key, case, cfg)
    changes, state = optimizer.update(gradient, state, adapter)
    return (optax.apply_updates(adapter, changes), state), None

  return jax.lax.scan(update, (adapter, optimizer.init(adapter)),
                      jax.random.split(train_key, cfg.updates))[0][0]


def _loss(adapter: dict, fixed: dict, key, case: Planted, cfg: AdapterTraining) -> Array:
  """Returns -mean of A log pi over the tokens of freshly sampled groups."""
  states = fixed["states"] + _change(adapter, fixed["features"], cfg.rank)
  log_probs = jax.nn.log_softmax(states @ fixed["head"])
  rows = cfg.groups * cfg.group_size
  tokens = jax.random.categorical(key, jax.lax.stop_gradient(log_probs), shape=(rows, case.length))
  inputs = AdvantageInputs(
      rewards=(tokens[:, case.position] == GOOD).astype(jnp.float32),
      mask=jnp.ones(tokens.shape, bool), tokens=tokens,
      group_id=jnp.repeat(jnp.arange(cfg.groups), cfg.group_size))
  advantages = get_advantage("grpo")(inputs, AdvantageConfig("grpo"))
  return -jnp.mean(advantages * log_probs[jnp.arange(case.length), tokens])
