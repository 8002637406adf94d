"""The trainer's passes over sampled rows: which ones a run needs, and what they find."""

import dataclasses
import functools
from typing import Protocol

import jax
from jax.sharding import Mesh

from jaxrl_llm import parallel
from jaxrl_llm.config import Config, StepConfig
from jaxrl_llm.models import Model
from jaxrl_llm.objective import advantages, mtp
from jaxrl_llm.registry import ADVANTAGES
from jaxrl_llm.build.samplers import sampling_of
from jaxrl_llm.training.meter import meter
from jaxrl_llm.training.packing import Packing
from jaxrl_llm.training.score import Scores, adapter_residual, score
from jaxrl_llm.types import Params, Rollout, Sampling, TokenStats

RECOMPUTED, BEHAVIOR, CURRENT = "recomputed", "behavior", "current"


class ScoreFn(Protocol):
  """Statistics of a rollout's tokens under given parameters."""

  def __call__(self, params: Params, rollout: Rollout, sampling: Sampling, *,
               packing: Packing | None = None) -> TokenStats: ...


class ResidualFn(Protocol):
  """What the adapters change of the hidden states, [B, L]; see `score.adapter_residual`."""

  def __call__(self, params: Params, base: Params, rollout: Rollout, *,
               packing: Packing | None = None) -> jax.Array: ...


class MeterFn(Protocol):
  """Mergeable metrics of the mismatch between sampler and trainer; see training/meter.py."""

  def __call__(self, params: Params, rollout: Rollout, sampling: Sampling) -> dict: ...


@dataclasses.dataclass(frozen=True)
class Scoring:
  """The trainer's passes over sampled rows. Programs are compiled on first use.

  Attributes:
    anchor: where the anchor's log-probs come from: a pass (RECOMPUTED), the sampler (BEHAVIOR), or
      the current policy's own detached log-probs (CURRENT).
    reads_stats: whether the advantage reads what only a pass finds, the log-probs among it.
    sampling: temperature and vocabulary that rows are scored with.
    score: the anchor's pass, with the statistics that its readers need.
    score_reference: log-probs of the KL reference; None without a KL term.
    score_residual: the passes with and without adapters; None where no advantage reads them.
    score_heldout: log-probs of held-out rows, all in one micro-batch.
    meter: the mismatch meter's pass over a few rows; None if `rollout.meter_rows` is 0.
  """

  anchor: str
  reads_stats: bool
  sampling: Sampling
  score: ScoreFn
  score_reference: ScoreFn | None
  score_residual: ResidualFn | None
  score_heldout: ScoreFn
  meter: MeterFn | None


def make_scoring(cfg: Config, model: Model, mesh: Mesh, stop_ids: tuple[int, ...]) -> Scoring:
  """The passes that a resolved config needs; `stop_ids` are the task's."""
  loss = dataclasses.replace(cfg.loss, stop_ids=stop_ids)
  stats, rules = scored_stats(cfg), frozenset(loss.rules)
  whole = functools.partial(score, model=model, cfg=StepConfig(loss), rules=rules)
  pieces = cfg.updates.optimizer_batches * cfg.updates.micro_batches
  in_pieces = functools.partial(whole, cfg=StepConfig(loss, pieces))
  needs, numbers = advantages.needs(cfg.advantage), ADVANTAGES.numbers(cfg.advantage)
  residual = functools.partial(adapter_residual, model=_exact(model), cfg=StepConfig(loss, pieces),
                               normed=getattr(numbers, "hidden_state", "normed") == "normed")
  compiled = functools.partial(jax.jit, out_shardings=parallel.rows(mesh))
  return Scoring(
      anchor=_anchor(cfg),
      reads_stats=bool(stats - {"in_support", "mtp_log_probs"}) or (
          "anchor_log_probs" in needs and _anchor(cfg) == CURRENT),
      sampling=sampling_of(cfg, "trainer"),
      score=compiled(functools.partial(in_pieces, stats=stats)),
      score_reference=compiled(in_pieces) if cfg.kl.coef else None,
      score_residual=compiled(residual) if "adapter_residual" in needs else None,
      score_heldout=compiled(functools.partial(whole, rules=frozenset())),
      meter=make_meter(cfg, mesh, functools.partial(whole, stats=stats & {"in_support"})),
  )


