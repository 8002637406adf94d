"""The user's own rewards, by name: of a completion or of a full group, also asynchronous.

A reward returns its components by name, `{"correct": 1.0, "short": (0.4, 0.1)}`: a value, or a
value and its weight (1 if left out). A row's reward is the weighted sum over the components of all
rewards that `reward.name` lists. A row counts as correct by the component `correct`, or by the
task's verdict if `task` is listed; without both there is no accuracy, only the mean reward.

A reward that gives no value leaves its row unscored, or is 0 if the text is at fault
(tasks/reward_faults.py).
"""

import dataclasses
import inspect
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from jaxrl_llm.config import RewardConfig
from jaxrl_llm.fields import PluginError
from jaxrl_llm.registry import REWARDS, Entry
from jaxrl_llm.sandbox.results import Fault
from jaxrl_llm.types import Problem, Reward, Task

if TYPE_CHECKING:  # a run imports the sandbox when something runs in it
  from jaxrl_llm.sandbox.isolated_calls import IsolatedCalls

TASK = "task"
UNREADABLE = "unreadable"  # the rung of a text that is wrong because a reward raises on it
LARGEST = float(np.finfo(np.float32).max)  # rewards are f32 on the devices
logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class RewardEntry(Entry):
  """A reward in the table.

  Attributes:
    function: `reward(problem, completion, cfg)` -> components, or with `group`
      `reward(problem, completions, cfg)` -> components of each. It may be `async`. `cfg` is an
      instance of the hyperparameters of all chosen rewards.
    group: whether it reads all completions of a problem in one call.
    isolated: whether its calls run in other processes, under the limits of the sandbox.
  """

  group: bool = False
  isolated: bool = False

  @property
  def asynchronous(self) -> bool:
    """Returns whether calls wait for something, and so run at the same time."""
    return inspect.iscoroutinefunction(self.function)


def register(name: str, numbers: type | None = None, *, group: bool = False,
             isolated: bool = False, replace: bool = False, **defaults):
  """Returns a decorator that enters a reward in the table; see `RewardEntry`.

  Every reward also has the time limit of a call, `reward.timeout`, and an `async` one the other
  hyperparameters of `Calls`.

  Args:
    name: one of the names in `reward.name`.
    numbers, replace, **defaults: as in `registry.Table.register`.
    group, isolated: see `RewardEntry`. An isolated reward may run a text, or take without end; it
      is defined in a file, has no network, and what it keeps between calls may be lost.

  Raises:
    ValueError: an isolated reward that is asynchronous.
  """
  def make(function: Callable, numbers: type) -> RewardEntry:
    asynchronous = inspect.iscoroutinefunction(function)
    if isolated and asynchronous:
      raise ValueError(f"reward {name!r}: isolated=True has no network to wait for. Fix: def in "
                       "place of async def, or leave isolated out")
    if name != TASK:
      from jaxrl_llm.tasks.reward_calls import Calls, Limit
      calls = Calls if asynchronous else Limit
      numbers = dataclasses.make_dataclass(f"{calls.__name__}_{name}", [], bases=(numbers, calls),
                                           frozen=True)
    return RewardEntry(function, numbers, group, isolated)

  return REWARDS.register(name, numbers, replace=replace, make=make, **defaults)


@register(TASK)
def of_task(problem: Problem, completion: str, cfg):
  """Placeholder for the task's own verdict, which `RewardedTask` asks for itself."""
  raise NotImplementedError


