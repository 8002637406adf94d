"""The base of all tasks: rendering, demonstrations, stop ids, and rewards one by one."""

import dataclasses
import functools
from typing import Any, ClassVar, NamedTuple

from jaxrl_llm.config import RolloutConfig, TaskConfig
from jaxrl_llm.tasks import tokenizer as tokenizers
from jaxrl_llm.tasks.prompts import Prompter, make_prompter, opens_thought
from jaxrl_llm.types import Problem, Reward

KNOWN_PROMPTS = 4096  # prompts for which it is cached whether they open a thought


class Mistake(NamedTuple):
  """A step of a completion that does not follow from the steps before it.

  Attributes:
    place: of its character in the completion, from 0.
    kind: mistakes that are learnt and unlearnt together, for tables.
  """

  place: int
  kind: str


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
