"""Chain addition with written running sums: 37+85+46= -> 122,168.

Only the last number is checked, so the policy is free in how it gets there.
"""

import dataclasses
import zlib

import numpy as np

from jaxrl_llm.config import TaskConfig
from jaxrl_llm.tasks import tokenizer as tokenizers
from jaxrl_llm.types import Problem, Reward

ALPHABET = "0123456789+=,"
HELDOUT_SHARE = 16  # one multiset of terms in this many is held out


@dataclasses.dataclass(frozen=True)
class ChainAddition:
  """Sums of `num_terms` numbers from 1 to `max_term`.

  Train and held-out problems are disjoint by construction: a hash of the sorted terms decides, so that not even a
  permutation of a held-out sum is trained on. `batch` is a pure function of (seed, index).
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
      ValueError: there are not that many.
    """
    rng, found = np.random.default_rng(2**31 - 1), {}
    for _ in range(200):
      for problem in self._draw(rng, size, heldout=True):
        found.setdefault(problem.prompt, problem)
      if len(found) >= size:
        return list(found.values())[:size]
    raise ValueError(f"task.heldout_problems = {size}: only {len(found)} held-out sums of {self.cfg.num_terms} terms "
                     f"up to {self.cfg.max_term} were found; fewer problems or a larger task.max_term.")

  def render(self, problem: Problem) -> list[int]:
    return tokenizers.encode(self.tokenizer, problem.prompt)

  def demonstration(self, problem: Problem) -> list[int]:
    """Completion ids of the worked answer, end of sequence included."""
    return tokenizers.encode(self.tokenizer, problem.demonstration) + [self.tokenizer.eos_token_id]

  def reward(self, problem: Problem, completion: str) -> Reward:
    """1 if the number after the last comma is the sum, else 0."""
    correct = completion.rsplit(",", 1)[-1] == problem.answer
    return Reward(float(correct), correct)

  def longest_prompt(self) -> int:
    return self.cfg.num_terms * (len(str(self.cfg.max_term)) + 1)

  def _draw(self, rng: np.random.Generator, size: int, *, heldout: bool) -> list[Problem]:
    problems = []
    while len(problems) < size:
      terms = rng.integers(1, self.cfg.max_term + 1, self.cfg.num_terms).tolist()
      if _is_heldout(terms) == heldout:
        problems.append(_problem(terms))
    return problems


def _is_heldout(terms: list[int]) -> bool:
  return zlib.crc32(repr(sorted(terms)).encode()) % HELDOUT_SHARE == 0


def _problem(terms: list[int]) -> Problem:
  sums = np.cumsum(terms).tolist()
  return Problem("+".join(map(str, terms)) + "=", str(sums[-1]), ",".join(map(str, sums[1:])))
