"""The demonstrations of a warm start: the task's, or a file's."""

from transformers import PreTrainedTokenizerBase

from jaxrl_llm.config import RolloutConfig, TaskConfig, WarmStartConfig
from jaxrl_llm.tasks import make_task
from jaxrl_llm.types import Task


def demonstrating(warm: WarmStartConfig, task_cfg: TaskConfig, rollout: RolloutConfig, seed: int,
                  tokenizer: PreTrainedTokenizerBase | None) -> Task:
  """Returns the task whose demonstrations a warm start imitates.

  Args:
    task_cfg, rollout: sections of the run.
    seed: seed of the order.
    tokenizer: of the checkpoint in `pretrained`; None without one.

  Raises:
    ConfigError: the file of `warm_start.path` does not fit.
  """
  task = make_task(task_cfg, seed, warm.batch_size, limits=rollout, tokenizer=tokenizer)
  if not warm.path:
    return task
  from jaxrl_llm.tasks import demonstration_file

  return demonstration_file.of_file(warm, task_cfg, rollout, seed, task)
