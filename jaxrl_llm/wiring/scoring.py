"""The trainer's passes over sampled rows: which ones a run needs, and what they find."""

import dataclasses
import enum
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import jax
from jax.sharding import Mesh

from jaxrl_llm import parallel
from jaxrl_llm.config import (
  AdvantageConfig,
  BatchConfig,
  Config,
  RolloutConfig,
  StepConfig,
  UpdateConfig,
)
from jaxrl_llm.models import Model
from jaxrl_llm.objective import advantages
from jaxrl_llm.registry import ADVANTAGES, COLUMNS
from jaxrl_llm.training import transforms
from jaxrl_llm.training.columns import (
  CURRENT,
  REFERENCE_COLUMN,
  TEACHER,
  ColumnEntry,
  ColumnParts,
)
from jaxrl_llm.training.meter import meter
from jaxrl_llm.training.packing import Packing
from jaxrl_llm.training.score import Scores, score
from jaxrl_llm.types import Params, Rollout, Sampling, TokenStats
from jaxrl_llm.wiring.sampler import sampling_of

if TYPE_CHECKING:  # imported for runs that have one
  from jaxrl_llm.training.teachers import ByRow, Teachers

RECOMPUTED, BEHAVIOR, DETACHED = "recomputed", "behavior", "detached"
INTERPOLATED = "interpolated"


class Source(enum.Enum):
  """Where a reader of the anchor's statistics finds them."""

  PASS = "a pass with the parameters at the start of the updates"
  RECORD = "the sampler's record"
  LOSS = "the loss, from its log-probs without gradient"


class AnchorRow(NamedTuple):
  """The source of each reader under one anchor.

  Attributes:
    ratio: of the anchor's log-probs in the ratio.
    advantage: of the log-probs that an advantage reads; its other statistics are always a pass's.
    columns: of columns that are statistics of the anchor, and of the tokens in its support.
  """

  ratio: Source
  advantage: Source
  columns: Source


ANCHORS = {
    RECOMPUTED: AnchorRow(Source.PASS, Source.PASS, Source.PASS),
    BEHAVIOR: AnchorRow(Source.RECORD, Source.RECORD, Source.LOSS),
    DETACHED: AnchorRow(Source.LOSS, Source.PASS, Source.LOSS),
    INTERPOLATED: AnchorRow(Source.LOSS, Source.PASS, Source.LOSS),
}


class ScoreFn(Protocol):
  """Statistics of a rollout's tokens under given parameters."""

  def __call__(self, params: Params, rollout: Rollout, sampling: Sampling, *,
               packing: Packing | None = None) -> TokenStats: ...


class ColumnFn(Protocol):
  """The compiled pass of a column, [B, L]; `params` in the order of `ColumnEntry.reads`."""

  def __call__(self, *params: Params, packing: Packing | None = None) -> jax.Array: ...


class ColumnPass(NamedTuple):
  """A column of a run: its entry, and its compiled pass."""

  entry: ColumnEntry
  run: ColumnFn


class MeterFn(Protocol):
  """Mergeable metrics of the mismatch between sampler and trainer; see training/meter.py."""

  def __call__(self, params: Params, rollout: Rollout, sampling: Sampling) -> dict: ...


@dataclasses.dataclass(frozen=True)
class Scoring:
  """The trainer's passes over sampled rows. Programs are compiled on first use.

  Attributes:
    anchor: a key of ANCHORS.
    runs_pass: whether any reader needs the anchor's pass.
    part_count: parts of each reward that the advantage reads, as far as its weights say, at least
      1; 0: it reads none.
    sampling: temperature and vocabulary that rows are scored with.
    stats: statistics that the anchor's pass computes in addition to the log-probs, for their
      readers.
    score: the anchor's pass.
    columns: the passes of the columns that the run reads, by name.
    statistics: columns that are statistics of the anchor's pass, as (column, statistic).
    score_heldout: log-probs of held-out rows, all in one micro-batch.
    meter: the mismatch meter's pass over a few rows; None if `rollout.meter_rows` is 0.
    teachers: of the run; None without one.
  """

  anchor: str
  runs_pass: bool
  part_count: int
  sampling: Sampling
  stats: frozenset[str]
  score: ScoreFn
  columns: dict[str, ColumnPass]
  statistics: tuple[tuple[str, str], ...]
  score_heldout: ScoreFn
  meter: MeterFn | None
  teachers: "Teachers | None" = None

  def reads(self, parameters: str) -> bool:
    """Returns whether a column's pass reads a set of parameters, such as columns.REFERENCE."""
    return any(parameters in column.entry.reads for column in self.columns.values())