class RewardedTask:
  """A task whose completions are judged by the rewards of a config; all else is the task's.

  Args:
    cfg: names the rewards.
  """

  def __init__(self, task: Task, cfg: RewardConfig):
    self._task, self._parts, self._cfg = task, REWARDS.parts(cfg.name), REWARDS.numbers(cfg)
    self._logged: set[str] = set()
    self._isolated: dict[str, "IsolatedCalls"] = {}

  def __getattr__(self, name: str):
    if name.startswith("__") or name == "_task":
      raise AttributeError(name)
    return getattr(self._task, name)

  @property
  def places(self) -> dict[str, str]:
    """File and line of each of the user's own rewards, by name."""
    return {name: entry.where for name, entry in self._parts.items() if name != TASK}

  def reward(self, problem: Problem, completion: str) -> Reward:
    """Returns the verdict on one completion, as a group of one."""
    return self.rewards([problem], [completion])[0]

  def rewards(self, problems: list[Problem], completions: list[str]) -> list[Reward]:
    """Returns the verdicts, each completion being a group of one."""
    return self.group_rewards(problems, completions)

  def group_rewards(self, problems: list[Problem], completions: list[str]) -> list[Reward]:
    """Returns the verdicts in the order of the completions.

    Args:
      problems: one per group.
      completions: the same number for each problem, group after group.
    """
    verdicts = [self._verdicts(name, entry, problems, completions)
                for name, entry in self._parts.items()]
    return [total(row) for row in zip(*verdicts, strict=True)]

  def check(self, problem: Problem, completion: str) -> None:
    """Asks each reward once, so that a wrong one is refused before a run begins.

    Raises:
      ConfigError: a reward raises, or returns something else than components. A call that fails
        after `await` is only warned of: a server may come up later.
    """
    owners: dict[str, str] = {}
    for name, entry in self._parts.items():
      if name == TASK:
        continue
      with REWARDS.blamed(name):
        once = dataclasses.replace(self._cfg, retries=0) if entry.asynchronous else self._cfg
        outcome, = self._outcomes(name, entry, [problem], [completion], once)
        if isinstance(outcome, Fault) and entry.asynchronous:
          self._log(name, entry, outcome)
          continue
        if isinstance(outcome, Fault):
          fix = ". Fix: calls that end, or a higher reward.timeout"
          raise PluginError(f"reward {name!r} ({entry.where}): {outcome.reason}"
                            + fix * outcome.reason.startswith("timeout"))
        for part, _ in verdict(name, outcome).components:
          if owners.setdefault(part, name) != name:
            raise ValueError(f"component {part!r} is also one of reward {owners[part]!r}; choose "
                             "another name")

  def _verdicts(self, name: str, entry: RewardEntry, problems: list[Problem],
                completions: list[str]) -> list[Reward]:
    """Returns one reward's verdict on each completion."""
    size = len(completions) // len(problems)
    if name == TASK:
      return self._task.rewards([p for p in problems for _ in range(size)], completions)

    from jaxrl_llm.tasks.reward_faults import blamed
    def ask(problems: list[Problem], texts: list[str]) -> list[Reward | Fault]:
      outcomes = self._outcomes(name, entry, problems, texts, self._cfg)
      return [verdict_or_fault(name, outcome) for outcome in outcomes]

    rows, out = [p for p in problems for _ in range(size)], []
    given = ask(problems, completions)
    for before, after in zip(given, blamed(rows, given, ask), strict=True):
      if isinstance(before, Fault):
        self._log(name, entry, before, wrong=isinstance(after, Reward))
      out.append(Reward(0.0, False, after.reason) if isinstance(after, Fault) else after)
    return out

  def _outcomes(self, name: str, entry: RewardEntry, problems: list[Problem],
                completions: list[str], cfg) -> list:
    """Returns what a reward returned for each completion, or a `Fault`."""
    from jaxrl_llm.tasks.reward_calls import call_reward, isolated_calls
    if entry.isolated and name not in self._isolated:
      self._isolated[name] = isolated_calls(name, entry, cfg.timeout)
    return call_reward(f"reward {name!r} ({entry.where})", entry, problems, completions, cfg,
                       self._isolated.get(name))

  def _log(self, name: str, entry: RewardEntry, fault: Fault, *, wrong: bool = False) -> None:
    """Logs each kind of failure once."""
    if (key := f"{name}: {fault.reason.split(':')[0]}: {wrong}") not in self._logged:
      self._logged.add(key)
      logger.warning("reward %r (%s): %s; such rows are %s", name, entry.where, fault.reason,
                     "wrong (0), as it scores another text of the problem" if wrong else
                     "unscored and left out of the update")


def verdict_or_fault(name: str, returned) -> Reward | Fault:
  """Returns the verdict of what a reward returned; a wrong kind of value is the reward's fault."""
  try:
    return returned if isinstance(returned, Fault) else verdict(name, returned)
  except (TypeError, ValueError) as error:
    return Fault(f"{type(error).__name__}: {error}", False)


