"""Problems from files: jsonl, parquet, folders of `datasets`, hub names."""

import logging

from jaxrl_llm.fields import ConfigError, refuse_unread
from jaxrl_llm.tasks import rows, verifiers
from jaxrl_llm.tasks.common import TaskBase
from jaxrl_llm.tasks.mappings import make_mapping
from jaxrl_llm.tasks.order import rows_of_batch, share
from jaxrl_llm.types import Problem, Reward

logger = logging.getLogger(__name__)


class Dataset(TaskBase):
  """Rows of `task.data.path`, shuffled anew each epoch; held-out ones from another file or from the
  end of this one.

  Each training row comes once per epoch, in an order that depends on (seed, epoch) alone
  (`order.rows_of_batch`), so that a batch index is all that a resumed run needs. A training row
  with the text of a held-out one is taken out.

  Attributes:
    counts: rows of `path`: read = kept (for training) + too_long + duplicates (of an id, or of a
      held-out text) + heldout (split off its end); and heldout_too_long, rows of `heldout_path`
      dropped for their length.
  """

  def __post_init__(self):
    super().__post_init__()
    data, limit = self.cfg.data, None if self.limits is None else self.limits.max_prompt_tokens
    refuse_unread(data, "task.data.")
    mapping = make_mapping(data)
    self.verifier = mapping.verifier if data.verifier == "auto" else data.verifier
    if self.verifier == "math":
      verifiers.require_math()
    read = lambda key, path, split: rows.load(f"task.data.{key}", path, split, mapping, self.
                                              verifier, self.prompt_ids, limit)
    train = read("path", data.path, data.split)
    heldout = read("heldout_path", data.heldout_path,
                   data.heldout_split) if data.heldout_path else None
    self._longest = max(train.lengths + (heldout.lengths if heldout else []))
    split = 0 if heldout else min(self.cfg.heldout_problems, len(train.problems))
    cut = len(train.problems) - split
    self._heldout = heldout.problems if heldout else train.problems[cut:]
    asked = {problem.prompt for problem in self._heldout}
    self._train = [problem for problem in train.problems[:cut] if problem.prompt not in asked]
    self._demonstrated = all(problem.demonstration is not None for problem in self._train)
    self.counts = {"read": train.read, "kept": len(self._train), "too_long": train.too_long,
                   "duplicates": train.duplicates + cut - len(self._train), "heldout": split,
                   "heldout_too_long": heldout.too_long if heldout else 0}
    if not self._train:
      raise ConfigError(
          f"task.heldout_problems = {self.cfg.heldout_problems}: task.data.path = {data.path!r} "
          "leaves "
          f"no training problem ({self.counts}). Fix: fewer held-out problems, other rows in "
          "task.data.heldout_path, or more rows.")
    logger.info("task.data.path = %s: %s", data.path, self.counts)

  @property
  def has_demonstrations(self) -> bool:
    return self._demonstrated

  def batch(self, index: int, shard: int = 0, shards: int = 1) -> list[Problem]:
    """Training problems: the contiguous share of process `shard` in the `batch_size` problems of
    `index`.
    """
    order = rows_of_batch(index, self.batch_size, len(self._train), self.seed)
    return [self._train[row] for row in share(order, shard, shards)]

  def heldout(self, size: int) -> list[Problem]:
    """The first `size` held-out problems, in file order.

    Raises:
      ConfigError: there are not that many.
    """
    if size > len(self._heldout):
      data = self.cfg.data
      raise ConfigError(
          f"task.heldout_problems = {size}: {data.heldout_path or data.path!r} has "
          f"{len(self._heldout)}. Fix: task.heldout_problems <= {len(self._heldout)}.")
    return self._heldout[:size]

  def longest_prompt(self) -> int:
    """Tokens of the longest prompt that was kept."""
    return self._longest

  def longest_demonstration(self) -> int:
    """Tokens of the longest demonstration, end of sequence included; 0 where there are none."""
    return max((len(self.demonstration(p)) for p in self._train),
               default=0) if self.has_demonstrations else 0

  def reward(self, problem: Problem, completion: str) -> Reward:
    """Verdict of the verifier that the mapping or `task.data.verifier` names."""
    return verifiers.verify(self.verifier, completion, problem.answer,
                            timeout=self.cfg.verifier_timeout)

  def rewards(self, problems: list[Problem], completions: list[str]) -> list[Reward]:
    """Verdicts of many, by `task.verifier_workers` processes where the kind needs them."""
    return verifiers.verify_many(self.verifier, completions,
                                 [problem.answer for problem in problems],
                                 workers=self.cfg.verifier_workers,
                                 timeout=self.cfg.verifier_timeout)
