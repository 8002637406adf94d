"""Problems from files, folders and hub names (readers.py)."""

import dataclasses
import logging
import unicodedata

from jaxrl_llm.fields import ConfigError, refuse_unread
from jaxrl_llm.grading import verifiers
from jaxrl_llm.registry import VERIFIERS
from jaxrl_llm.tasks import mixture
from jaxrl_llm.tasks.data import AUTO, DataConfig
from jaxrl_llm.tasks.mappings import make_mapping
from jaxrl_llm.tasks.mixture import Mixture
from jaxrl_llm.tasks.order import share
from jaxrl_llm.tasks.problem_table import ProblemTable, Source, load
from jaxrl_llm.tasks.task_base import TaskBase
from jaxrl_llm.types import Problem, Reward

logger = logging.getLogger(__name__)


class Dataset(TaskBase):
  """Asks the rows of `task.data.path`, each once per epoch.

  The order depends only on (seed, epoch) (`order.rows_of_batch`), so a resumed run needs only its
  batch index. A run begins with batch 1: what batch 0 would ask comes in the second epoch. Several
  files are mixed by weight (mixture.py). Held-out problems come from `task.data.heldout_path`, or
  without it from the end of `path`. Training rows that ask what a held-out one asks are dropped.
  With only `heldout_path` the task serves evaluations only.

  Attributes:
    key: of `path`, for messages.
    verifier: of held-out problems, and of all others unless files have separate verifiers.
    counts: rows of `path`: read = kept (for training) + bad + too_long + duplicates (of an
      earlier text, or of a held-out one) + heldout (split off its end). `heldout_too_long` counts
      the problems of `heldout_path` that were left out for their length.
    unmet: the error for the first answer that no completion can meet; None: each can be met, or
      the user's own rewards may read them otherwise.
  """

  key, reads_answers = "task.data.path", True

  def __post_init__(self):
    super().__post_init__()
    data_cfg = self.cfg.data
    refuse_unread(data_cfg, "task.data.")
    sources = mixture.parts(data_cfg)
    self.verifier = _verifier(mixture.first(data_cfg))
    self._verifiers: dict[str, str] = {}  # by problem id, where it is not `verifier`
    self.unmet: ConfigError | None = None
    limit = None if self.limits is None else self.limits.max_prompt_tokens
    self._heldout, lengths, too_long = ([], [], 0)
    if data_cfg.heldout_path:
      self._heldout, lengths, too_long = self._separate(limit)
    self._train: list[list[Problem]] = []
    self._longest = max(lengths, default=0)
    self.counts = {"read": 0, "kept": 0, "bad": 0, "too_long": 0, "duplicates": 0, "heldout": 0,
                   "heldout_too_long": too_long}
    if data_cfg.path or not data_cfg.heldout_path:
      tables = [self._load("path", source, f"{i}-" if len(sources) > 1 else "", limit)
                for i, source in enumerate(sources)]
      self._train_on(tables, sources)
    self._demonstrated = all(problem.demonstration is not None
                             for part in self._train for problem in part)

  def _separate(self, limit: int | None) -> tuple[list[Problem], list[int], int]:
    """Returns the held-out problems of a separate file, their lengths in tokens, and how many were
    left out because they exceed `limit`.
    """
    data_cfg, num_heldout = self.cfg.data, self.cfg.heldout_problems
    drops = data_cfg.heldout_too_long == "drop"
    source = dataclasses.replace(mixture.first(data_cfg), path=data_cfg.heldout_path,
                                 split=data_cfg.heldout_split)
    table = self._load("heldout_path", source, "", None)
    problems, lengths, longer = [], [], []
    for problem, length in zip(table.problems, table.lengths, strict=True):
      if limit is not None and length > limit:
        # A long problem after the last one that is asked does no harm.
        longer += [length] if num_heldout < 0 or len(problems) < num_heldout else []
        continue
      problems.append(problem)
      lengths.append(length)
    if longer and not drops:
      raise ConfigError(
          f"rollout.max_prompt_tokens = {limit}: {len(longer)} prompts of task.data.heldout_path = "
          f"{data_cfg.heldout_path!r} are longer; the longest has {max(longer)} tokens. Fix: "
          f"rollout.max_prompt_tokens >= {max(longer)}, or task.data.heldout_too_long=drop, which "
          "leaves them out and counts them.", {"rollout.max_prompt_tokens": max(longer)})
    return problems, lengths, len(longer)

  def _train_on(self, tables: list[ProblemTable], sources: list[DataConfig]) -> None:
    """Takes the training problems and, without a separate file, the held-out ones."""
    data_cfg, num_heldout = self.cfg.data, self.cfg.heldout_problems
    available = [table.problems for table in tables]
    if not data_cfg.heldout_path and num_heldout:
      if num_heldout < 0 or len(tables) > 1:
        raise ConfigError(
            f"task.heldout_problems = {num_heldout}: without task.data.heldout_path they are split "
            "off the end of task.data.path, which must be one file, and their number be given. "
            "Fix: "
            "task.data.heldout_path, or task.heldout_problems=0.")
      cut = max(0, len(available[0]) - num_heldout)
      available, self._heldout = [available[0][:cut]], available[0][cut:]
    self._longest = max([self._longest, *(length for table in tables for length in table.lengths)])
    split_off = sum(len(table.problems) for table in tables) - sum(map(len, available))
    self.counts |= {
        "read": sum(table.read for table in tables),
        "kept": sum(map(len, available)),
        "bad": sum(table.bad for table in tables),
        "too_long": sum(table.too_long for table in tables),
        "duplicates": sum(table.duplicates for table in tables),
        "heldout": split_off,
    }
    self._train = available
    self.leave_out(self._heldout, "task.data.heldout_path" if data_cfg.heldout_path else
                   f"the last {split_off} rows, which are held out")
    for part, source in zip(self._train, sources, strict=True):
      if (kind := _verifier(source)) != self.verifier:
        self._verifiers |= {problem.id: kind for problem in part}

  def _load(self, key: str, source: DataConfig, name: str, limit: int | None) -> ProblemTable:
    heldout = key == "heldout_path"
    verifier = _verifier(source) if self.reads_answers else ""
    data_source = Source(f"task.data.{key}", source.path, source.split, make_mapping(source),
                         verifier, source.bad_rows, name, "heldout-" if heldout else "",
                         "" if heldout else source.teacher_column)
    table = load(data_source, self.prompt_ids, limit)
    self.unmet = self.unmet or table.unmet
    return table

  def leave_out(self, evaluated: list[Problem], place: str) -> None:
    """Trains on no problem that asks what one of `evaluated` asks; the log has their number.

    Args:
      place: of these, for messages.

    Raises:
      ConfigError: a file has no other problem.
    """
    texts = {asked_text(problem) for problem in evaluated}
    parts = [[problem for problem in part if asked_text(problem) not in texts]
             for part in self._train]
    before, kept = sum(map(len, self._train)), sum(map(len, parts))
    self.counts |= {"kept": kept, "duplicates": self.counts["duplicates"] + before - kept}
    if not all(parts):
      raise ConfigError(
          f"task.heldout_problems = {self.cfg.heldout_problems}: {self.key} = "
          f"{self.cfg.data.path!r} leaves no training problem ({self.counts}). Fix: fewer held-out "
          f"problems, other rows in {place}, or more rows.")
    if kept < before:
      logger.warning("%s = %s: %d of %d problems ask what is asked in %s, up to white space and "
                     "the form of Unicode, and are left out of the training", self.key,
                     self.cfg.data.path, before - kept, before, place)
    self.ask(parts)

  def ask(self, parts: list[list[Problem]]) -> None:
    """Trains on these problems, file by file."""
    self._train = parts
    self._mixture = Mixture.of([len(part) for part in parts], self.cfg.data.weights, self.seed)

  @property
  def training_problems(self) -> list[Problem]:
    """All problems that are trained on, file by file."""
    return [problem for part in self._train for problem in part]

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
    positions = range(index * self.batch_size, (index + 1) * self.batch_size)
    rows = [self._mixture.at(position, self.seed) for position in positions]
    return [self._train[source][row] for source, row in share(rows, shard, shards)]

  def heldout(self, size: int) -> list[Problem]:
    """Returns the first `size` held-out problems, in file order; all of them for -1.

    Raises:
      ConfigError: there are not that many, or none.
    """
    if size < 0:
      size = max(1, len(self._heldout))
    if size > len(self._heldout):
      data_cfg = self.cfg.data
      raise ConfigError(
          f"task.heldout_problems = {size}: {data_cfg.heldout_path or data_cfg.path!r} has "
          f"{len(self._heldout)}. Fix: task.heldout_problems <= {len(self._heldout)}.")
    return self._heldout[:size]

  def longest_prompt(self) -> int:
    """Returns the tokens of the longest prompt that was kept."""
    return self._longest

  def longest_demonstration(self) -> int:
    """Returns the tokens of the longest demonstration, with the end of sequence; 0 without any."""
    if not self.has_demonstrations:
      return 0
    return max((len(self.demonstration(problem)) for part in self._train for problem in part),
               default=0)

  def reward(self, problem: Problem, completion: str) -> Reward:
    """Returns the verdict of the verifier that the mapping or `task.data.verifier` names."""
    return self.rewards([problem], [completion])[0]

  def rewards(self, problems: list[Problem], completions: list[str]) -> list[Reward]:
    """Returns the verdicts; `task.verifier_workers` processes share the answers that need algebra.
    """
    kinds = [self._verifiers.get(problem.id, self.verifier) for problem in problems]
    out: list[Reward | None] = [None] * len(problems)
    for kind in sorted(set(kinds)):
      rows = [row for row, row_kind in enumerate(kinds) if row_kind == kind]
      rewards = verifiers.verify_many(
          kind, [self.as_graded(problems[row], completions[row]) for row in rows],
          [problems[row].answer for row in rows], workers=self.cfg.verifier_workers,
          timeout=self.cfg.verifier_timeout)
      for row, reward in zip(rows, rewards, strict=True):
        out[row] = reward
    return [reward for reward in out if reward is not None]


def asked_text(problem: Problem) -> tuple:
  """Returns what a problem asks: its prompt and the turns before it, in NFKC and with single spaces
  for white space. A system message asks nothing.
  """
  turns = [text for role, text in problem.context if role != "system"]
  return tuple(" ".join(unicodedata.normalize("NFKC", text).split())
               for text in (*turns, problem.prompt))


def _verifier(source: DataConfig) -> str:
  """Returns the kind of verifier of a file.

  Raises:
    ConfigError: an unknown name, or one whose package is missing.
  """
  kind = make_mapping(source).verifier if source.verifier == AUTO else source.verifier
  VERIFIERS[kind]  # refuses an unknown name
  if kind == "math":
    verifiers.require_math()
  return kind
