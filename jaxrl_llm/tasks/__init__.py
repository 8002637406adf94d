"""Prompts and verifiers: the tasks, by name."""

from jaxrl_llm.config import RolloutConfig, TaskConfig
from jaxrl_llm.late import Late
from jaxrl_llm.registry import TASKS, Entry
from jaxrl_llm.tasks import keys
from jaxrl_llm.tasks.data import DatasetKeys


def register(name: str, numbers: type | None = None, *, replace: bool = False, **defaults):
  """Returns a decorator that enters a task: a class like `task_base.TaskBase`.

  It is made as `task(cfg, seed, batch_size, tokenizer, limits)`; its own keys, the hyperparameters,
  are read as `cfg.key`. Arguments as in `registry.Table.register`.
  """
  return TASKS.register(name, numbers, replace=replace, **defaults)


# A run imports the task that it names, and no other.
for _name, _keys, _path in (
    ("modular_chain", keys.ModularChainKeys, "arithmetic.ModularChain"),
    ("recurrence", keys.RecurrenceKeys, "recurrence.Recurrence"),
    ("dataset", DatasetKeys, "dataset.Dataset"),
    ("reasoning_gym", keys.ReasoningGymKeys, "reasoning_gym.ReasoningGym"),
):
  TASKS.add(_name, Entry(Late(f"jaxrl_llm.tasks.{_path}"), _keys))


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


__all__ = ["TASKS", "make_task", "register"]
