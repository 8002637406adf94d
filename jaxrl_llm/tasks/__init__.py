"""Prompts and verifiers."""

from jaxrl_llm.config import RolloutConfig, TaskConfig
from jaxrl_llm.tasks.arithmetic import ModularChain
from jaxrl_llm.tasks.countdown import Countdown
from jaxrl_llm.tasks.dataset import Dataset
from jaxrl_llm.tasks.reasoning_gym import ReasoningGym
from jaxrl_llm.tasks.tool_arithmetic import ToolArithmetic

TASKS = {
    "modular_chain": ModularChain,
    "countdown": Countdown,
    "tool_arithmetic": ToolArithmetic,
    "dataset": Dataset,
    "reasoning_gym": ReasoningGym,
}


def make_task(cfg: TaskConfig, seed: int, batch_size: int, *, tokenizer=None,
              limits: RolloutConfig | None = None):
  """Returns the task that `cfg.name` names.

  Args:
    seed: seeds the training problems: their numbers, or their order.
    batch_size: problems per batch, over all processes.
    tokenizer: the checkpoint's tokenizer. None: the task's own, which is one token per character,
      or per byte for dataset and reasoning_gym.
    limits: longer problems than `rollout.max_prompt_tokens` and `rollout.max_new_tokens` allow are
      dropped. None: no limit.

  Raises:
    ConfigError: values, files or a tokenizer that do not fit, each with its fix.
  """
  return TASKS[cfg.name](cfg, seed, batch_size, tokenizer, limits)


__all__ = [
    "TASKS",
    "Countdown",
    "Dataset",
    "ModularChain",
    "ReasoningGym",
    "ToolArithmetic",
    "make_task",
]
