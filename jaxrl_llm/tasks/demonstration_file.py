"""The demonstrations that a warm start reads from a file."""

import dataclasses
from typing import cast

from jaxrl_llm.config import ConfigError, DataConfig, RolloutConfig, TaskConfig, WarmStartConfig
from jaxrl_llm.tasks.dataset import Dataset
from jaxrl_llm.types import Task


class Demonstrations(Dataset):
  """Problems of a file with worked completions."""

  key, reads_answers = "warm_start.path", False

  def fit(self, width: int) -> None:
    """Leaves out rows of more than `width` tokens.

    Raises:
      ConfigError: a row has no demonstration, or no row is left.
    """
    (rows,) = self._train
    for problem in rows:
      if problem.demonstration is None:
        raise ConfigError(
            f"warm_start.path = {self.cfg.data.path!r}: row {problem.id!r} has no demonstration. "
            "Fix: warm_start.mapping, or warm_start.completion_column.")
    lengths = [len(self.render(problem)) + len(self.demonstration(problem)) for problem in rows]
    fitting = [problem for problem, length in zip(rows, lengths, strict=True) if length <= width]
    if not fitting:
      raise ConfigError(
          f"warm_start.path = {self.cfg.data.path!r}: no row fits; the longest has {max(lengths)} "
          f"tokens. Fix: rollout.max_prompt_tokens + rollout.max_new_tokens >= {max(lengths)}.")
    self.ask([fitting])


def of_file(warm: WarmStartConfig, task_cfg: TaskConfig, rollout: RolloutConfig, seed: int,
            task: Task) -> Task:
  """Returns the task that asks the rows of `warm.path`.

  Args:
    task: of the run, whose tokenizer is used and whose held-out problems are left out.

  Raises:
    ConfigError: the file does not fit.
  """
  # Completions fill the column of answers, which are not read.
  data_cfg = DataConfig(path=warm.path, split=warm.split, mapping=warm.mapping,
                        prompt_column=warm.prompt_column, answer_column=warm.completion_column,
                        demonstration_column=warm.completion_column, verifier="exact")
  if warm.mapping != "auto":
    columns = ("prompt_column", "answer_column", "demonstration_column")
    defaults = {name: getattr(DataConfig, name) for name in columns}
    data_cfg = dataclasses.replace(data_cfg, **defaults)
  file_cfg = TaskConfig("dataset", heldout_problems=0, prompt=task_cfg.prompt, data=data_cfg)
  try:
    demonstrations = Demonstrations(file_cfg, seed, warm.batch_size, task.tokenizer)
  except ConfigError as error:
    message = str(error).replace("task.data.answer_column", "warm_start.completion_column")
    message = message.replace(" Or task.data.bad_rows=drop.", "")  # not a key of the warm start
    raise ConfigError(message.replace("task.data.", "warm_start.")) from error
  heldout = task_cfg.heldout_problems
  demonstrations.fit(rollout.row_length)
  demonstrations.leave_out(task.heldout(heldout) if heldout else [], "the held-out problems")
  return cast(Task, demonstrations)  # its class attributes fit, which a protocol cannot say
