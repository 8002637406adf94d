"""Columns: named [B, L] arrays that a pass over a rollout finds and that travel with its batch.

An advantage names in `needs`, a loss term and an estimator in `columns`, what they read. Then, and
only then, is the column's pass made. The log-probs of the KL reference are a column, too.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from jaxtyping import Array

from jaxrl_llm.config import ConfigError, StepConfig, TeacherConfig
from jaxrl_llm.models import Model
from jaxrl_llm.registry import COLUMNS, Entry
from jaxrl_llm.training.packing import Packing
from jaxrl_llm.training.score import score
from jaxrl_llm.types import Params, Rollout, Sampling

# Parameters that a column's pass may read: the current policy, the same without adapters, the KL
# reference, and the teacher.
POLICIES = CURRENT, BASE, REFERENCE, TEACHER = "current", "base", "reference", "teacher"
REFERENCE_COLUMN, RECOMPUTED_COLUMN = "ref_log_probs", "recomputed_log_probs"
TEACHER_COLUMN = "teacher_log_probs"


class ColumnParts(NamedTuple):
  """The arguments that make the pass of a column.

  Attributes:
    model: the trainer's.
    cfg: the loss, and how many micro-batches the rows are scored in.
    rules: names of the rules that prune the vocabulary.
    numbers: hyperparameters of the run's advantage.
    teacher: a network of `teacher.pretrained`; None where there is none. With several teachers,
      each has a separate pass.
  """

  model: Model
  cfg: StepConfig
  rules: frozenset[str]
  numbers: Any
  teacher: Model | None = None


@dataclasses.dataclass(frozen=True)
class ColumnEntry(Entry):
  """A column in the table.

  Attributes:
    function: `make(parts: ColumnParts) -> column(*params, rollout, sampling, packing=None)`, which
      returns [B, L]; `params` are the parameters of `reads`, in its order. None: the column is a
      statistic of the anchor's pass.
    reads: CURRENT, BASE, REFERENCE or TEACHER, in the order of the arguments.
    statistic: of `row_stats`, under the anchor, that the column is; empty: it has a pass.
    program: how the pass is called in plans and profiles.
    check: refuses configs without what the pass reads; its parameters name the sections that it
      gets, such as `parameters`, and `reader`, the key that asks for the column.
  """

  reads: tuple[str, ...] = (CURRENT,)
  statistic: str = ""
  program: str = "score_column"
  check: Callable | None = None


def register(name: str, *, reads: Collection[str] = (CURRENT,), program: str = "",
             check: Callable | None = None, replace: bool = False):
  """Returns a decorator that enters a column with a separate pass; see `ColumnEntry`.

  Raises:
    ValueError: the name is taken, or `reads` names no set of parameters.
  """
  readers = (CURRENT, BASE, REFERENCE, TEACHER)
  unknown = sorted(set(reads) - set(readers))
  if unknown:
    raise ValueError(f"column {name!r} reads {unknown}; allowed are {', '.join(readers)}")

  def make(function, cls: type) -> ColumnEntry:
    return ColumnEntry(function, cls, tuple(reads), "", program or f"score_{name}", check)

  return COLUMNS.register(name, replace=replace, make=make)


def register_statistic(name: str, statistic: str) -> None:
  """Enters a column that is a statistic of the anchor's pass, made where the anchor is recomputed.
  """
  COLUMNS.add(name, ColumnEntry(_no_pass, statistic=statistic))


def _no_pass(parts: ColumnParts):
  raise ValueError("a statistic of the anchor's pass has no pass of its own")


@register(REFERENCE_COLUMN, reads=(REFERENCE,), program="score_reference")
def ref_log_probs(parts: ColumnParts) -> Callable[..., Array]:
  """Log-probs of the sampled tokens under the KL reference, f32, nats."""
  return functools.partial(_log_probs, functools.partial(score, model=parts.model, cfg=parts.cfg,
                                                         rules=parts.rules))


def _log_probs(scorer, params: Params, rollout: Rollout, sampling: Sampling, *,
               packing: Packing | None = None) -> Array:
  """Returns the log-probs that `score` finds under some parameters."""
  return scorer(params, rollout, sampling, packing=packing).log_probs


@register(RECOMPUTED_COLUMN, program="score_recomputed")
def recomputed_log_probs(parts: ColumnParts) -> Callable[..., Array]:
  """Log-probs of the sampled tokens at the start of the updates, for an estimator whose anchor is
  another; f32, nats.
  """
  return functools.partial(_log_probs, functools.partial(score, model=parts.model, cfg=parts.cfg,
                                                         rules=parts.rules))


def _needs_teacher(teacher: TeacherConfig, reader: str) -> None:
  if not teacher.pretrained:
    raise ConfigError(f"teacher.pretrained = '': {reader} reads the teacher's log-probs. Fix: "
                      "teacher.pretrained=<a checkpoint with the policy's tokenizer>.")
  _ = teacher.by_name  # refuses names that are none


@register(TEACHER_COLUMN, reads=(TEACHER,), program="score_teacher", check=_needs_teacher)
def teacher_log_probs(parts: ColumnParts) -> Callable[..., Array]:
  """Log-probs of the sampled tokens under the row's teacher, f32, nats: at the sampler's
  temperature, over the full vocabulary.
  """
  scorer = functools.partial(score, model=parts.teacher, cfg=parts.cfg, rules=frozenset())

  def unrouted(params, rollout: Rollout, *args, **options):  # its experts are not the policy's
    return scorer(params, rollout.replace(routing=None), *args, **options)

  return functools.partial(_log_probs, unrouted)


register_statistic("entropy", "entropy")
COLUMNS.files["row_gradient"] = "jaxrl_llm.training.row_gradients"
