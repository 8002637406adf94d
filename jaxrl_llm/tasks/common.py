"""What every task does in the same way."""

import dataclasses
from collections.abc import Callable

from jaxrl_llm.config import RolloutConfig, TaskConfig
from jaxrl_llm.tasks import tokenizer as tokenizers
from jaxrl_llm.tasks.prompts import make_prompter
from jaxrl_llm.types import Problem, Reward


@dataclasses.dataclass
class TaskBase:
  """Rendering, demonstrations and sharding; a task adds `batch`, `heldout`, `reward` and the two
  longest lengths.

  Attributes:
    cfg: what is asked.
    seed: of the order, or of the draw, of training problems; the held-out ones are the same for
      every seed.
    batch_size: problems per batch, over all processes.
    tokenizer: the checkpoint's, or the task's own.
    limits: prompt and completion parts of a row, tokens; None: unlimited.
  """

  # names of the notation and the tool that rollouts need (rollouts/environment.py)
  protocol = tool = None

  cfg: TaskConfig
  seed: int
  batch_size: int
  tokenizer: object = dataclasses.field(default=None, compare=False)
  limits: RolloutConfig | None = None

  def __post_init__(self):
    self.own_tokenizer = self.tokenizer is None
    if self.own_tokenizer:
      self.tokenizer = self.make_tokenizer()
    self.prompt_ids: Callable[[str], list[int]] = make_prompter(self.cfg.prompt, self.tokenizer)

  def make_tokenizer(self):
    """The task's own tokenizer, where no checkpoint gives one: bytes cover every text."""
    return tokenizers.byte_tokenizer()

  @property
  def stop_ids(self) -> tuple[int, ...]:
    """Token ids that end a completion."""
    return tokenizers.stop_ids(self.tokenizer)

  @property
  def has_demonstrations(self) -> bool:
    """Whether every problem carries a worked completion, so that a warm start is possible."""
    return True

  def render(self, problem: Problem) -> list[int]:
    """Prompt ids."""
    return self.prompt_ids(problem.prompt)

  def demonstration(self, problem: Problem) -> list[int]:
    """Completion ids of the demonstrated answer, end of sequence included.

    Raises:
      ValueError: the problem has none.
    """
    if problem.demonstration is None:
      raise ValueError(
          f"problem {problem.id or problem.prompt!r} of task.name = {self.cfg.name!r} has no "
          "demonstration; fix: warm_start.steps=0")
    return tokenizers.encode(self.tokenizer, problem.demonstration) + [self.tokenizer.eos_token_id]

  def demonstration_mask(self, problem: Problem) -> list[bool]:
    """True on the ids of `demonstration` that the policy writes, which are those to imitate: all,
    where no tool is.
    """
    return [True] * len(self.demonstration(problem))

  def rewards(self, problems: list[Problem], completions: list[str]) -> list[Reward]:
    """The verdict of each pair, in order."""
    return [self.reward(problem, text) for problem, text in zip(problems, completions, strict=True)]

  def reward(self, problem: Problem, completion: str) -> Reward:
    raise NotImplementedError
