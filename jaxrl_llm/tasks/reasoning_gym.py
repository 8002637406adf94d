"""Tasks of the reasoning-gym package (extra `gym`), generated one by one as they are asked for.

Two properties of that package shape this file (methods V7.1). Item i of a data set with seed s is
drawn from s + i, so train and held-out seeds lie further apart than the data set is long. Its
default scorer gives partial credit for an answer hidden in other text, so a reward is 1 only where
the score is 1.
"""

import dataclasses
import functools
import json

from jaxrl_llm.config import ConfigError
from jaxrl_llm.fields import did_you_mean, option
from jaxrl_llm.tasks.common import TaskBase
from jaxrl_llm.tasks.countdown import answer_text
from jaxrl_llm.tasks.order import rows_of_batch, share
from jaxrl_llm.types import Problem, Reward

TRAIN_SEED, HELDOUT_SEED = 0, 2**30
PROBE = 64  # items looked at where looking at all would take long


@dataclasses.dataclass(frozen=True)
class GymConfig:
  """A task of the reasoning-gym package (extra `gym`)."""

  name: str = option("chain_sum", "name of a reasoning-gym dataset")
  size: int = option(10_000, "training problems", low=1)
  options: str = option("{}", "JSON object of the dataset's own options")


@dataclasses.dataclass(frozen=True)
class ReasoningGymKeys:
  """What only `reasoning_gym` reads."""

  gym: GymConfig = GymConfig()


class ReasoningGym(TaskBase):
  """The data set `task.gym.name` with `task.gym.options`: `task.gym.size` training problems,
  shuffled each epoch.

  Items whose prompt or answer exceeds `limits` are replaced by others, by a rule that depends on
  the item alone. Two items with different seeds can still be equal by chance in data sets of few
  questions.
  """

  def __post_init__(self):
    super().__post_init__()
    size = max(self.cfg.gym.size, self.cfg.heldout_problems)
    self._sets = {"train": _create(self.cfg.gym, TRAIN_SEED, size),
                  "heldout": _create(self.cfg.gym, HELDOUT_SEED, size)}
    self._entry = functools.lru_cache(maxsize=4096)(self._make_entry)

  @property
  def has_demonstrations(self) -> bool:
    """Whether the data set states its answers; the demonstration is the answer alone."""
    return self._problem("train", 0).demonstration is not None

  def batch(self, index: int, shard: int = 0, shards: int = 1) -> list[Problem]:
    """Training problems: the contiguous share of process `shard` in the `batch_size` problems of
    `index`.
    """
    order = rows_of_batch(index, self.batch_size, self.cfg.gym.size, self.seed)
    return [self._fitting(item) for item in share(order, shard, shards)]

  def heldout(self, size: int) -> list[Problem]:
    """The first `size` held-out problems with different questions, the same for every seed.

    Raises:
      ConfigError: there are not that many.
    """
    found: dict[str, Problem] = {}
    for item in range(len(self._sets["heldout"])):
      problem = self._problem("heldout", item)
      if self._fits(problem):
        found.setdefault(problem.prompt, problem)
      if len(found) == size:
        return list(found.values())
    raise ConfigError(
        f"task.heldout_problems = {size}: task.gym.name = {self.cfg.gym.name!r} gave {len(found)} "
        "different ones that fit the row. Fix: fewer, longer rows, or harder task.gym.options.")

  def reward(self, problem: Problem, completion: str) -> Reward:
    """1 if the package scores the answer 1, else 0; the answer is inside the last <answer>
    </answer>, or is all.
    """
    kind, item = problem.id.split("-")
    score = self._sets[kind].score_answer(answer_text(completion), self._entry(kind, int(item)))
    return Reward(float(score == 1), bool(score == 1))

  def longest_prompt(self) -> int:
    """Tokens: a bound with `limits`, else the length of the longest training prompt."""
    if self.limits is not None:
      return max(len(self.render(self._fitting(i))) for i in range(min(PROBE, self.cfg.gym.size)))
    return max(len(self.render(self._problem("train", i))) for i in range(self.cfg.gym.size))

  def longest_demonstration(self) -> int:
    """Tokens of the longest demonstration looked at, end of sequence included; 0 where there are
    none.
    """
    if not self.has_demonstrations:
      return 0
    items = range(min(PROBE, self.cfg.gym.size) if self.limits else self.cfg.gym.size)
    return max(len(self.demonstration(self._fitting(i))) for i in items)

  def _fitting(self, item: int) -> Problem:
    for attempt in range(PROBE):
      # A fixed walk through the data set, the same on every machine and after every restart.
      problem = self._problem("train", (item + attempt * 7919) % self.cfg.gym.size)
      if self._fits(problem):
        return problem
    raise ConfigError(
        f"rollout.max_prompt_tokens = {self.limits.max_prompt_tokens}, rollout.max_new_tokens = "
        f"{self.limits.max_new_tokens}: task.gym.name = {self.cfg.gym.name!r} hardly gives "
        "problems that "
        f"fit; one has a prompt of {len(self.render(problem))} tokens. Fix: a longer row, or "
        "easier "
        "task.gym.options.")

  def _fits(self, problem: Problem) -> bool:
    if self.limits is None:
      return True
    answer = 0 if problem.demonstration is None else len(self.demonstration(problem))
    return len(self.render(
        problem)) <= self.limits.max_prompt_tokens and answer <= self.limits.max_new_tokens

  def _problem(self, kind: str, item: int) -> Problem:
    entry = self._entry(kind, item)
    answer = entry["answer"]
    shown = answer if isinstance(answer, str) and answer.strip() else None
    return Problem(entry["question"], "" if answer is None else str(answer), shown,
                   f"{kind}-{item}")

  def _make_entry(self, kind: str, item: int) -> dict:
    return self._sets[kind][item]


def _create(cfg, seed: int, size: int):
  """A data set of the package.

  Raises:
    ConfigError: the package is missing, or refuses name or options.
  """
  try:
    import reasoning_gym
    from reasoning_gym.factory import DATASETS
  except ImportError as error:
    raise ConfigError(
        f"task.name = 'reasoning_gym': the package reasoning-gym is missing ({error}). "
        "Fix: pip install 'jaxrl_llm[gym]' (it needs a C compiler).") from error
  if cfg.name not in DATASETS:
    raise ConfigError(
        f"task.gym.name = {cfg.name!r}: no such data set; there are {', '.join(sorted(DATASETS))}."
        + did_you_mean(cfg.name, DATASETS))
  try:
    options = json.loads(cfg.options)
    return reasoning_gym.create_dataset(cfg.name, seed=seed, size=size, **options)
  except (ValueError, TypeError, AssertionError) as error:
    raise ConfigError(
        f"task.gym.options = {cfg.options!r} for task.gym.name = {cfg.name!r}: {error}. "
        "Fix: a JSON object of the data set's own options.") from error
