"""Problems that are generated: endless, seeded, and split into training and held-out by a hash."""

import functools
import zlib
from collections.abc import Callable

import numpy as np

from jaxrl_llm.config import ConfigError
from jaxrl_llm.tasks.order import share
from jaxrl_llm.tasks.task_base import TaskBase
from jaxrl_llm.types import Problem

HELDOUT_SHARE = 16  # one problem in this many is held out
HELDOUT_SEED = 2**31 - 1
PROBE = 256  # problems looked at to learn how long they are
HELDOUT_SIZES = 4  # sizes whose problems are kept
PATIENCE = 2000  # problems in a row that may be of no use before a split counts as exhausted


class Procedural(TaskBase):
  """A task that generates its problems; a subclass adds `generate` and `more_problems`.

  Training and held-out problems are disjoint: a hash of `split_key` decides. `batch` is a pure
  function of (seed, index). A problem whose prompt is longer than `limits` is replaced by the next.
  """

  def __post_init__(self):
    super().__post_init__()
    self._sample_heldout = functools.lru_cache(HELDOUT_SIZES)(self._heldout)

  @property
  def plain_characters(self) -> bool:
    """Returns whether a prompt is one token per character of the problem, so that lengths are
    known.
    """
    return self.own_tokenizer and self.cfg.prompt.style == "plain"

  def generate(self, rng: np.random.Generator) -> Problem:
    """Returns one random problem."""
    raise NotImplementedError

  def split_key(self, problem: Problem) -> str:
    """Returns a text that is equal for two problems that ask the same question."""
    return problem.prompt

  def draw(self, rng: np.random.Generator) -> tuple[str, Callable[[], Problem]]:
    """Samples a problem: its `split_key`, and what builds it without sampling again.

    A task whose problems are slow to build need not build the other split's problems.
    """
    problem = self.generate(rng)
    return self.split_key(problem), lambda: problem

  def more_problems(self) -> str:
    """Says which setting gives more distinct problems, for the error that there are too few."""
    raise NotImplementedError

  def batch(self, index: int, shard: int = 0, shards: int = 1) -> list[Problem]:
    """Returns the training problems of batch `index` that process `shard` of `shards` handles.

    Raises:
      ConfigError: no problem fits the row.
    """
    rng = np.random.default_rng((self.seed, index))
    problems = self._sample_split(rng, self.batch_size, heldout=False)
    if len(problems) < self.batch_size:
      limit, longest = getattr(self.limits, "max_prompt_tokens", None), self.longest_prompt()
      raise ConfigError(
          f"task.name = {self.cfg.name!r}: of {PATIENCE} problems in a row none is for training "
          f"and fits rollout.max_prompt_tokens = {limit}; prompts have up to {longest} tokens. "
          f"Fix: rollout.max_prompt_tokens >= {longest}, or {self.more_problems()}.")
    return problems if shards == 1 else share(problems, shard, shards)

  def heldout(self, size: int) -> list[Problem]:
    """Returns the first `size` distinct held-out problems, the same for every seed.

    Raises:
      ConfigError: there are not that many.
    """
    return list(self._sample_heldout(size))

  def _heldout(self, size: int) -> list[Problem]:
    """As `heldout`, which a start asks for more than once."""
    rng, problems = np.random.default_rng(HELDOUT_SEED), {}
    while len(problems) < size:
      count = len(problems)
      more = self._sample_split(rng, size, heldout=True)
      problems |= {self.split_key(problem): problem for problem in more}
      if len(problems) == count:
        break
    else:
      return list(problems.values())[:size]
    raise ConfigError(
        f"task.heldout_problems = {size}: only {len(problems)} held-out problems of task.name = "
        f"{self.cfg.name!r} were found; fewer problems or {self.more_problems()}.")

  def longest_prompt(self) -> int:
    """Returns the tokens of the longest prompt among the first PROBE problems."""
    return max(len(self.render(problem)) for problem in self._probe())

  def longest_demonstration(self) -> int:
    """Returns the tokens of the longest demonstration, with the end of sequence."""
    return max(len(self.demonstration(problem)) for problem in self._probe())

  def _probe(self) -> list[Problem]:
    rng = np.random.default_rng(HELDOUT_SEED - 1)
    return [self.generate(rng) for _ in range(PROBE)]

  def _sample_split(self, rng: np.random.Generator, size: int, *, heldout: bool) -> list[Problem]:
    """Generates `size` problems of one split, with repetitions.

    Returns fewer if PATIENCE problems in a row belong to the other split or are too long.
    """
    problems, misses = [], 0
    while len(problems) < size and misses < PATIENCE:
      key, build = self.draw(rng)
      in_split = (zlib.crc32(key.encode()) % HELDOUT_SHARE == 0) == heldout
      if in_split and self._fits(problem := build()):
        problems.append(problem)
        misses = 0
      else:
        misses += 1
    return problems

  def _fits(self, problem: Problem) -> bool:
    # With the task's own tokenizer `longest_prompt` is a bound, compared once by the caller.
    if self.own_tokenizer or self.limits is None:
      return True
    return len(self.render(problem)) <= self.limits.max_prompt_tokens
