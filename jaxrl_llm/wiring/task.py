"""The task of a run, and what it must fit: the row, the vocabulary, the warm start, the tool.

Checks that do not depend on each other are collected (`fields.Problems`), so that a file of the
user's that does not fit in five ways is mended after one message.
"""

import logging
from typing import NamedTuple

from jaxrl_llm.config import (
  ConfigError,
  EnvironmentConfig,
  RewardConfig,
  RolloutConfig,
  TaskConfig,
  ToolConfig,
  WarmStartConfig,
)
from jaxrl_llm.fields import Problems
from jaxrl_llm.registry import REWARDS
from jaxrl_llm.rollouts.environment_table import OF_TOOL
from jaxrl_llm.tasks import make_task
from jaxrl_llm.tasks.demonstrations import demonstrating
from jaxrl_llm.tasks.rewards import TASK, RewardedTask, rewarded
from jaxrl_llm.tasks.task_base import check_task, lacking_methods
from jaxrl_llm.types import Task
from jaxrl_llm.wiring.sampler import tool_of

logger = logging.getLogger(__name__)


class TaskSections(NamedTuple):
  """The config sections that a task is made from, and the limits that it must fit.

  Attributes:
    task, reward, rollout, tool, environment, warm_start: sections of the config.
    seed: seed of the order.
    vocab_size: tokens that the network has.
  """

  task: TaskConfig
  reward: RewardConfig
  rollout: RolloutConfig
  tool: ToolConfig
  environment: EnvironmentConfig
  warm_start: WarmStartConfig
  seed: int
  vocab_size: int

  @classmethod
  def of(cls, cfg) -> "TaskSections":
    """Returns the sections of a config that has the shapes of its checkpoint."""
    return cls(cfg.task, cfg.reward, cfg.rollout, cfg.tool, cfg.environment, cfg.warm_start,
               cfg.seed, cfg.model.vocab_size)


def checked_task(s: TaskSections, tokenizer, problems: Problems, *,
                 training: bool = True) -> Task | None:
  """Returns the task of a config; what does not fit is added to `problems`.

  Args:
    tokenizer: of the checkpoint in `pretrained`; None without one.
    training: False: it is only evaluated, so that the task needs no training problem.

  Returns:
    None where the task cannot be made as the config says.
  """
  try:
    task = rewarded(make_task(s.task, s.seed, s.rollout.prompts, tokenizer=tokenizer,
                              limits=s.rollout), s.reward)
  except ConfigError as error:
    problems.add(error)
    return None
  unmet = getattr(task, "unmet", None)
  if unmet is not None and TASK in REWARDS.parts(s.reward.name):
    problems.add(unmet)
  with problems:
    # With other problems the sizes are unchecked, and a batch may be too large to list.
    check_task(s.task, task, s.rollout.prompts if training and not problems.errors else 0)
  if lacking_methods(task):
    return task  # reported above; nothing else can be checked
  with problems:
    if s.warm_start.path and s.warm_start.steps:  # refuses a bad file
      demonstrating(s.warm_start, s.task, s.rollout, s.seed, tokenizer)
  if tokenizer is not None and s.task.prompt.style != "chat" and getattr(
      tokenizer, "chat_template", None):
    logger.warning("task.prompt.style = %r leaves out the chat template of `pretrained`, by which "
                   "chat models are tuned. Fix: task.prompt.style=chat, unless it is a base model",
                   s.task.prompt.style)
  _check_fit(s, task, problems, tokenizer is not None)
  return task


def _check_fit(s: TaskSections, task: Task, problems: Problems, has_checkpoint: bool) -> None:
  """Adds what of the config does not fit a task, whose tokenizer is the checkpoint's or its own.
  """
  if not any("rollout.max_prompt_tokens" in error.fixes for error in problems.errors):
    with problems:
      _check_lengths(task, s.task.name, s.rollout)
  with problems:
    if s.warm_start.steps and not s.warm_start.path:
      _check_demonstrations(task, s.task.name, s.warm_start, s.rollout)
  with problems:
    if s.rollout.max_turns and s.environment.name == OF_TOOL:
      tool_of(s.tool, task, s.task.name, s.rollout.max_turns)
  with problems:
    _check_vocabulary(len(task.tokenizer), s.vocab_size, has_checkpoint)


def _check_lengths(task: Task, name: str, rollout: RolloutConfig) -> None:
  """Refuses prompts longer than the row's; `name` is task.name."""
  longest = task.longest_prompt()
  if longest > rollout.max_prompt_tokens:
    raise ConfigError(
        f"rollout.max_prompt_tokens = {rollout.max_prompt_tokens}: prompts of task.name = "
        f"{name!r} have up to {longest} tokens. Fix: rollout.max_prompt_tokens >= {longest}.",
        {"rollout.max_prompt_tokens": longest})


def _check_demonstrations(task: Task, name: str, warm: WarmStartConfig,
                          rollout: RolloutConfig) -> None:
  """Refuses demonstrations of a warm start that are absent or too long; `name` is task.name."""
  if not task.has_demonstrations:
    raise ConfigError(
        f"warm_start.steps = {warm.steps}: task.name = {name!r} has no "
        "demonstrations to imitate. Fix: warm_start.steps=0.", {"warm_start.steps": 0})
  longest_prompt, demonstration = task.longest_prompt(), task.longest_demonstration()
  room = max(rollout.max_prompt_tokens, longest_prompt) + rollout.max_new_tokens
  longest = longest_prompt + demonstration
  if longest > room:
    min_tokens = longest - max(rollout.max_prompt_tokens, longest_prompt)
    raise ConfigError(
        f"rollout.max_new_tokens = {rollout.max_new_tokens}: a prompt with its demonstration "
        f"has up to {longest} tokens. Fix: rollout.max_new_tokens >= {min_tokens}, or "
        "warm_start.steps=0.", {"rollout.max_new_tokens": min_tokens})


def _check_vocabulary(size: int, vocab_size: int, has_checkpoint: bool) -> None:
  """Refuses a tokenizer of `size` tokens that is larger than the model's vocabulary."""
  if size > vocab_size and has_checkpoint:
    raise ConfigError(
        f"pretrained: its tokenizer has {size} tokens, its weights rows for {vocab_size}. Fix: the "
        f"tokenizer of these weights, or, in transformers, model.resize_token_embeddings({size}) "
        "and save_pretrained.")
  if size > vocab_size:
    raise ConfigError(f"model.vocab_size = {vocab_size}: the tokenizer has {size} "
                      f"tokens. Fix: model.vocab_size >= {size}.", {"model.vocab_size": size})


def check_rewards(task: Task, heldout_problems: int) -> None:
  """Asks each of the user's own rewards for one verdict; raises as `RewardedTask.check`."""
  if isinstance(task, RewardedTask):
    problems = task.heldout(1) if heldout_problems else task.batch(1)
    completion = problems[0].demonstration or problems[0].answer
    task.check(problems[0], completion if isinstance(completion, str) else "")