def components(name: str, returned) -> dict[str, tuple[float, float]]:
  """Returns (value, weight) of each component that the reward of this name returned.

  Raises:
    TypeError: neither a number nor a dict of numbers or pairs of numbers.
    ValueError: a number that is not finite in float32.
  """
  if _is_number(returned):
    returned = {name: returned}
  if not isinstance(returned, dict) or not returned:
    raise TypeError("a reward returns a number, or components such as {'correct': 1.0}; this one "
                    f"returned {repr(returned)[:80]}")
  out = {}
  for part, component in returned.items():
    pair = component if isinstance(component, tuple) else (component, 1.0)
    if not isinstance(part, str) or len(pair) != 2 or not all(map(_is_number, pair)):
      raise TypeError(f"component {part!r} = {repr(component)[:80]}: a number, or a number and its "
                      "weight, was expected")
    try:
      value, weight = map(float, pair)
      finite = all(abs(number) <= LARGEST for number in (value, weight, value * weight))
    except OverflowError:  # an integer beyond all floats
      finite = False
    if not finite:
      raise ValueError(f"component {part!r} = {repr(component)[:80]} is not finite in float32")
    out[part] = value, weight
  return out


def _is_number(value) -> bool:
  """Returns whether a value is a number of Python or numpy."""
  return isinstance(value, (bool, int, float)) or (getattr(value, "shape", None) == ()
                                                   and hasattr(value, "__float__"))


def verdict(name: str, returned) -> Reward:
  """Returns the verdict of what a reward returned; raises as `components`.

  Its `correct` is None where the reward does not say.
  """
  if isinstance(returned, Reward):
    return returned
  parts = components(name, returned)
  value = sum(value * weight for value, weight in parts.values())
  if abs(value) > LARGEST:
    raise ValueError(f"the components add up to {value}, which is not finite in float32")
  correct = parts["correct"][0] > 0 if "correct" in parts else None
  return Reward(value, correct, None, tuple((name, pair[0]) for name, pair in parts.items()))


def total(verdicts: tuple[Reward, ...]) -> Reward:
  """Returns the sum of several rewards' verdicts on one completion.

  It is unscored where one of them is. The first that says whether the row is correct counts.
  """
  reasons = [v.unscored_reason for v in verdicts if v.unscored_reason is not None]
  if reasons:
    return Reward(0.0, False, reasons[0])
  value = sum(v.value for v in verdicts)
  correct_flags = [v.correct for v in verdicts if v.correct is not None]
  components = [pair for v in verdicts for pair in v.components or ((TASK, v.value),)]
  rungs = [v.rung for v in verdicts if v.rung is not None]
  rung = UNREADABLE if UNREADABLE in rungs else next(iter(rungs), None)
  return Reward(value, next(iter(correct_flags), None), None, tuple(components), rung)


def refuse_if_all_failed(task: Task, given: list[Reward]) -> None:
  """Ends a run whose own rewards could not score any completion of a rollout batch.

  Args:
    task: of the run; the task's own verdicts may leave out what they like.
    given: the verdicts on this process's rows.

  Raises:
    PluginError: naming the rewards, their places and a reason.
  """
  reasons = [verdict.unscored_reason for verdict in given]
  if isinstance(task, RewardedTask) and reasons and all(reason is not None for reason in reasons):
    places = ", ".join(f"{name!r} ({location})" for name, location in task.places.items())
    raise PluginError(
        f"reward {places}: all {len(reasons)} completions of a rollout batch are unscored, so that "
        f"nothing would be trained; the first: {reasons[0]}. The last checkpoint is complete. Fix: "
        "the reward, or what it asks; a text that it cannot read is worth 0, and no reason to "
        "raise. The same command then resumes.")


def rewarded(task: Task, cfg: RewardConfig) -> Task:
  """Returns the task with a config's rewards in place of the task's verdict.

  Raises:
    ConfigError: an unknown name, or two rewards that read a number of the same name differently.
  """
  if cfg.name == TASK:
    return task
  return RewardedTask(task, cfg)