def _exact(model: Model) -> Model:
  """The model in float32: until adapters have grown, bfloat16 rounds what they change to noise."""
  if model.config.compute_dtype == "float32":
    return model
  config = dataclasses.replace(model.config, compute_dtype="float32", attention="auto")
  return dataclasses.replace(model, config=config)


def make_meter(cfg: Config, mesh: Mesh, scorer: ScoreFn) -> MeterFn | None:
  """The meter's pass over `rollout.meter_rows` rows, rounded up to divide over the devices; None if
  that is 0.
  """
  if not cfg.rollout.meter_rows:
    return None
  shards = parallel.row_shards(mesh)
  rows = min(-(-cfg.rollout.meter_rows // shards) * shards, cfg.rows)
  return jax.jit(functools.partial(meter, scorer=scorer, rows=rows))


def scored_stats(cfg: Config) -> frozenset[str]:
  """Statistics that the anchor's pass must find beside the log-probs."""
  wanted = advantages.needs(cfg.advantage) & {"sum_pi_squared", "values", "entropy"}
  restricted = cfg.loss.rules or cfg.rollout.min_new_tokens
  wanted |= {"in_support"} if restricted else set()
  # Where the anchor is the current policy, its own detached log-probs serve, as the policy's do.
  ahead = mtp.reads_anchor(cfg.loss.mtp) and _anchor(cfg) == RECOMPUTED
  return frozenset(wanted) | ({"mtp_log_probs"} if ahead else frozenset())


def _anchor(cfg: Config) -> str:
  """Where the anchor's log-probs come from.

  With one optimizer batch the current policy is the anchor, so its own detached log-probs serve
  without a pass, unless something else reads the recomputed ones.
  """
  if cfg.updates.anchor == "behavior":
    return BEHAVIOR
  correction = cfg.correction.level != "none" or cfg.correction.reject
  readers = correction or cfg.kl.place == "reward" or cfg.pipo.enabled
  return CURRENT if cfg.updates.optimizer_batches == 1 and not readers else RECOMPUTED


def score_rollout(scoring: Scoring, params: Params, ref_params: Params | None, rollout: Rollout, *,
                  own: bool = False, packing: Packing | None = None,
                  base: Params | None = None) -> Scores:
  """Scores a rollout under the anchor and the reference, skipping passes that nothing reads.

  Args:
    params: the current policy, at the start of the updates.
    ref_params: the KL reference; None where nothing reads it.
    own: whether `params` sampled the rollout, so that the mismatch meter can read the anchor's
      pass.
    packing: of the rollout's rows; None: they are padded.
    base: `params` without adapters; None where nothing reads them.
  """
  recomputed, anchor, reference, stats = scoring.anchor == RECOMPUTED, None, None, None
  packed = {} if packing is None else {"packing": packing}
  if recomputed or scoring.reads_stats:
    stats = scoring.score(params, rollout, scoring.sampling, **packed)
  if recomputed:
    anchor = stats.log_probs
  elif scoring.anchor == BEHAVIOR:
    anchor = rollout.behavior_log_probs
  if scoring.score_reference is not None:
    found = scoring.score_reference(ref_params, rollout, scoring.sampling, **packed)
    reference = found.log_probs
  residual = None
  if scoring.score_residual is not None:
    residual = scoring.score_residual(params, base, rollout, **packed)
  if stats is None:
    return Scores(anchor, reference, adapter_residual=residual)
  metered = None
  if own and scoring.meter is not None:
    metered = TokenStats(stats.log_probs, in_support=stats.in_support)
  # The pruned vocabulary matters only beside a recomputed anchor.
  in_support = stats.in_support if recomputed else None
  current = stats.log_probs if scoring.anchor == CURRENT else None
  return Scores(anchor, reference, stats.sum_pi_squared, stats.values, in_support, metered,
                stats.entropy, residual, stats.mtp_log_probs, current)