def make_scoring(cfg: Config, model: Model, mesh: Mesh, stop_ids: tuple[int, ...],
                 teachers: "Teachers | None" = None) -> Scoring:
  """Returns the passes that a resolved config needs; `stop_ids` are the task's.

  Without a teacher, where a column reads one, its network is the policy's: for plans.
  """
  loss = dataclasses.replace(cfg.loss, stop_ids=stop_ids)
  anchor, columns = _anchor(cfg.updates, cfg.batch, cfg.step), columns_of(cfg.batch)
  row = ANCHORS[anchor]
  statistics = anchor_columns(anchor, columns)
  prunes = bool(loss.rules or cfg.rollout.min_new_tokens)
  stats, rules = scored_stats(cfg.advantage, statistics, prunes), frozenset(loss.rules)
  score_all = functools.partial(score, model=model, cfg=StepConfig(loss), rules=rules)
  pieces = cfg.updates.optimizer_batches * cfg.updates.micro_batches
  in_pieces = functools.partial(score_all, cfg=StepConfig(loss, pieces))
  needs, numbers = advantages.needs(cfg.advantage), ADVANTAGES.numbers(cfg.advantage)
  parts = ColumnParts(model, StepConfig(loss, pieces), rules, numbers)
  networks = [model] if teachers is None else teachers.models
  jit_rows = functools.partial(jax.jit, out_shardings=parallel.rows(mesh))
  anchor_pass = functools.partial(in_pieces, stats=stats)
  heldout = functools.partial(score_all, rules=frozenset())
  return Scoring(
      anchor=anchor,
      runs_pass=bool(advantage_stats(cfg.advantage)) or Source.PASS in (
          row.ratio, row.advantage if "anchor_log_probs" in needs else None),
      part_count=(len(numbers.weights) or 1) if "reward_parts" in needs else 0,
      sampling=sampling_of(cfg.rollout, cfg.vocabulary, "trainer"),
      stats=stats,
      score=jit_rows(anchor_pass),
      columns={name: ColumnPass(entry, _column_pass(entry, parts, networks, jit_rows))
               for name, entry in columns.items() if not entry.statistic},
      statistics=statistics,
      score_heldout=jit_rows(heldout),
      meter=make_meter(cfg.rollout, mesh,
                       functools.partial(score_all, stats=stats & {"in_support"})),
      teachers=teachers,
  )


def _column_pass(entry: ColumnEntry, parts: ColumnParts, teachers: list[Model],
                 compiled: Callable[..., ColumnFn]) -> ColumnFn:
  """Returns the compiled pass of a column; where several teachers' parameters are read, one of
  each.
  """
  passes = tuple(compiled(entry.function(parts._replace(teacher=teacher)))
                 for teacher in (teachers if TEACHER in entry.reads else teachers[:1]))
  if len(passes) == 1:
    return passes[0]
  from jaxrl_llm.training.teachers import column_by_row
  return functools.partial(column_by_row, passes, entry.reads.index(TEACHER))


