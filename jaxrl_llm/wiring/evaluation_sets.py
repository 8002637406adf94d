"""The evaluation sets of a run: the held-out problems of its task, and `evaluation.sets`."""

import dataclasses
import logging
import zlib
from collections.abc import Sequence

import jax

from jaxrl_llm.config import (
  Config,
  ConfigError,
  DataConfig,
  EvaluationConfig,
  EvaluationSetConfig,
  RolloutConfig,
  TaskConfig,
)
from jaxrl_llm.config.evaluation import set_metric
from jaxrl_llm.config.task import OF_TASK
from jaxrl_llm.parallel import processes
from jaxrl_llm.registry import MAPPINGS, VERIFIERS
from jaxrl_llm.tasks import make_task
from jaxrl_llm.types import Problem, Task

TAKEN = ("component",)  # eval/component/* are metrics of rewards
VERIFIER_KEYS = ("verifier_workers", "verifier_timeout")
logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
  """Held-out problems, and how they are asked and judged.

  Attributes:
    name: in `evaluation.sets`; empty for the held-out problems of the run's own task.
    task: renders and judges the problems; its tokenizer is the run's.
    problems: at least one.
    cfg: what the task was made from.
    rollout: the lengths of a completion and its prompt, what ends it, and how many are sampled
      together.
    seed: seed of the run.
    samples, temperature: of this set; None: as in the run, or in the command that evaluates.
  """

  name: str
  task: Task
  problems: list[Problem]
  cfg: TaskConfig
  rollout: RolloutConfig
  seed: int
  samples: int | None = None
  temperature: float | None = None

  def named(self, metrics: dict[str, float]) -> dict[str, float]:
    """Returns metrics eval/* under the names that they have for this set."""
    return {set_metric(self.name, metric): value for metric, value in metrics.items()}

  @property
  def too_long(self) -> int:
    """Problems that were left out because their prompts are too long."""
    return getattr(self.task, "counts", {}).get("heldout_too_long", 0)

  def key(self, key: jax.Array) -> jax.Array:
    """Returns the key of this set's samples: rows of two sets with the same id have different
    noise.
    """
    return jax.random.fold_in(key, zlib.crc32(self.name.encode())) if self.name else key


def make_sets(cfg: Config, task: Task, needed: bool = True) -> list[EvaluationSet]:
  """Returns the task's own held-out problems, if it has any, and the sets of a resolved config.

  Args:
    needed: False: there may be none, which the log says.

  Raises:
    ConfigError: nothing is evaluated; a file, a prompt or a length of a set does not fit.
  """
  size = cfg.task.heldout_problems
  run = EvaluationSet("", task, [], cfg.task, cfg.rollout, cfg.seed)
  sets = [dataclasses.replace(run, problems=task.heldout(size))] if size else []
  sets += [_make_set(name, section, run) for name, section in cfg.evaluation.chosen]
  if not sets:
    what = "task.heldout_problems = 0 without evaluation.sets: nothing is evaluated"
    if needed:
      raise ConfigError(f"{what}. Fix: task.heldout_problems >= 1, or evaluation.sets.<name>.path, "
                        "of --config.")
    logger.warning("%s during the run, and no best parameters are kept", what)
  for heldout_set in sets:
    if len(heldout_set.problems) < processes.count():
      key = "task.heldout_problems"
      if heldout_set.name:
        key = f"evaluation.sets.{heldout_set.name}.problems"
      raise ConfigError(f"{key}: {len(heldout_set.problems)} problems are too few for "
                        f"{processes.count()} processes, each of which asks some. "
                        f"Fix: {key}={processes.count()} or more.")
  return sets


def leave_out(task: Task, sets: Sequence[EvaluationSet]) -> None:
  """Leaves what further sets ask out of the training, where a task lists its problems.

  Raises:
    ConfigError: nothing else is left.
  """
  for heldout_set in sets:
    if heldout_set.name and hasattr(task, "leave_out"):
      task.leave_out(heldout_set.problems, f"evaluation.sets.{heldout_set.name}")


def _make_set(name: str, section: EvaluationSetConfig, run: EvaluationSet) -> EvaluationSet:
  """Returns a set's problems and task; messages of the task get the set's keys.

  Args:
    run: the run's own set, whose tokenizer, lengths and seed serve all.
  """
  key = f"evaluation.sets.{name}"
  if name in TAKEN:
    raise ConfigError(f"{key}: this name is taken by metrics of rewards. Fix: another name.")
  if not section.path:
    raise ConfigError(f"{key}.path is empty. Fix: {key}.path=<a .jsonl or .parquet file, a folder "
                      f"of `datasets`, or a hub name>, or {key}.problems=0, which leaves it out.")
  of_task = task_config(section, run.cfg)
  try:
    task = make_task(of_task, run.seed, 1, tokenizer=run.task.tokenizer, limits=run.rollout)
    problems = task.heldout(section.problems)
    if task.unmet is not None:
      raise task.unmet
  except ConfigError as error:
    raise ConfigError(_with_set_keys(str(error), key, section)) from error
  return EvaluationSet(name, task, problems, of_task, run.rollout, run.seed, section.samples,
                       section.temperature)


def task_config(section: EvaluationSetConfig, run: TaskConfig) -> TaskConfig:
  """Returns the config of a set's task. It checks answers in as many processes, and as long, as the
  run.
  """
  data_cfg = DataConfig(heldout_path=section.path, heldout_split=section.split,
                        heldout_too_long=section.too_long, mapping=section.mapping,
                        prompt_column=section.prompt_column, answer_column=section.answer_column,
                        id_column=section.id_column, verifier=section.verifier,
                        bad_rows=section.bad_rows)
  checks = {name: value for name, value in run.given if name in VERIFIER_KEYS}
  prompt = run.prompt if section.prompt.style == OF_TASK else section.prompt
  return TaskConfig("dataset", heldout_problems=section.problems, prompt=prompt, data=data_cfg,
                    **checks)


def _with_set_keys(message: str, key: str, section: EvaluationSetConfig) -> str:
  """Returns a message of the task, with the keys that the user has set."""
  for task_key, mine in (("task.data.heldout_too_long", "too_long"), ("task.data.heldout_", ""),
                       ("task.data.", ""), ("task.heldout_problems", "problems")):
    message = message.replace(task_key, f"{key}.{mine}")
  if section.prompt.style != OF_TASK:
    message = message.replace("task.prompt", f"{key}.prompt")
  return message


def check(evaluation: EvaluationConfig) -> None:
  """Refuses unknown mappings and verifiers, before a checkpoint is read.

  Raises:
    ConfigError: naming the key of the set.
  """
  for name, section in evaluation.chosen:
    try:
      for table, value in ((MAPPINGS, section.mapping), (VERIFIERS, section.verifier)):
        if value != DataConfig.verifier:
          table[value]  # raises
    except ConfigError as error:
      raise ConfigError(_with_set_keys(str(error), f"evaluation.sets.{name}", section)) from error
