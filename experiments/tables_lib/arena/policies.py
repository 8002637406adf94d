"""Small policies over the states of an automaton, each a flat vector of parameters.

At the start all of them are `Automaton.first_logits`. A policy is `prepared` once from its
parameters; from that, it gives the cumulative distribution of the next token (to sample), the
log-probs of tokens (to train), and full distributions (for statistics).
"""

import dataclasses
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from experiments.tables_lib.arena.automata import entries
from jaxrl_llm.config import ConfigError
from jaxrl_llm.fields import did_you_mean


class Policy(Protocol):
  """The interface of a policy in the arena. S states, V tokens, B rows, L positions."""

  memoryless: bool  # the return is exact, and rows of several policies are possible

  def init(self, key, states: int, vocabulary: int) -> tuple[Float[Array, " n"], Any]:
    """Returns trained parameters and fixed arrays; the key is consumed."""

  def prepare(self, params, constants, first_logits: Float[Array, "S V"]) -> Any:
    """Returns what the other functions take; `first_logits` may carry an engine's noise."""

  def start(self, rows: int) -> Any:
    """Returns the memory of rows without tokens."""

  def step(self, policy, state: Int[Array, " B"], memory) -> tuple[Float[Array, "B V"], Any]:
    """Returns the cumulative distribution of the next token, and the memory after the state."""

  def log_probs(self, policy, states: Int[Array, "B L"],
                tokens: Int[Array, "B L"]) -> Float[Array, "B L"]:
    """Returns the log-probs of tokens, differentiable."""

  def distributions(self, policy, states: Int[Array, "B L"]) -> Float[Array, "B L V"]:
    """Returns the log-probs of all tokens."""


class Table(NamedTuple):
  """A memoryless policy: log-probs and cumulative probabilities, [S, V]."""

  log_probs: Float[Array, "S V"]
  cumulative: Float[Array, "S V"]


def table_of(logits: Float[Array, "S V"]) -> Table:
  log_probs = jax.nn.log_softmax(logits)
  return Table(log_probs, jnp.cumsum(jnp.exp(log_probs), -1))


class _Memoryless:
  """The distribution depends on the state only."""

  memoryless = True

  def start(self, rows: int):
    del rows
    return ()

  def step(self, policy: Table, state, memory):
    return entries(policy.cumulative, state), memory

  def log_probs(self, policy: Table, states, tokens):
    vocabulary = policy.log_probs.shape[1]
    return entries(policy.log_probs.reshape(-1), states * vocabulary + tokens)

  def distributions(self, policy: Table, states):
    return entries(policy.log_probs, states)


@dataclasses.dataclass(frozen=True)
class Tabular(_Memoryless):
  """Free logits in every state: what is learnt in one state changes no other."""

  def init(self, key, states: int, vocabulary: int):
    del key
    return jnp.zeros(states * vocabulary), ()

  def prepare(self, params, constants, first_logits):
    return table_of(first_logits + params.reshape(first_logits.shape))


@dataclasses.dataclass(frozen=True)
class Bilinear(_Memoryless):
  """logits = first + features W: full rank, singular values i^-3/4, so that all states share
  features and every distribution stays within reach.
  """

  def init(self, key, states: int, vocabulary: int):
    left_basis, right_basis = (jnp.linalg.qr(jax.random.normal(k, (states, states)))[0]
                               for k in jax.random.split(key))
    features = left_basis * jnp.arange(1, states + 1.0) ** -0.75 @ right_basis
    return jnp.zeros(states * vocabulary), features / jnp.sqrt((features ** 2).sum(-1).mean())

  def prepare(self, params, constants, first_logits):
    return table_of(first_logits + constants @ params.reshape(first_logits.shape))


class Cells(NamedTuple):
  """A GRU with its fixed embedding of states and the first logits."""

  kernel: Float[Array, "D3 H3"]
  bias: Float[Array, " H3"]
  output: Float[Array, "H V"]
  embedding: Float[Array, "S D"]
  first_logits: Float[Array, "S V"]


@dataclasses.dataclass(frozen=True)
class Gru:
  """A gated recurrent unit over random embeddings of the visited states: a policy that remembers.

  The logits are the first ones of the state plus a linear map of the memory, 0 at the start.
  """

  width: int = 8
  memoryless = False

  def init(self, key, states: int, vocabulary: int):
    first, second = jax.random.split(key)
    size = (2 * self.width, 3 * self.width)
    kernel = jax.random.normal(first, (size[0] * size[1],)) / 4
    params = jnp.concatenate([kernel, jnp.zeros(size[1] + self.width * vocabulary)])
    return params, jax.random.normal(second, (states, self.width))

  def prepare(self, params, constants, first_logits) -> Cells:
    rows, columns = 2 * self.width, 3 * self.width
    kernel, bias, output = jnp.split(params, (rows * columns, (rows + 1) * columns))
    return Cells(kernel.reshape(rows, columns), bias, output.reshape(self.width, -1), constants,
                 first_logits)

  def start(self, rows: int):
    return jnp.zeros((rows, self.width))

  def step(self, policy: Cells, state, memory):
    memory, logits = self._cell(policy, memory, state)
    return jnp.cumsum(jax.nn.softmax(logits), -1), memory

  def log_probs(self, policy: Cells, states, tokens):
    log_probs_of_all = self.distributions(policy, states)
    return jnp.take_along_axis(log_probs_of_all, tokens[..., None], -1)[..., 0]

  def distributions(self, policy: Cells, states):
    def step(memory, state):
      return self._cell(policy, memory, state)

    _, logits = lax.scan(step, self.start(states.shape[0]), states.T)
    return jax.nn.log_softmax(jnp.swapaxes(logits, 0, 1))

  def _cell(self, policy: Cells, memory, state):
    """Returns the memory after a state [B], and the logits [B, V] there."""
    x, split = entries(policy.embedding, state), 2 * self.width
    gates = jnp.concatenate([x, memory], -1) @ policy.kernel[:, :split] + policy.bias[:split]
    reset, update = jnp.split(jax.nn.sigmoid(gates), 2, -1)
    inner = jnp.concatenate([x, reset * memory], -1) @ policy.kernel[:, split:]
    fresh = jnp.tanh(inner + policy.bias[split:])
    memory = (1 - update) * memory + update * fresh
    return memory, entries(policy.first_logits, state) + memory @ policy.output


POLICIES: dict[str, Policy] = {"tabular": Tabular(), "bilinear": Bilinear(), "gru": Gru()}


def get_policy(name: str) -> Policy:
  """Returns the policy of a name; raises ConfigError with all names if there is none."""
  if name not in POLICIES:
    raise ConfigError(f"policy = {name!r}: allowed are {', '.join(POLICIES)}."
                      f"{did_you_mean(name, POLICIES)}")
  return POLICIES[name]
