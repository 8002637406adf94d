"""The base of all tasks: rendering, demonstrations, stop ids, and rewards one by one."""

import dataclasses
import functools
from typing import Any, ClassVar

from jaxrl_llm.config import ConfigError, RolloutConfig, TaskConfig
from jaxrl_llm.registry import TASKS
from jaxrl_llm.tasks import tokenizer as tokenizers
from jaxrl_llm.tasks.prompts import Prompter, make_prompter, opens_thought
from jaxrl_llm.types import Problem, Reward, Task

TASK_METHODS = ("batch", "heldout", "render", "reward", "rewards", "longest_prompt",
                "longest_demonstration", "demonstration", "demonstration_mask")
KNOWN_PROMPTS = 4096  # prompts for which it is cached whether they open a thought


@dataclasses.dataclass
class TaskBase:
  """Base of all tasks.

  A task adds `batch`, `heldout`, `reward`, `longest_prompt` and `longest_demonstration`.

  Attributes:
    cfg: what is asked.
    seed: seeds the training problems: their numbers, or their order. Held-out problems are the same
      for every seed.
    batch_size: problems per batch, over all processes.
    tokenizer: the checkpoint's, or the task's own.
    limits: tokens that a row has for the prompt and for the completion. None: no limit.
  """

  # Names of the notation and the tool that the task's rollouts need (rollouts/environment.py).
  protocol: ClassVar[str | None] = None
  tool: ClassVar[str | None] = None

  cfg: TaskConfig
  seed: int
  batch_size: int
  tokenizer: Any = dataclasses.field(default=None, compare=False)
  limits: RolloutConfig | None = None

  def __post_init__(self):
    self.own_tokenizer = self.tokenizer is None
    if self.own_tokenizer:
      self.tokenizer = self.make_tokenizer()
    self.prompt_ids: Prompter = make_prompter(self.cfg.prompt, self.tokenizer)
    self._opens_thought = functools.lru_cache(KNOWN_PROMPTS)(
        lambda prompt: opens_thought(self.tokenizer, self.prompt_ids(prompt)))

  def make_tokenizer(self):
    """Returns the task's own tokenizer, used without a checkpoint: one token per byte."""
    return tokenizers.byte_tokenizer()

  @functools.cached_property
  def stop_ids(self) -> tuple[int, ...]:
    """Token ids that end a completion."""
    return tokenizers.stop_ids(self.tokenizer, chat=self.cfg.prompt.style == "chat")

  @property
  def has_demonstrations(self) -> bool:
    """Returns whether every problem has a demonstration, so that a warm start is possible."""
    return True

  def render(self, problem: Problem) -> list[int]:
    """Returns the prompt ids."""
    return self.prompt_ids(problem.prompt, problem.context)

  def as_graded(self, problem: Problem, completion: str) -> str:
    """Returns a completion with the thinking tag before it that its prompt left open.

    Chat templates of reasoning models end in `<think>`. Without the tag, a completion that is cut
    off in mid-thought would look like an answer.
    """
    return f"<think>{completion}" if self._opens_thought(problem.prompt) else completion

  def demonstration(self, problem: Problem) -> list[int]:
    """Returns the completion ids of the demonstrated answer, with the end of sequence.

    Raises:
      ValueError: the problem has none.
    """
    if problem.demonstration is None:
      raise ValueError(
          f"problem {problem.id or problem.prompt!r} of task.name = {self.cfg.name!r} has no "
          "demonstration; fix: warm_start.steps=0")
    return tokenizers.encode(self.tokenizer, problem.demonstration) + [self.tokenizer.eos_token_id]

  def demonstration_mask(self, problem: Problem) -> list[bool]:
    """Marks the ids of `demonstration` that the policy writes, and so imitates: all without a tool.
    """
    return [True] * len(self.demonstration(problem))

  def rewards(self, problems: list[Problem], completions: list[str]) -> list[Reward]:
    """Returns the reward of each pair, in order."""
    return [self.reward(problem, text) for problem, text in zip(problems, completions, strict=True)]

  def reward(self, problem: Problem, completion: str) -> Reward:
    raise NotImplementedError


def lacking_methods(task: Task) -> list[str]:
  """Returns the methods and attributes of a task that this one does not have."""
  return [*(name for name in TASK_METHODS if not callable(getattr(task, name, None))),
          *(name for name in ("tokenizer", "stop_ids") if not hasattr(task, name))]


def check_task(cfg: TaskConfig, task: Task, prompts: int) -> None:
  """Asks the task for the problems that are needed: held-out ones, and a batch.

  Args:
    prompts: problems of a batch; 0: none is needed.

  Raises:
    ConfigError: naming the place of a task that raises, lacks a method, or returns another kind.
  """
  with TASKS.blamed(cfg.name):
    if lacking := lacking_methods(task):
      raise TypeError(f"it lacks {', '.join(lacking)}; TaskBase has the parts that " "tasks share")
    size = cfg.heldout_problems
    problems = task.heldout(size) if size else []
    if size < 0 and not problems:
      raise ConfigError(f"task.heldout_problems = {size} stands for all problems; task.name = "
                        f"{cfg.name!r} makes as many as it is asked for. Fix: a number.")
    if (len(problems) != size >= 0) or (size and not isinstance(problems[0], Problem)):
      raise TypeError(f"heldout({size}) returned {_kinds(problems)}; as many Problems were "
                      "expected")
    if problems and TASKS[cfg.name].of_plugin:
      _check_verdict(task, problems[0])
    if not prompts:
      return
    batch = task.batch(1)
    if len(batch) != prompts or not isinstance(batch[0], Problem):
      raise TypeError(f"batch(1) returned {_kinds(batch)}; "
                      f"rollout.prompts = {prompts} Problems were expected")


def _kinds(values: list) -> str:
  """Returns the number of values, and the type of the first one."""
  return f"{len(values)} of {type(next(iter(values), None)).__name__}"


def _check_verdict(task: Task, problem: Problem) -> None:
  """Renders a problem of a plugin's task, and asks for the verdict on one completion."""
  task.render(problem)
  text = problem.demonstration or problem.answer
  verdicts = list(task.rewards([problem], [text if isinstance(text, str) else ""]))
  if len(verdicts) != 1 or not isinstance(verdicts[0], Reward):
    raise TypeError(f"rewards of one completion returned {verdicts!r}; a types.Reward was expected")
