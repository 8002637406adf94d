"""Chains of digits, evaluated from left to right modulo 10.

  prompt      7*3+4-8
  answered    =7
  worked      :7*3=1+4=5-8=7

One step is a table look-up; the whole chain at once is a composition that is hard for a small network. Only the last
number is checked, so the policy is free in how it gets there. Demonstrations mix the two manners
(`task.worked_share`): the warm start learns to imitate the mixture, and that working pays is left for RL to find.
"""

import dataclasses
import zlib

import numpy as np

from jaxrl_llm.config import ConfigError, TaskConfig
from jaxrl_llm.tasks import tokenizer as tokenizers
from jaxrl_llm.types import Problem, Reward

OPERATIONS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}
ALPHABET = "0123456789+-*=:"
HELDOUT_SHARE = 16  # one chain in this many is held out


@dataclasses.dataclass(frozen=True)
class ModularChain:
  """Chains of `num_terms` digits.

  Train and held-out problems are disjoint by construction: a hash of the prompt decides. `batch` is a pure function
  of (seed, index).
  """

  cfg: TaskConfig
  seed: int
  batch_size: int
  tokenizer: object = dataclasses.field(default_factory=lambda: tokenizers.character_tokenizer(ALPHABET), compare=False)

  def batch(self, index: int) -> list[Problem]:
    """`batch_size` training problems."""
    return self._draw(np.random.default_rng((self.seed, index)), self.batch_size, heldout=False)

  def heldout(self, size: int) -> list[Problem]:
    """The first `size` distinct held-out problems: the same for every seed.

    Raises:
      ConfigError: there are not that many.
    """
    rng, found = np.random.default_rng(2**31 - 1), {}
    while len(found) < size:
      before = len(found)
      found |= {problem.prompt: problem for problem in self._draw(rng, size, heldout=True)}
      if len(found) == before:
        break
    else:
      return list(found.values())[:size]
    raise ConfigError(f"task.heldout_problems = {size}: only {len(found)} held-out chains of task.num_terms = "
                      f"{self.cfg.num_terms} digits were found; fewer problems or more terms.")

  def render(self, problem: Problem) -> list[int]:
    return tokenizers.encode(self.tokenizer, problem.prompt)

  def demonstration(self, problem: Problem) -> list[int]:
    """Completion ids of the demonstrated answer, end of sequence included."""
    return tokenizers.encode(self.tokenizer, problem.demonstration) + [self.tokenizer.eos_token_id]

  def reward(self, problem: Problem, completion: str) -> Reward:
    """1 if what stands behind the last equals sign is the answer, else 0."""
    correct = completion.rsplit("=", 1)[-1] == problem.answer
    return Reward(float(correct), correct)

  def longest_prompt(self) -> int:
    return 2 * self.cfg.num_terms - 1

  def longest_demonstration(self) -> int:
    """Tokens, end of sequence included."""
    return 4 * self.cfg.num_terms - 1 if self.cfg.worked_share else 3

  def _draw(self, rng: np.random.Generator, size: int, *, heldout: bool) -> list[Problem]:
    problems = []
    while len(problems) < size:
      digits = rng.integers(0, 10, self.cfg.num_terms).tolist()
      signs = rng.choice(list(OPERATIONS), self.cfg.num_terms - 1).tolist()
      problem = _problem(digits, signs, worked=rng.random() < self.cfg.worked_share)
      if (zlib.crc32(problem.prompt.encode()) % HELDOUT_SHARE == 0) == heldout:
        problems.append(problem)
    return problems


def _problem(digits: list[int], signs: list[str], *, worked: bool) -> Problem:
  prompt = steps = str(digits[0])
  value = digits[0]
  for sign, digit in zip(signs, digits[1:], strict=True):
    value = OPERATIONS[sign](value, digit) % 10
    prompt += f"{sign}{digit}"
    steps += f"{sign}{digit}={value}"
  return Problem(prompt, str(value), f":{steps}" if worked else f"={value}")