def make_meter(rollout: RolloutConfig, mesh: Mesh, scorer: ScoreFn) -> MeterFn | None:
  """Returns the meter's pass over `rollout.meter_rows` rows, rounded up to divide over the devices;
  None if that is 0.
  """
  if not rollout.meter_rows:
    return None
  shards = parallel.row_shards(mesh)
  rows = min(-(-rollout.meter_rows // shards) * shards, rollout.rows)
  return jax.jit(functools.partial(meter, scorer=scorer, rows=rows))


def columns_of(cfg: BatchConfig) -> dict[str, ColumnEntry]:
  """Returns the columns that the advantage, the KL term and the loss terms read."""
  names = {REFERENCE_COLUMN} if cfg.kl.coef else set()
  fields = set(advantages.OPTIONAL)
  names |= (set(advantages.needs(cfg.advantage)) - fields) | set(cfg.term_columns)
  order = sorted(names, key=lambda name: (name != REFERENCE_COLUMN, name))
  return {name: COLUMNS[name] for name in order}


def anchor_columns(anchor: str, columns: dict[str, ColumnEntry]) -> tuple[tuple[str, str], ...]:
  """Returns (column, statistic) of the columns that the anchor's pass gives.

  Where the anchor is the current policy, its own detached statistics serve instead.
  """
  if ANCHORS[anchor].columns != Source.PASS:
    return ()
  return tuple((name, entry.statistic) for name, entry in columns.items() if entry.statistic)


def advantage_stats(cfg: AdvantageConfig) -> frozenset[str]:
  """Returns the statistics of the anchor's pass that the advantage reads, without the log-probs."""
  return advantages.needs(cfg) & {"sum_pi_squared", "values", "entropy"}


def scored_stats(advantage: AdvantageConfig, statistics: tuple[tuple[str, str], ...],
                 restricted: bool) -> frozenset[str]:
  """Returns the statistics that the anchor's pass must compute in addition to the log-probs.

  Args:
    statistics: of `anchor_columns`.
    restricted: whether a rule prunes the vocabulary.
  """
  support = {"in_support"} if restricted else set()
  return advantage_stats(advantage) | support | {name for _, name in statistics}


def _anchor(updates: UpdateConfig, batch: BatchConfig, step: StepConfig) -> str:
  """Returns the source of the anchor's log-probs.

  With one optimizer batch the current policy is the anchor, so its own detached log-probs serve
  without a pass, unless something else reads the recomputed ones.
  """
  if updates.anchor in (BEHAVIOR, INTERPOLATED):
    return updates.anchor
  correction = batch.correction.level != "none" or batch.correction.reject
  recomputes = any(x.recomputes_anchor for x in transforms.active(step).values())
  readers = correction or batch.kl.place == "reward" or recomputes
  return DETACHED if updates.optimizer_batches == 1 and not readers else RECOMPUTED


def score_rollout(scoring: Scoring, policies: "dict[str, Params | ByRow | None]",
                  rollout: Rollout, *,
                  on_policy: bool = False, packing: Packing | None = None) -> Scores:
  """Scores a rollout under the anchor and the reference, skipping passes that nothing reads.

  Args:
    policies: parameters by the names of columns.py: CURRENT at the start of the updates, and BASE,
      REFERENCE and TEACHER (`Teachers.of`) where something reads them.
    on_policy: whether the current ones sampled the rollout, so that the mismatch meter can read the
      anchor's pass.
    packing: of the rollout's rows; None: they are padded.
  """
  source, anchor, stats = ANCHORS[scoring.anchor], None, None
  options = {} if packing is None else {"packing": packing}
  if scoring.runs_pass:
    stats = scoring.score(policies[CURRENT], rollout, scoring.sampling, **options)
  if source.ratio == Source.PASS:
    anchor = stats.log_probs
  elif source.ratio == Source.RECORD:
    anchor = rollout.behavior_log_probs
  columns = {name: column.run(*(policies[reader] for reader in column.entry.reads), rollout,
                            scoring.sampling, **options)
           for name, column in scoring.columns.items()}
  columns |= {name: getattr(stats, statistic) for name, statistic in scoring.statistics}
  reference = columns.pop(REFERENCE_COLUMN, None)
  scores = Scores(anchor, reference, columns=columns or None)
  if stats is None:
    return scores
  meter_stats = None
  if on_policy and scoring.meter is not None:
    meter_stats = TokenStats(stats.log_probs, in_support=stats.in_support)
  return scores.replace(
      sum_pi_squared=stats.sum_pi_squared, values=stats.values, entropy=stats.entropy,
      metered=meter_stats,
      in_support=stats.in_support if source.columns == Source.PASS else None,
      current_log_probs=stats.log_probs if source.ratio == Source.LOSS else None)
