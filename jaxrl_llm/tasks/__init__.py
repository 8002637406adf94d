"""Prompts and verifiers: the tasks, by name."""

from jaxrl_llm.config import RolloutConfig, TaskConfig
from jaxrl_llm.registry import TASKS, Entry
from jaxrl_llm.tasks.arithmetic import ModularChain, ModularChainKeys
from jaxrl_llm.tasks.countdown import Countdown, CountdownKeys
from jaxrl_llm.tasks.data import DatasetKeys
from jaxrl_llm.tasks.dataset import Dataset
from jaxrl_llm.tasks.reasoning_gym import ReasoningGym, ReasoningGymKeys
from jaxrl_llm.tasks.tool_arithmetic import ToolArithmetic, ToolArithmeticKeys

TASKS.add("modular_chain", Entry(ModularChain, ModularChainKeys))
TASKS.add("countdown", Entry(Countdown, CountdownKeys))
TASKS.add("tool_arithmetic", Entry(ToolArithmetic, ToolArithmeticKeys))
TASKS.add("dataset", Entry(Dataset, DatasetKeys))
TASKS.add("reasoning_gym", Entry(ReasoningGym, ReasoningGymKeys))


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
  return TASKS[cfg.name].function(cfg, seed, batch_size, tokenizer, limits)


__all__ = [
    "TASKS",
    "Countdown",
    "Dataset",
    "ModularChain",
    "ReasoningGym",
    "ToolArithmetic",
    "make_task",
]
