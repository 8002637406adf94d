"""Measures where a policy decides: does its accuracy hang on one token, or on many?

A task is a *switch* if one token, forced or forbidden in the sampler, makes most completions right:
RL then has one thing to learn, and accuracy says how likely that token is. Measured are

  forced     accuracy of the start's samples with one token id at one place, and with it everywhere
  forbidden  accuracy with one token id nowhere
  mistakes   of the start's samples by eighth, and by kind with how often each is made later
  gain       mistakes that RL takes away from a completion, by eighth

Mistakes, in mistakes.py, are steps that do not follow from the steps before them. Own derivation.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int

from experiments.tables_lib.mistakes import Mistake
from jaxrl_llm.models import Model, kv_cache
from jaxrl_llm.rollouts.next_token import row_keys, sample_token
from jaxrl_llm.rollouts.sampler import prefill
from jaxrl_llm.runs.rollout_batch import prompt_batch
from jaxrl_llm.types import Params, Problem, PromptBatch, Sampling, Task

EIGHTHS = 8
FREE = -1  # a place at which the policy chooses
REPEATS = 8  # samples a problem where a token is forced everywhere, or forbidden: few cells, whose
# largest would be above one half by chance


class Rules(NamedTuple):
  """The sampler's rules that do not depend on the policy.

  Attributes:
    steps: tokens of a completion at most, T.
    minimum: tokens of a completion before which no stop token may come.
    stops: token ids that end a completion.
    pad: id after the end.
  """

  steps: int
  minimum: int
  stops: tuple[int, ...]
  pad: int


class Case(NamedTuple):
  """A task, its network and the rules of its sampler."""

  task: Task
  model: Model
  rules: Rules
  width: int  # tokens of a prompt at most


class Interventions(NamedTuple):
  """Interventions on sampled completions.

  Attributes:
    forced: [B, T] int32, the token forced at each place, or FREE.
    forbidden: [B, V] bool, tokens that the policy may write nowhere; forced ones are kept all the
      same.
  """

  forced: Int[Array, "B T"]
  forbidden: Bool[Array, "B V"]


@functools.partial(jax.jit, static_argnames=("model", "rules"))
def sample(params: Params, prompts: PromptBatch, key: Array, interventions: Interventions, *,
           model: Model, rules: Rules) -> Int[Array, "B T"]:
  """Samples completions [B, T] at temperature 1, a prompt a row.

  Args:
    key: consumed.
  """
  forced, forbidden = interventions
  keys, head = row_keys(key, prompts.row_id), model.head(params)
  hidden, cache = prefill(params, prompts, model, 1)
  cache = kv_cache.grow(cache, prompts.tokens.shape[1] + rules.steps)
  stops = jnp.isin(jnp.arange(head.shape[1]), jnp.asarray(rules.stops))

  def step(carry, place):
    cache, hidden, stopped = carry
    banned = forbidden | (stops & (place < rules.minimum))
    position = prompts.prompt_length + place
    token, _ = sample_token(hidden, head, (keys, position), Sampling.of(1.0), banned,
                            rules=frozenset())
    forced_token = forced[:, place]
    token = jnp.where(stopped, rules.pad, jnp.where(forced_token == FREE, token, forced_token))
    hidden, cache = model.hidden(params, token[:, None], position[:, None],
                                 jnp.ones_like(token)[:, None], cache=cache)
    return (cache, hidden[:, 0], stopped | stops[token]), token

  begin = (cache, hidden, jnp.zeros(len(prompts.row_id), bool))
  return lax.scan(step, begin, jnp.arange(rules.steps))[1].T


def texts(case: Case, tokens: np.ndarray) -> list[str]:
  """Returns completions [B, T] as text, without the end."""
  tokenizer = case.task.tokenizer
  return [tokenizer.decode(row, skip_special_tokens=True).replace(" ", "") for row in tokens]


def correct(case: Case, problems: Sequence[Problem], tokens: np.ndarray) -> np.ndarray:
  """Returns which completions [B, T] ended by themselves and are right, [B] bool."""
  stopped = np.isin(tokens, case.rules.stops).any(1)
  verdicts = [reward.correct for reward in case.task.rewards(list(problems), texts(case, tokens))]
  return np.array(verdicts, bool) & stopped


def interventions(case: Case, params: Params, problems: Sequence[Problem],
                  key: Array) -> dict[str, np.ndarray]:
  """Returns accuracies of the policy in `params`: `free` [], `forced` [T, V] with token v at place
  t, `everywhere` [V] with token v at all places where it is allowed, `forbidden` [V].

  Every token id is tried on all problems; an accuracy is of one sample a problem in `forced`, else
  of REPEATS.
  """
  vocabulary, steps = case.model.config.vocab_size, case.rules.steps
  repeated = list(problems) * vocabulary
  prompts = prompt_batch(case.task, repeated, case.width)
  token = np.repeat(np.arange(vocabulary), len(problems)).astype(np.int32)
  nothing = np.full((len(repeated), steps), FREE, np.int32)
  allowed = np.zeros((len(repeated), vocabulary), bool)

  def accuracy(forced, forbidden, draw: int) -> np.ndarray:
    tokens = np.asarray(sample(params, prompts, jax.random.fold_in(key, draw),
                               Interventions(forced, forbidden), model=case.model,
                               rules=case.rules))
    return correct(case, repeated, tokens).reshape(vocabulary, -1).mean(1)

  forced = []
  for place in range(steps):
    at_place = nothing.copy()
    at_place[:, place] = token
    forced.append(accuracy(at_place, allowed, place))

  def repeated_accuracy(forced, forbidden, draw: int) -> np.ndarray:
    return np.mean([accuracy(forced, forbidden, steps + draw * REPEATS + i)
                    for i in range(REPEATS)], 0)

  everywhere = np.repeat(token[:, None], steps, 1)
  return {"free": repeated_accuracy(nothing, allowed, 0).mean(), "forced": np.stack(forced),
          "everywhere": repeated_accuracy(everywhere, allowed, 1),
          "forbidden": repeated_accuracy(nothing, np.eye(vocabulary, dtype=bool)[token], 2)}


def eighth(place: np.ndarray | int, length: int) -> np.ndarray:
  """Returns the eighth, from 0, of a completion of `length` tokens that contains a place."""
  return np.minimum(np.asarray(place) * EIGHTHS // max(length, 1), EIGHTHS - 1)


def by_eighth(mistakes: Sequence[tuple[Sequence[Mistake], int]]) -> np.ndarray:
  """Returns a completion's mean mistakes in each eighth, [8], from (mistakes, length) of each."""
  counts = np.zeros(EIGHTHS)
  for entries, length in mistakes:
    for mistake in entries:
      counts[eighth(mistake.place, length)] += 1
  return counts / len(mistakes)


def by_kind(mistakes: Sequence[Sequence[Mistake]]) -> dict[str, float]:
  """Returns how many mistakes of each kind a completion has on average, by name."""
  counts: dict[str, int] = {}
  for mistake in (mistake for entries in mistakes for mistake in entries):
    counts[mistake.kind] = counts.get(mistake.kind, 0) + 1
  return {kind: count / len(mistakes) for kind, count in sorted(counts.items())}


def is_switch(measured: Mapping[str, np.ndarray], limit: float = 0.5) -> bool:
  """Returns whether one token, forced at one place or everywhere, or forbidden, makes more than
  `limit` of the completions right.
  """
  return any(np.max(measured[name]) >= limit for name in ("forced", "everywhere", "forbidden"))
