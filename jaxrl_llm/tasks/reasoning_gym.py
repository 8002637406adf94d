"""Tasks of the reasoning-gym package (extra `gym`), generated one by one as they are asked for.

Two properties of that package (measured on version 0.1.25) shape this file. Item i of a data set
with seed s is generated from seed s + i, so the distance between training and held-out seeds
exceeds the length of the data set. Its default scorer gives partial credit for an answer hidden in
other text, so a reward is 1 only if the score is 1.

Some of its scorers run the completion as Python code, so all of them run in the sandbox
(sandbox/isolated_calls.py). A text on which a scorer raises, or that takes its process down or all
of its time, is wrong, unless the scorer fails on the problem's own answer too: then the row is
unscored, as it is for a fault of the sandbox.
"""

import functools
import json
import re

from jaxrl_llm.config import ConfigError
from jaxrl_llm.fields import did_you_mean, installing
from jaxrl_llm.grading.normalise import after_thinking
from jaxrl_llm.sandbox.isolated_calls import IsolatedCalls
from jaxrl_llm.sandbox.results import Fault
from jaxrl_llm.tasks.keys import GymConfig
from jaxrl_llm.tasks.order import rows_of_batch, share
from jaxrl_llm.tasks.reward_faults import blamed
from jaxrl_llm.tasks.task_base import TaskBase
from jaxrl_llm.types import Problem, Reward

__all__ = ["GymConfig", "ReasoningGym"]

TRAIN_SEED, HELDOUT_SEED = 0, 2**30
ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)
PROBE = 64  # items looked at if all would take long
STRIDE = 7919  # a prime: the next item to try if one does not fit
# Scorers take milliseconds. Seconds that a text may compute, wait, and compute at first; and that a
# batch may lose.
CPU, WALL, QUICK, BUDGET = 2.0, 20.0, 0.25, 60.0
# Its first score imports what the others need.
SCORER = """import contextlib, json, reasoning_gym
data = reasoning_gym.create_dataset({name!r}, seed=0, size={size}, **json.loads({options!r}))
target = data.score_answer
with contextlib.suppress(Exception):
  target(data[0]["answer"], data[0])
"""


