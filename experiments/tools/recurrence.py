"""A recurrence of digits in which some values are hidden and must be asked of a tool.

  prompt      8652
  completion  061339?03222?79...    the digit behind each `?` is written by the tool

y_t = y_(t-1) + y_(t-4) mod 10, except where a value is hidden: there the policy has to write `?`. A
value is hidden in HIDDEN of the 100 contexts of (last value, value four places back), the same for
every run, but never right behind an answer. It is then a digit of a hash of the prompt and of what
the policy wrote since the last call. The tool always answers with that digit, so that a call in any
other context brings a value that is wrong nine times in ten. A question mark takes a place in the
row, and counts as the value 0. A completion has `task.steps` places, one more if the last one is a
call's answer, and the end. It is rewarded if every value in it is right, whoever wrote it. So each
token of the policy is a decision, and what is right there depends on the tool's answers before it.

Demonstrations have mistakes, and continue from them; RL has to unlearn each kind:

  guess      where a value is hidden, the sum, which is right one time in ten
  needless   a call where the value is the sum
  misused    behind certain answers of the tool, a certain wrong value
  slip       any wrong value, rarely, in every other place
"""

import dataclasses
import hashlib
import re
from collections.abc import Iterator

import numpy as np

from experiments.tables_lib.mistakes import OTHER, Mistake
from jaxrl_llm import register
from jaxrl_llm.fields import option
from jaxrl_llm.rollouts.environment import Continue, Stop, TurnEnvironment
from jaxrl_llm.tasks import tokenizer as tokenizers
from jaxrl_llm.tasks.procedural import Procedural
from jaxrl_llm.types import STOP_TOKEN, STOP_TURNS, Problem, Reward

DIGITS, CALL, LAG = "0123456789", "?", 4
CONTEXTS_SEED = 7
GUESS, NEEDLESS, MISUSED, SLIP = "guess", "needless", "misused", "slip"
# Of each kind, (contexts, rate of the mistake in demonstrations); of MISUSED, (answers, rate).
GUESSES = ((4, 0.5), (4, 0.15), (12, 0.03))
NEEDLESS_CALLS = ((2, 0.5), (4, 0.15))
MISUSES = ((1, 0.5), (2, 0.2))
SLIPS = 0.001
HIDDEN = sum(count for count, _ in GUESSES)


@dataclasses.dataclass(frozen=True)
class ToolRecurrenceKeys:
  """Config keys of the task `tool_recurrence`."""

  steps: int = option(31, "places of a completion: values, and calls with their answers", low=1,
                      high=4096)


def _rates(kinds: tuple[tuple[int, float], ...], total: int) -> np.ndarray:
  """Returns the rate of each of `total` contexts, those of the kinds first; 0 in the others."""
  rates = [rate for count, rate in kinds for _ in range(count)]
  return np.array(rates + [0.0] * (total - len(rates)))


RNG = np.random.default_rng(CONTEXTS_SEED)
# [10, 10] by (last value, value LAG places back), [10] by the answer: where, how often, and for
# MISUSED what is added to the right value.
ORDER, ANSWERS = np.argsort(RNG.permutation(100)).reshape(10, 10), np.argsort(RNG.permutation(10))
RATES = _rates(GUESSES + NEEDLESS_CALLS, 100)[ORDER]
MISUSE_RATES = _rates(MISUSES, 10)[ANSWERS]
MISUSE_ADDED = RNG.integers(1, 10, 10)


def operands(row: str) -> tuple[int, int]:
  """Returns the last value of a row (prompt and completion, answers included) and the one LAG
  places back.
  """
  return int(row[-1]), int(row[-LAG].replace(CALL, "0"))


def is_hidden(row: str) -> bool:
  """Returns whether the next value of a row is hidden."""
  return bool(ORDER[operands(row)] < HIDDEN) and row[-2] != CALL


def tool_answer(prompt: str, turn: str) -> str:
  """Returns the hidden digit behind the values that the policy wrote since the last call."""
  digest = hashlib.blake2b(f"hidden {prompt} {turn}".encode(), digest_size=8).digest()
  return DIGITS[int.from_bytes(digest, "big") % 10]


def kind_of(row: str) -> tuple[str, float]:
  """Returns the kind of mistake that demonstrations make behind a row, and its rate."""
  last, oldest = operands(row)
  if is_hidden(row):
    return GUESS, RATES[last, oldest]
  if row[-2] == CALL:
    return (MISUSED, MISUSE_RATES[last]) if MISUSE_RATES[last] else (SLIP, SLIPS)
  return (NEEDLESS, RATES[last, oldest]) if RATES[last, oldest] else (SLIP, SLIPS)


