"""One iteration's rollouts: prompts, completions, verdicts; drawn again where groups are all alike.
"""

import dataclasses
import time

import jax
import numpy as np

from jaxrl_llm import parallel
from jaxrl_llm.config import ShapingConfig
from jaxrl_llm.registry import SHAPINGS
from jaxrl_llm.runs import collect
from jaxrl_llm.runs.collect import Verdicts
from jaxrl_llm.runs.setup import Parts
from jaxrl_llm.tasks.shaping import overlong_penalty
from jaxrl_llm.types import Problem, Rollout


class DriedUpError(RuntimeError):
  """Dynamic sampling found too few groups whose rewards differ."""


@dataclasses.dataclass(frozen=True)
class Draw:
  """One batch of groups.

  Attributes:
    problems: one per group.
    rollout, host: the rows on the device and on the host.
    verdicts: of the rows, as verified.
    cursor: batches of the task drawn so far, those of this iteration included.
    metrics: host values.
  """

  problems: list[Problem]
  rollout: Rollout
  host: Rollout
  verdicts: Verdicts
  cursor: int
  metrics: dict[str, float]


def draw(parts: Parts, params, step, cursor: int, then=None) -> Draw:
  """`rollout.prompts` groups sampled with `params`.

  With dynamic sampling, groups whose kept rewards are all equal (or that have fewer than two kept
  rows) are dropped and further task batches drawn, up to `max_draws`; what exceeds the batch is
  dropped too (methods A11.7).

  Args:
    params, step: the sampling policy and its optimizer step.
    cursor: index of the next task batch; row ids follow from it.
    then: called with the device rollout as soon as it is dispatched, so that scoring overlaps with
      verification; not called where groups may still be dropped.

  Raises:
    DriedUpError: saying how many groups were all right, all wrong or unscored.
  """
  cfg = parts.cfg
  begin = time.perf_counter()
  params = parts.to_sampler(params)
  if not cfg.dynamic_sampling.enabled:
    problems, rollout, sampler = _sample(parts, params, step, cursor)
    if then is not None:
      then(rollout)
    host = parallel.gather_host(rollout)
    sampled = time.perf_counter()
    verdicts = collect.verify(parts, problems, host)
    metrics = sampler | {
        "time/rollout": sampled - begin,
        "time/verify": time.perf_counter() - sampled
    }
    return Draw(problems, rollout, host, verdicts, cursor + 1, metrics)
  found, samplers, tally, draws = [], [], np.zeros(4, int), 0
  while sum(len(part.problems) for part in found) < cfg.rollout.prompts:
    if draws == cfg.dynamic_sampling.max_draws:
      raise DriedUpError(_why_dry(cfg, tally))
    problems, rollout, sampler = _sample(parts, params, step, cursor + draws)
    samplers.append(sampler)
    host = parallel.gather_host(rollout)
    verdicts = collect.verify(parts, problems, host)
    kinds = group_kinds(verdicts, cfg.rollout.group_size)
    tally += np.bincount(kinds, minlength=4)
    found.append(
        _take(Draw(problems, None, host, verdicts, 0, {}), np.flatnonzero(kinds == MIXED), cfg))
    draws += 1
  metrics = _over_draws(samplers) | {
      "time/rollout": time.perf_counter() - begin, "dynamic_sampling/draws": float(draws),
      "dynamic_sampling/kept_groups": float(tally[MIXED] / tally.sum())}
  joined = _take(_join(found), np.arange(cfg.rollout.prompts), cfg)
  return dataclasses.replace(joined, rollout=parallel.to_global(joined.host, parts.mesh),
                             cursor=cursor + draws, metrics=metrics)


