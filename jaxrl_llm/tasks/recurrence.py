"""A recurrence of digits in which every token of a completion is a step that can go wrong.

  prompt      3 7 1 9            the first `task.lag` values
  completion  2 9 0 9 1 0 ...    y_t = y_(t-1) + y_(t-lag) mod 10, `task.steps` values, and the end

Rule and prompt do not grow with the length, and both operands are at a fixed, short distance. Only
a completion whose values are all right is rewarded. Demonstrations have mistakes, and continue from
the wrong value; the warm start imitates them, and RL has to unlearn them one by one:

  mistakes   of several kinds. Kind k has `mistake_contexts[k]` contexts, in which a certain wrong
             value takes the place of the right one at `mistake_rates[k]`. A context is what the
             last value and the one `lag` steps back are; with `task.context=3`, the value before
             the last, too.
  slips      any wrong value, at `task.slips` in every other context
  misread    with `task.careless`, every value has two notations, digit and letter, and both are
             right. One of them, which depends on the value, is careless and is written at that
             rate. In `task.misread` contexts, a careless operand `lag` steps back is read as
             another value. So every token has several right values, some of which cost later.

So mistakes are many in kind and place, but few in a completion: if all steps together are right
with probability .2, the right tokens of a completion have log 5 = 1.6 nats to gain. Own design.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from jaxrl_llm.fields import ConfigError
from jaxrl_llm.tasks import tokenizer as tokenizers
from jaxrl_llm.tasks.procedural import Procedural
from jaxrl_llm.types import Problem, Reward

DIGITS, LETTERS = "0123456789", "abcdefghij"
CARELESS = "0bc34f67ij"  # by value, the notation that may be misread
VALUES = {text: value for notation in (DIGITS, LETTERS) for value, text in enumerate(notation)}
CONTEXTS_SEED = 7  # which contexts go wrong is the same for every run
MISREAD, SLIP = "misread", "slip"


class Context(NamedTuple):
  """A planted mistake of the demonstrations in one context: its kind, its rate, the value added."""

  kind: str
  rate: float
  added: int


def planted(cfg) -> dict[tuple[int, ...], Context]:
  """Returns the contexts in which demonstrations go wrong, by (last, oldest[, before the last]).

  Raises:
    ConfigError: kinds without a rate, or more contexts than there are.
  """
  if len(cfg.mistake_contexts) != len(cfg.mistake_rates):
    raise ConfigError(
        f"task.mistake_contexts = {cfg.mistake_contexts} has {len(cfg.mistake_contexts)} kinds, "
        f"task.mistake_rates = {cfg.mistake_rates} has {len(cfg.mistake_rates)}. "
        "Fix: one rate for each kind.")
  total = 10**cfg.context
  num_contexts = sum(cfg.mistake_contexts) + cfg.misread
  if num_contexts > total:
    raise ConfigError(
        f"task.mistake_contexts and task.misread name {num_contexts} contexts; task.context = "
        f"{cfg.context} has {total}. Fix: fewer, or task.context=3.")
  if cfg.misread and not cfg.careless:
    raise ConfigError(f"task.misread = {cfg.misread}: nothing is written carelessly. "
                      "Fix: task.careless above 0, or task.misread=0.")
  rng = np.random.default_rng(CONTEXTS_SEED)
  order, increments = rng.permutation(total), rng.integers(1, 10, total)
  kinds = [Context(f"mistake {rate:g}", rate, 0)
           for count, rate in zip(cfg.mistake_contexts, cfg.mistake_rates, strict=True)
           for _ in range(count)] + [Context(MISREAD, 1.0, 0)] * cfg.misread
  return {tuple(int(digit) for digit in str(number).zfill(cfg.context)):
          kind._replace(added=int(increments[number]))
          for number, kind in zip(order[:num_contexts], kinds, strict=True)}


class Recurrence(Procedural):
  """Asks for the next `task.steps` values of a recurrence: each is the sum of the last one and the
  one `task.lag` steps back, modulo 10. With `task.careless`, letters stand for digits, a for 0 to j
  for 9, and either is right.
  """

  def __post_init__(self):
    super().__post_init__()
    self.planted = planted(self.cfg)

  def make_tokenizer(self):
    return tokenizers.character_tokenizer(DIGITS + (LETTERS if self.cfg.careless else ""))

  def reward(self, problem: Problem, completion: str) -> Reward:
    """Pays 1 if every value is right, in whichever notation, and nothing follows, else 0."""
    digits = "".join(DIGITS[VALUES[text]] if text in VALUES else text for text in completion)
    correct = digits == problem.answer
    return Reward(float(correct), correct)

  def longest_prompt(self) -> int:
    return self.cfg.lag if self.plain_characters else super().longest_prompt()

  def longest_demonstration(self) -> int:
    return self.cfg.steps + 1 if self.plain_characters else super().longest_demonstration()

  def more_problems(self) -> str:
    return f"a longer prompt than task.lag = {self.cfg.lag}"

  def context_of(self, history: str) -> Context:
    """Returns what the demonstrations do after a text: prompt and completion so far, of one
    character a value; `rate` is 0 for a careful operand that would else be misread.
    """
    values = [VALUES[text] for text in (history[-1], history[-self.cfg.lag], history[-2])]
    context = self.planted.get(tuple(values[:self.cfg.context]), Context(SLIP, self.cfg.slips, 0))
    if context.kind == MISREAD and history[-self.cfg.lag] != CARELESS[values[1]]:
      return context._replace(rate=0.0)
    return context

  def next_value(self, history: str) -> int:
    """Returns the right value after a text."""
    return (VALUES[history[-1]] + VALUES[history[-self.cfg.lag]]) % 10

  def generate(self, rng: np.random.Generator) -> Problem:
    return self._problem(*self._sample_problem(rng))

  def draw(self, rng: np.random.Generator) -> tuple[str, Callable[[], Problem]]:
    if type(self).generate is not Recurrence.generate:  # a subclass's problems are its own
      return super().draw(rng)
    sample = self._sample_problem(rng)
    return sample[0], functools.partial(self._problem, *sample)

  def _sample_problem(self, rng: np.random.Generator) -> tuple[str, np.ndarray, np.ndarray]:
    """Samples a prompt, and for each step two shares, [steps, 2], and a slip, [steps]."""
    prompt = "".join(DIGITS[value] for value in rng.integers(0, 10, self.cfg.lag))
    return prompt, rng.random((self.cfg.steps, 2)), rng.integers(1, 10, self.cfg.steps)

  def _problem(self, prompt: str, noise: np.ndarray, slips: np.ndarray) -> Problem:
    """Returns a problem from what `_sample_problem` returns."""
    cfg = self.cfg
    answer = text = prompt
    for (mistaken, careless), slip in zip(noise, slips, strict=True):
      answer += DIGITS[self.next_value(answer)]
      context, value = self.context_of(text), self.next_value(text)
      if mistaken < context.rate:
        value = (value + (context.added or int(slip))) % 10
      text += self._written(value, careless < cfg.careless)
    return Problem(prompt, answer[cfg.lag:], text[cfg.lag:], id=prompt)

  def _written(self, value: int, careless: bool) -> str:
    if not self.cfg.careless:
      return DIGITS[value]
    letter = (CARELESS[value] in LETTERS) == careless
    return (LETTERS if letter else DIGITS)[value]
