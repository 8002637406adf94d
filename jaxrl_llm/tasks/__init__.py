"""Prompts and verifiers: the tasks, by name."""

from jaxrl_llm.config import RolloutConfig, TaskConfig
from jaxrl_llm.registry import TASKS
from jaxrl_llm.tasks.arithmetic import ModularChain, ModularChainKeys
from jaxrl_llm.tasks.countdown import Countdown, CountdownKeys
from jaxrl_llm.tasks.data import DatasetKeys
from jaxrl_llm.tasks.dataset import Dataset
from jaxrl_llm.tasks.reasoning_gym import ReasoningGym, ReasoningGymKeys
from jaxrl_llm.tasks.recurrence import Recurrence, RecurrenceKeys
from jaxrl_llm.tasks.tool_arithmetic import ToolArithmetic, ToolArithmeticKeys


def register(name: str, numbers: type | None = None, *, replace: bool = False, **defaults):
  """Returns a decorator that enters a task: a class like `task_base.TaskBase`.

  It is made as `task(cfg, seed, batch_size, tokenizer, limits)`; its own keys, the hyperparameters,
  are read as `cfg.key`. Arguments as in `registry.Table.register`.
  """
  return TASKS.register(name, numbers, replace=replace, **defaults)


register("modular_chain", ModularChainKeys)(ModularChain)
register("recurrence", RecurrenceKeys)(Recurrence)
register("countdown", CountdownKeys)(Countdown)
register("tool_arithmetic", ToolArithmeticKeys)(ToolArithmetic)
register("dataset", DatasetKeys)(Dataset)
register("reasoning_gym", ReasoningGymKeys)(ReasoningGym)


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
    ConfigError: values, files or a tokenizer that do not fit, each with its fix; a task that cannot
      be made, with its place.
  """
  entry = TASKS[cfg.name]
  with TASKS.blamed(cfg.name):
    return entry.function(cfg, seed, batch_size, tokenizer, limits)


__all__ = [
    "TASKS",
    "Countdown",
    "Dataset",
    "ModularChain",
    "ReasoningGym",
    "Recurrence",
    "ToolArithmetic",
    "make_task",
    "register",
]