def _sample(parts: Parts, params, step,
            cursor: int) -> tuple[list[Problem], Rollout, dict[str, float]]:
  """The task's batch at `cursor`, its completions on the device, and the sampler's own metrics."""
  cfg = parts.cfg
  problems = parts.task.batch(cursor)
  prompts = collect.prompt_batch(parts, problems, cfg.rollout.group_size, cursor * cfg.rows)
  rollout, metrics = parts.sample(params, prompts, collect.iteration_key(cfg.seed, cursor),
                                  parts.sampling)
  return problems, rollout.replace(policy_step=rollout.policy_step + step), metrics


# of the sampler's metrics; the others are ratios
_SUMMED = {"rollout/chunks", "tool/calls", "time/tools"}


def _over_draws(samplers: list[dict[str, float]]) -> dict[str, float]:
  """Counts and seconds summed, ratios averaged with the same weight for each draw."""
  return {name: float((np.sum if name in _SUMMED else np.mean)([each[name] for each in samplers]))
          for name in samplers[0]}


MIXED, ALL_RIGHT, ALL_WRONG, UNSCORED = 0, 1, 2, 3


def group_kinds(verdicts: Verdicts, group_size: int) -> np.ndarray:
  """For each group: MIXED rewards, constant (ALL_RIGHT or ALL_WRONG), or UNSCORED (fewer than two
  kept rows).
  """
  rewards, keep, correct = (
      x.reshape(-1, group_size) for x in (verdicts.rewards, verdicts.keep, verdicts.correct))
  low = np.where(keep, rewards, np.inf).min(1)
  high = np.where(keep, rewards, -np.inf).max(1)
  kinds = np.where(high > low, MIXED, np.where((correct | ~keep).all(1), ALL_RIGHT, ALL_WRONG))
  return np.where(keep.sum(1) < 2, UNSCORED, kinds)


def _why_dry(cfg, tally) -> str:
  share = lambda kind: f"{100 * tally[kind] / max(1, tally.sum()):.0f} %"
  return (
      f"dynamic sampling ran dry: {tally[MIXED]} of {tally.sum()} groups in "
      f"{cfg.dynamic_sampling.max_draws} draws "
      f"have rewards that differ, rollout.prompts = {cfg.rollout.prompts} are needed "
      f"({share(ALL_RIGHT)} constant "
      f"and right, {share(ALL_WRONG)} constant and wrong, {share(UNSCORED)} unscored). Fix: "
      "problems nearer to "
      "what the policy can just do, a larger rollout.group_size, a larger "
      "dynamic_sampling.max_draws, or fewer "
      "prompts.")


def _take(part: Draw, groups: np.ndarray, cfg) -> Draw:
  """The given groups of a draw."""
  size = cfg.rollout.group_size
  rows = (groups[:, None] * size + np.arange(size)).reshape(-1)
  return Draw([part.problems[g] for g in groups], None, jax.tree.map(lambda x: x[rows], part.host),
              part.verdicts.take(rows), 0, {})


def _join(parts: list[Draw]) -> Draw:
  host = jax.tree.map(lambda *xs: np.concatenate(xs), *(p.host for p in parts))
  return Draw([problem for p in parts for problem in p.problems], None, host,
              Verdicts.join([p.verdicts for p in parts]), 0, {})


def shaped(verdicts: Verdicts, host: Rollout, cfg: ShapingConfig,
           limit: int) -> tuple[np.ndarray, np.ndarray]:
  """(rewards, keep), both [B], after the length-aware rules; `limit` is the completion's longest
  length, tokens.
  """
  new = (host.length - host.prompt_length).astype(np.float64)
  keep = verdicts.keep & ~host.truncated if cfg.mask_truncated else verdicts.keep
  shape = SHAPINGS[cfg.name].function
  rewards = shape(verdicts.rewards, verdicts.correct, new, host.group_id, keep,
                  SHAPINGS.numbers(cfg))
  if cfg.overlong_buffer:
    rewards = rewards + overlong_penalty(new, limit, cfg.overlong_buffer, cfg.overlong_factor)
  return np.where(keep, rewards, 0.0).astype(np.float32), keep