class ReasoningGym(TaskBase):
  """Asks `task.gym.size` problems of the data set `task.gym.name`, shuffled each epoch.

  An item whose prompt or answer is longer than `limits` is replaced by another, and by the same one
  each time. In data sets of few questions, items with different seeds can be equal by chance, also
  across training and held-out.
  """

  def __post_init__(self):
    super().__post_init__()
    size = max(self.cfg.gym.size, self.cfg.heldout_problems)
    self._sets = {
        "train": _create(self.cfg.gym, TRAIN_SEED, size),
        "heldout": _create(self.cfg.gym, HELDOUT_SEED, size),
    }
    self._entry = functools.lru_cache(maxsize=4096)(self._make_entry)

  @property
  def has_demonstrations(self) -> bool:
    """Returns whether the data set states its answers; a demonstration is only the answer."""
    return self._problem("train", 0).demonstration is not None

  def batch(self, index: int, shard: int = 0, shards: int = 1) -> list[Problem]:
    """Returns the training problems of batch `index` that process `shard` of `shards` handles."""
    order = rows_of_batch(index, self.batch_size, self.cfg.gym.size, self.seed)
    return [self._fitting(position) for position in share(order, shard, shards)]

  def heldout(self, size: int) -> list[Problem]:
    """Returns the first `size` held-out problems with different questions, the same for every seed;
    for -1, all of the data set.

    Raises:
      ConfigError: there are not that many.
    """
    problems: dict[str, Problem] = {}
    for index in range(len(self._sets["heldout"])):
      problem = self._problem("heldout", index)
      if self._fits(problem):
        problems.setdefault(problem.prompt, problem)
      if len(problems) == size:
        return list(problems.values())
    if size < 0 and problems:
      return list(problems.values())
    raise ConfigError(
        f"task.heldout_problems = {size}: task.gym.name = {self.cfg.gym.name!r} gave "
        f"{len(problems)} different ones that fit the row. Fix: fewer, longer rows, or harder "
        f"task.gym.options.")

  def reward(self, problem: Problem, completion: str) -> Reward:
    """Returns the reward of one completion; see `rewards`."""
    return self.rewards([problem], [completion])[0]

  def rewards(self, problems: list[Problem], completions: list[str]) -> list[Reward]:
    """Pays 1 if the package gives the answer the score 1, else 0.

    The answer is the text inside the last <answer> </answer>, or else the full completion.
    """
    answers = [answer_text(self.as_graded(problem, text))
               for problem, text in zip(problems, completions, strict=True)]
    verdicts = blamed(problems, self._scores(problems, answers), self._scores)
    return [Reward(0.0, False, v.reason) if isinstance(v, Fault) else v for v in verdicts]

  @functools.cached_property
  def _scorer(self) -> IsolatedCalls:
    gym = self.cfg.gym
    return IsolatedCalls(SCORER.format(name=gym.name, size=gym.size, options=gym.options),
                         cpu=CPU, wall=WALL, quick=QUICK, budget=BUDGET)

  def _scores(self, problems: list[Problem], answers: list[str]) -> list[Reward | Fault]:
    """Returns the scorer's verdict on each answer; equal ones of a problem are asked once."""
    rows = [(problem.id, answer) for problem, answer in zip(problems, answers, strict=True)]
    distinct = list(dict.fromkeys(rows))
    scores = self._scorer.run([(answer, self._entry_of(name)) for name, answer in distinct])
    verdicts = {row: score if isinstance(score, Fault) else Reward(float(score == 1), score == 1,
                                                                   rung="scorer")
                for row, score in zip(distinct, scores, strict=True)}
    return [verdicts[row] for row in rows]

  def _entry_of(self, name: str) -> dict:
    kind, index = name.split("-")
    return self._entry(kind, int(index))

  def longest_prompt(self) -> int:
    """Returns the tokens of the longest training prompt; with `limits`, of the first PROBE."""
    if self.limits is not None:
      return max(len(self.render(self._fitting(i))) for i in range(min(PROBE, self.cfg.gym.size)))
    return max(len(self.render(self._problem("train", i))) for i in range(self.cfg.gym.size))

  def longest_demonstration(self) -> int:
    """Returns the tokens of the longest demonstration, with the end of sequence; 0 without any.

    With `limits`, only the first PROBE demonstrations are looked at.
    """
    if not self.has_demonstrations:
      return 0
    indices = range(min(PROBE, self.cfg.gym.size) if self.limits else self.cfg.gym.size)
    return max(len(self.demonstration(self._fitting(i))) for i in indices)

  def _fitting(self, index: int) -> Problem:
    for attempt in range(PROBE):
      # A fixed walk through the data set, the same on every machine and after every restart.
      problem = self._problem("train", (index + attempt * STRIDE) % self.cfg.gym.size)
      if self._fits(problem):
        return problem
    raise ConfigError(
        f"rollout.max_prompt_tokens = {self.limits.max_prompt_tokens}, rollout.max_new_tokens = "
        f"{self.limits.max_new_tokens}: task.gym.name = {self.cfg.gym.name!r} hardly gives "
        f"problems that fit; one has a prompt of {len(self.render(problem))} tokens. "
        "Fix: a longer row, or easier task.gym.options.")

  def _fits(self, problem: Problem) -> bool:
    if self.limits is None:
      return True
    prompt = len(self.render(problem))
    answer = 0 if problem.demonstration is None else len(self.demonstration(problem))
    return prompt <= self.limits.max_prompt_tokens and answer <= self.limits.max_new_tokens

  def _problem(self, kind: str, index: int) -> Problem:
    entry = self._entry(kind, index)
    answer = entry["answer"]
    demonstration = answer if isinstance(answer, str) and answer.strip() else None
    answer_text = "" if answer is None else str(answer)
    return Problem(entry["question"], answer_text, demonstration, f"{kind}-{index}")

  def _make_entry(self, kind: str, index: int) -> dict:
    return self._sets[kind][index]


def answer_text(completion: str) -> str:
  """Returns the text inside the last complete <answer> </answer>, or else the full completion.

  Only what follows a thinking block counts.
  """
  completion = after_thinking(completion)
  answers = ANSWER.findall(completion)
  return (answers[-1] if answers else completion).strip()


def _create(cfg, seed: int, size: int):
  """Returns a data set of the package.

  Raises:
    ConfigError: the package is missing, or refuses the name or the options.
  """
  try:
    import reasoning_gym
    from reasoning_gym.factory import DATASETS
  except ImportError as error:
    raise ConfigError(
        f"task.name = 'reasoning_gym': the package reasoning-gym is missing ({error}). "
        f"Fix: {installing('gym')} (it needs a C compiler).") from error
  if cfg.name not in DATASETS:
    raise ConfigError(
        f"task.gym.name = {cfg.name!r}: no such data set; there are {', '.join(sorted(DATASETS))}."
        + did_you_mean(cfg.name, DATASETS))
  try:
    options = json.loads(cfg.options)
    return reasoning_gym.create_dataset(cfg.name, seed=seed, size=size, **options)
  except (ValueError, RecursionError, TypeError, AssertionError, AttributeError) as error:
    raise ConfigError(
        f"task.gym.options = {cfg.options!r} for task.gym.name = {cfg.name!r}: {error}. "
        "Fix: a JSON object of the data set's own options.") from error
