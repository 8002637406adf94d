"""Random walks whose value is known: digits that are to add up to a target, modulo 10.

A prompt has the target and the first digits of the walk. The response continues with further
digits, then has `=` and the sum of all digits modulo 10. It is right if that sum is the target. The
sampler takes each digit with a fixed probability for its place, and states a wrong sum now and
then, so the value of every prefix follows from a recursion. Own derivation.

The sampler is a `Model` without attention: its "hidden state" is the pair (place, sum), of which
the head reads off log-probabilities. So the engine samples it as it samples a network.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.config import ModelConfig
from jaxrl_llm.models import kv_cache

EQUALS, BEGIN, END, PAD = 10, 11, 12, 13
VOCABULARY = 14
GIVEN = 5  # digits of the walk that are in the prompt
PROMPT = 2 + GIVEN  # BEGIN, target, the given digits


@dataclasses.dataclass(frozen=True)
class Walk:
  """A sampler.

  Attributes:
    steps: digits of the response.
    small: standard deviation of a place's logits around the logits of `bias`, sampled once from
      `seed`.
    bias: how much the logit falls with each larger digit.
    slip: probability of stating a wrong sum.
    seed: seed of the logits.
  """

  steps: int = 6
  small: float = 0.3
  bias: float = 1.0
  slip: float = 0.1
  seed: int = 0

  @property
  def response(self) -> int:
    """Tokens of a response: digits, =, the sum, END."""
    return self.steps + 3


def step_probabilities(case: Walk) -> np.ndarray:
  """Returns the probability of each digit at each place of the response, [steps, 10] float64."""
  rng = np.random.default_rng([case.seed, case.steps])
  logits = -case.bias * np.arange(10) + case.small * rng.normal(size=(case.steps, 10))
  probs = np.exp(logits - logits.max(1, keepdims=True))
  return probs / probs.sum(1, keepdims=True)


def missing_values(case: Walk) -> np.ndarray:
  """Returns the value after n digits of the response, by what is missing to the target modulo 10.

  [steps + 1, 10] float64; the last row is for a finished walk, before the sum is stated.
  """
  values = np.full((case.steps + 1, 10), case.slip / 9)
  values[-1, 0] = 1 - case.slip
  for n in range(case.steps - 1, -1, -1):
    for digit, probability in enumerate(step_probabilities(case)[n]):
      share = probability * np.roll(values[n + 1], digit)
      values[n] = share if digit == 0 else values[n] + share
  return values


def exact_values(case: Walk, tokens: np.ndarray) -> np.ndarray:
  """Returns the value after each token of full rows [B, PROMPT + response], float64.

  Columns before the prompt's last token are NaN.
  """
  tokens = np.asarray(tokens)
  values = np.full(tokens.shape, np.nan)
  digits = tokens[:, 2:PROMPT + case.steps]
  missing = (tokens[:, 1:2] - np.cumsum(digits, 1)) % 10
  table = missing_values(case)
  for n in range(case.steps + 1):
    values[:, PROMPT - 1 + n] = table[n, missing[:, GIVEN - 1 + n]]
  values[:, PROMPT + case.steps] = values[:, PROMPT + case.steps - 1]
  values[:, PROMPT + case.steps + 1:] = rewards(case, tokens)[:, None]
  return values


def exact_score(case: Walk, rows: list[list[int]]) -> np.ndarray:
  """Returns the value after the last token of each row, which may be unfinished, [R] float64."""
  tokens = np.zeros((len(rows), PROMPT + case.response), np.int64)
  for index, row in enumerate(rows):
    tokens[index, :len(row)] = row
  return exact_values(case, tokens)[np.arange(len(rows)), [len(row) - 1 for row in rows]]


def rewards(case: Walk, tokens: np.ndarray) -> np.ndarray:
  """Returns whether the stated sum is the target, [B] float64."""
  return (tokens[:, PROMPT + case.steps + 1] == tokens[:, 1]).astype(float)


def prompts(held_out: bool) -> np.ndarray:
  """Returns all prompts of one half, [P, PROMPT] int32; the other half has different prompts.

  Given digits are 0 to 2, and the target is 0 to 4 above their sum, up to 9: likely sums do not
  exceed 9, so that a small network need not learn to count modulo 10 before it learns anything.
  """
  grid = np.indices((*[3] * GIVEN, 5)).reshape(GIVEN + 1, -1).T
  digits, target = grid[:, :GIVEN], grid.sum(1)
  possible = target <= 9
  order = np.random.default_rng(0).permutation(possible.sum())
  mine = np.flatnonzero(possible)[order[held_out::2]]
  begin = np.full(len(mine), BEGIN)
  return np.column_stack([begin, target[mine], digits[mine]]).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class WalkSampler:
  """The sampler, for `rollouts.generate`: state and head as the module says."""

  case: Walk = Walk()

  @property
  def config(self) -> ModelConfig:
    """The network config of a cache with one number per token."""
    return ModelConfig(vocab_size=VOCABULARY, width=2, num_layers=1, num_heads=1, num_kv_heads=1,
                       head_dim=2, mlp_width=2)

  def init(self) -> jax.Array:
    """Returns the parameters: log-probabilities [places * 10, V] of the next token, f32."""
    case = self.case
    table = np.zeros((PROMPT + case.response, 10, VOCABULARY))
    table[PROMPT - 1:PROMPT - 1 + case.steps, :, :10] = step_probabilities(case)[:, None]
    table[PROMPT - 1 + case.steps, :, EQUALS] = 1
    table[PROMPT + case.steps, :, :10] = case.slip / 9
    table[PROMPT + case.steps, np.arange(10), np.arange(10)] = 1 - case.slip
    table[PROMPT + case.steps + 1, :, END] = 1
    return jnp.log(jnp.asarray(table, jnp.float32) + 1e-30).reshape(-1, VOCABULARY)

  def head(self, params):
    return params

  def hidden(self, params, inputs, positions, segments, *, cache):
    """As `Model.hidden`: one-hot (position, sum so far), the digits kept in the cache."""
    in_walk = (positions >= 2) & (positions < PROMPT + self.case.steps)
    digit = jnp.where(in_walk, inputs, 0).astype(jnp.float32)
    new = jnp.stack([digit, jnp.zeros_like(digit)], 1)[:, None]
    index, cache = cache.index, kv_cache.record(cache, positions, segments)
    keys, values = kv_cache.write(cache.keys[0], cache.values[0], new, jnp.swapaxes(new, 2, 3),
                                  index)
    visible = (cache.positions[:, None] <= positions[..., None]) & (cache.segments > 0)[:, None]
    total = jnp.sum(jnp.where(visible, keys[:, 0, :1], 0), -1).astype(jnp.int32)
    state = positions * 10 + total % 10
    hidden = jax.nn.one_hot(state, (PROMPT + self.case.response) * 10)
    return hidden, cache.replace(keys=(keys,), values=(values,))