def judged(prompt: str, completion: str) -> Iterator[tuple[str, str]]:
  """Yields the kind of mistake of each of the policy's tokens, "" if it is none, and the row up to
  it, with the answer to a call. A text that is neither a value nor a call ends it.

  Args:
    completion: the policy's text, without the tool's answers.
  """
  row, turn = prompt, ""
  for text in completion:
    if text not in DIGITS + CALL:
      return
    kind, hidden = kind_of(row)[0], tool_answer(prompt, turn)
    right = hidden if kind == GUESS else DIGITS[sum(operands(row)) % 10]
    if text == CALL:
      value, kind = hidden, NEEDLESS
      row, turn = row + CALL + hidden, ""
    else:
      value, kind = text, SLIP if kind == NEEDLESS else kind
      row, turn = row + text, turn + text
    yield "" if value == right else kind, row


@register.task("tool_recurrence", ToolRecurrenceKeys)
class ToolRecurrence(Procedural):
  """Asks for the next `task.steps` places of a recurrence with hidden values."""

  def make_tokenizer(self):
    return tokenizers.character_tokenizer(DIGITS + CALL)

  def longest_prompt(self) -> int:
    return LAG

  def longest_demonstration(self) -> int:
    return self.cfg.steps + 2

  def more_problems(self) -> str:
    return "another task: a prompt has four digits"

  def reward(self, problem: Problem, completion: str) -> Reward:
    """Pays 1 if every value is right and there are as many as there should be, else 0."""
    correct = not self.mistakes(problem, completion)
    return Reward(float(correct), correct)

  def mistakes(self, problem: Problem, completion: str) -> list[Mistake]:
    """Returns the tokens that bring a wrong value, by kind. A wrong length, or a text that is
    neither a value nor a call, is the last that is looked at.
    """
    out, place = [], 0
    for place, (kind, row) in enumerate(judged(problem.prompt, completion), 1):
      if kind:
        out.append(Mistake(place - 1, kind))
      if len(row) - LAG >= self.cfg.steps:
        return out + [Mistake(place, OTHER)] * (place != len(completion))
    return [*out, Mistake(place, OTHER)]

  def demonstration_mask(self, problem: Problem) -> list[bool]:
    """False on the digits that the tool writes."""
    text = problem.demonstration or ""
    return [before != CALL for before in " " + text]

  def generate(self, rng: np.random.Generator) -> Problem:
    prompt = "".join(DIGITS[value] for value in rng.integers(0, 10, LAG))
    shares, slips = rng.random(self.cfg.steps), rng.integers(1, 10, self.cfg.steps)
    right = self._completion(prompt, np.ones(self.cfg.steps), slips)
    return Problem(prompt, re.sub(r"\?.", CALL, right), self._completion(prompt, shares, slips),
                   id=prompt)

  def _completion(self, prompt: str, shares: np.ndarray, slips: np.ndarray) -> str:
    """Returns a completion with the tool's answers.

    Args:
      shares: [steps] in [0, 1]; one below the rate of its place makes the mistake.
      slips: [steps], what is added to a value that slips.
    """
    row, turn = prompt, ""
    for share, slip in zip(shares, slips, strict=True):
      kind, rate = kind_of(row)
      mistaken, value = share < rate, sum(operands(row))
      if mistaken and kind in (MISUSED, SLIP):
        value += MISUSE_ADDED[int(row[-1])] if kind == MISUSED else slip
      if (kind == GUESS and not mistaken) or (kind == NEEDLESS and mistaken):
        row, turn = row + CALL + tool_answer(prompt, turn), ""
      else:
        row, turn = row + DIGITS[value % 10], turn + DIGITS[value % 10]
      if len(row) - LAG >= self.cfg.steps:
        break
    return row[LAG:]


@register.environment("hidden_digits")
class HiddenDigits(TurnEnvironment):
  """Ends a turn at a call or a stop token, and answers a call with the hidden digit."""

  def __init__(self, tokenizer, eos_ids, max_output_tokens, cfg):
    super().__init__(tokenizer, eos_ids, markers=(CALL,))

  def step(self, row_id, turn_ids, last=False):
    """See `Environment`."""
    text, is_over = self.split(turn_ids)
    if is_over:
      return Stop(STOP_TOKEN)
    if last:
      return Stop(STOP_TURNS)
    answer = tool_answer(self.problems[row_id].prompt, text.removesuffix(CALL))
    return Continue(tuple(self.ids(answer)))
