"""Problems that are drawn, not read: endless, seeded, and split into train and held-out by a hash.
"""

import zlib

import numpy as np

from jaxrl_llm.config import ConfigError
from jaxrl_llm.tasks.common import TaskBase
from jaxrl_llm.tasks.order import share
from jaxrl_llm.types import Problem

HELDOUT_SHARE = 16  # one problem in this many is held out
HELDOUT_SEED = 2**31 - 1
PROBE = 256  # problems looked at to learn how long they are
PATIENCE = 2000  # draws in a row without a problem of the wanted split, after which there is none


class Procedural(TaskBase):
  """A task that draws; a subclass gives `draw_one`, `split_key` and `scarce`.

  Train and held-out problems are disjoint by construction: a hash of `split_key` decides. `batch`
  is a pure function of (seed, index). Problems whose prompt exceeds `limits` are drawn again.
  """

  def draw_one(self, rng: np.random.Generator) -> Problem:
    raise NotImplementedError

  def split_key(self, problem: Problem) -> str:
    """What two problems share when they are the same question."""
    return problem.prompt

  def scarce(self) -> str:
    """How to get more distinct problems, for the error that there are too few."""
    raise NotImplementedError

  def batch(self, index: int, shard: int = 0, shards: int = 1) -> list[Problem]:
    """Training problems: the contiguous share of process `shard` in the `batch_size` problems of
    `index`.

    Raises:
      ConfigError: no problem fits the row.
    """
    problems = self._draw(np.random.default_rng((self.seed, index)), self.batch_size, heldout=False)
    if len(problems) < self.batch_size:
      raise ConfigError(
          f"task.name = {self.cfg.name!r}: of {PATIENCE} problems in a row none is for training "
          "and fits "
          f"rollout.max_prompt_tokens = {getattr(self.limits, 'max_prompt_tokens', None)}; prompts "
          "have "
          f"up to {self.longest_prompt()} tokens. Fix: rollout.max_prompt_tokens >= "
          f"{self.longest_prompt()}, or {self.scarce()}.")
    return share(problems, shard, shards)

  def heldout(self, size: int) -> list[Problem]:
    """The first `size` distinct held-out problems: the same for every seed.

    Raises:
      ConfigError: there are not that many.
    """
    rng, found = np.random.default_rng(HELDOUT_SEED), {}
    while len(found) < size:
      before = len(found)
      found |= {self.split_key(problem): problem for problem in self._draw(rng, size, heldout=True)}
      if len(found) == before:
        break
    else:
      return list(found.values())[:size]
    raise ConfigError(
        f"task.heldout_problems = {size}: only {len(found)} held-out problems of task.name = "
        f"{self.cfg.name!r} were found; fewer problems or {self.scarce()}.")

  def longest_prompt(self) -> int:
    """Tokens of the longest prompt among the first problems; none that exceeds `limits` is ever
    drawn.
    """
    return max(len(self.render(problem)) for problem in self._probe())

  def longest_demonstration(self) -> int:
    """Tokens of the longest demonstration among the first problems, end of sequence included."""
    return max(len(self.demonstration(problem)) for problem in self._probe())

  def _probe(self) -> list[Problem]:
    rng = np.random.default_rng(HELDOUT_SEED - 1)
    return [self.draw_one(rng) for _ in range(PROBE)]

  def _draw(self, rng: np.random.Generator, size: int, *, heldout: bool) -> list[Problem]:
    """`size` problems of one split; fewer where PATIENCE draws in a row gave none, which held-out
    ones may.
    """
    problems, misses = [], 0
    while len(problems) < size and misses < PATIENCE:
      problem = self.draw_one(rng)
      wanted = (zlib.crc32(self.split_key(problem).encode()) % HELDOUT_SHARE == 0) == heldout
      if wanted and self._fits(problem):
        problems.append(problem)
        misses = 0
      else:
        misses += 1
    return problems

  def _fits(self, problem: Problem) -> bool:
    # With the task's own tokenizer `longest_prompt` is a bound, compared once by the caller.
    return self.own_tokenizer or self.limits is None or len(
        self.render(problem)) <= self.limits.max_prompt_tokens
