"""Problems from files: jsonl, parquet, folders of `datasets`, hub names."""

import logging

from jaxrl_llm.fields import ConfigError, refuse_unread
from jaxrl_llm.registry import VERIFIERS
from jaxrl_llm.tasks import problem_table, verifiers
from jaxrl_llm.tasks.data import AUTO
from jaxrl_llm.tasks.mappings import make_mapping
from jaxrl_llm.tasks.order import rows_of_batch, share
from jaxrl_llm.tasks.task_base import TaskBase
from jaxrl_llm.types import Problem, Reward

logger = logging.getLogger(__name__)


class Dataset(TaskBase):
  """Asks the rows of `task.data.path`, each once per epoch.

  The order depends only on (seed, epoch) (`order.rows_of_batch`), so a resumed run needs only its
  batch index. Held-out problems come from `task.data.heldout_path`, or without it from the end of
  `path`. A training row with the text of a held-out problem is dropped. With `heldout_path` alone
  the task serves evaluations only.

  Attributes:
    counts: rows of `path`: read = kept (for training) + bad + too_long + duplicates (of an id, or
      of a held-out text) + heldout (split off its end). `heldout_too_long` counts the problems of
      `heldout_path` that were left out for their length.
  """

  def __post_init__(self):
    super().__post_init__()
    data = self.cfg.data
    refuse_unread(data, "task.data.")
    self._mapping = make_mapping(data)
    self.verifier = self._mapping.verifier if data.verifier == AUTO else data.verifier
    VERIFIERS[self.verifier]  # refuses an unknown name
    if self.verifier == "math":
      verifiers.require_math()
    limit = None if self.limits is None else self.limits.max_prompt_tokens
    self._heldout, lengths, too_long = self._separate(limit) if data.heldout_path else ([], [], 0)
    self._train, self._longest = [], max(lengths, default=0)
    if data.path or not data.heldout_path:
      self._train_on(self._load("path", data.path, data.split, limit), too_long)
    else:
      self.counts = {"read": 0, "kept": 0, "too_long": 0, "duplicates": 0, "heldout": 0,
                     "heldout_too_long": too_long}
    self._demonstrated = all(problem.demonstration is not None for problem in self._train)
    logger.info("task.data.path = %s: %s", data.path, self.counts)

  def _separate(self, limit: int | None) -> tuple[list[Problem], list[int], int]:
    """Returns the held-out problems of a file of their own, their lengths in tokens, and how many
    were left out because they exceed `limit`.
    """
    data, wanted = self.cfg.data, self.cfg.heldout_problems
    dropped = data.heldout_too_long == "drop"
    table = self._load("heldout_path", data.heldout_path, data.heldout_split, None)
    problems, lengths, longer = [], [], []
    for problem, length in zip(table.problems, table.lengths, strict=True):
      if limit is not None and length > limit:
        # Behind the last problem that is asked, a long one troubles nobody.
        longer += [length] if wanted < 0 or len(problems) < wanted else []
        continue
      problems.append(problem)
      lengths.append(length)
    if longer and not dropped:
      raise ConfigError(
          f"rollout.max_prompt_tokens = {limit}: {len(longer)} prompts of task.data.heldout_path = "
          f"{data.heldout_path!r} are longer; the longest has {max(longer)} tokens. Fix: "
          f"rollout.max_prompt_tokens >= {max(longer)}, or task.data.heldout_too_long=drop, which "
          "leaves them out and counts them.")
    return problems, lengths, len(longer)

  def _train_on(self, train: problem_table.ProblemTable, heldout_too_long: int) -> None:
    """Takes the training problems and, without a file of their own, the held-out ones."""
    data, wanted = self.cfg.data, self.cfg.heldout_problems
    available = train.problems
    if not data.heldout_path:
      if wanted < 0:
        raise ConfigError(
            f"task.heldout_problems = {wanted} stands for all rows of task.data.heldout_path, "
            "which is empty. Fix: a number, or a file there.")
      cut = max(0, len(available) - wanted)
      available, self._heldout = available[:cut], available[cut:]
    asked = {problem.prompt for problem in self._heldout}
    self._train = [problem for problem in available if problem.prompt not in asked]
    self._longest = max(self._longest, *train.lengths)
    self.counts = {
        "read": train.read,
        "kept": len(self._train),
        "bad": train.bad,
        "too_long": train.too_long,
        "duplicates": train.duplicates + len(available) - len(self._train),
        "heldout": len(train.problems) - len(available),
        "heldout_too_long": heldout_too_long,
    }
    if not self._train:
      raise ConfigError(
          f"task.heldout_problems = {self.cfg.heldout_problems}: task.data.path = {data.path!r} "
          f"leaves no training problem ({self.counts}). Fix: fewer held-out problems, other rows "
          "in task.data.heldout_path, or more rows.")

  def _load(self, key: str, path: str, split: str,
            limit: int | None) -> problem_table.ProblemTable:
    origin = "heldout-" if key == "heldout_path" else ""
    source = problem_table.Source(f"task.data.{key}", path, split, self._mapping, self.verifier,
                                  self.cfg.data.bad_rows, origin)
    return problem_table.load(source, self.prompt_ids, limit)

  @property
  def has_demonstrations(self) -> bool:
    return self._demonstrated

  def batch(self, index: int, shard: int = 0, shards: int = 1) -> list[Problem]:
    """Returns the training problems of batch `index` that process `shard` of `shards` handles.

    Raises:
      ConfigError: the task has no training file.
    """
    if not self._train:
      raise ConfigError(
          "task.data.path is empty, so that there is nothing to train on; task.data.heldout_path "
          "alone serves evaluations. Fix: task.data.path=<a file of training problems>.")
    order = rows_of_batch(index, self.batch_size, len(self._train), self.seed)
    return [self._train[row] for row in share(order, shard, shards)]

  def heldout(self, size: int) -> list[Problem]:
    """Returns the first `size` held-out problems, in file order; all of them for -1.

    Raises:
      ConfigError: there are not that many, or none.
    """
    if size < 0:
      size = max(1, len(self._heldout))
    if size > len(self._heldout):
      data = self.cfg.data
      raise ConfigError(
          f"task.heldout_problems = {size}: {data.heldout_path or data.path!r} has "
          f"{len(self._heldout)}. Fix: task.heldout_problems <= {len(self._heldout)}.")
    return self._heldout[:size]

  def longest_prompt(self) -> int:
    """Returns the tokens of the longest prompt that was kept."""
    return self._longest

  def longest_demonstration(self) -> int:
    """Returns the tokens of the longest demonstration, with the end of sequence; 0 without any."""
    if not self.has_demonstrations:
      return 0
    return max((len(self.demonstration(problem)) for problem in self._train), default=0)

  def reward(self, problem: Problem, completion: str) -> Reward:
    """Returns the verdict of the verifier that the mapping or `task.data.verifier` names."""
    return verifiers.verify(self.verifier, self.as_graded(problem, completion), problem.answer,
                            timeout=self.cfg.verifier_timeout)

  def rewards(self, problems: list[Problem], completions: list[str]) -> list[Reward]:
    """Returns the verdicts; `task.verifier_workers` processes share those that need algebra."""
    answers = [problem.answer for problem in problems]
    texts = [self.as_graded(*pair) for pair in zip(problems, completions, strict=True)]
    return verifiers.verify_many(self.verifier, texts, answers,
                                 workers=self.cfg.verifier_workers,
                                 timeout=self.cfg.verifier_timeout)
