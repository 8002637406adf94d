"""Dynamic sampling (DAPO, arXiv 2503.14476): groups without a learning signal are replaced by new
ones.
"""

import dataclasses
import time

import jax
import numpy as np

from jaxrl_llm import parallel
from jaxrl_llm.parallel import processes
from jaxrl_llm.runs.rollout_batch import (
  DriedUpError,
  RolloutBatch,
  dispatch,
  pooled_metrics,
  verify_batch,
)
from jaxrl_llm.runs.verdicts import Verdicts
from jaxrl_llm.types import Params
from jaxrl_llm.wiring.loop import RolloutSource

MIXED, ALL_RIGHT, ALL_WRONG, UNSCORED = range(4)


def sample_batch(source: RolloutSource, params: Params, step: jax.Array,
                 cursor: int) -> RolloutBatch:
  """Samples and verifies `rollout.prompts` groups.

  Dynamic sampling drops groups whose kept rewards are all equal, or that have fewer than two kept
  rows, and samples further task batches instead, up to `max_draws`. Surplus groups are dropped.

  All processes count the groups of all processes, and distribute them evenly.

  Args:
    params, step: the sampling policy, as the model reads it, and its optimizer step.
    cursor: index of the next task batch.

  Raises:
    DriedUpError: saying how many groups were all right, all wrong or unscored.
  """
  begin = time.perf_counter()
  params = source.sampler.prepare(params)
  if not source.max_draws:
    return verify_batch(source, dispatch(source, params, step, cursor))
  prompts, group_size = source.rollout.prompts, source.rollout.group_size
  draws, counts, metrics, tally, tokens = [], [], [], np.zeros(4, int), 0
  while tally[MIXED] < prompts:
    if len(draws) == source.max_draws:
      raise dried_up(source.max_draws, prompts, tally)
    dispatched = dispatch(source, params, step, cursor + len(draws))
    batch = verify_batch(source, dispatched)
    local_kinds = group_kinds(batch.verdicts, group_size)
    kinds = processes.exchange("kinds", local_kinds)
    tally += np.bincount(np.concatenate(kinds), minlength=4)
    counts.append([int(np.sum(part == MIXED)) for part in kinds])
    draws.append(_take(batch, np.flatnonzero(local_kinds == MIXED), group_size))
    metrics.append(dispatched.metrics)
    tokens += int(np.sum(batch.host.length - batch.host.prompt_length))
  added = {
      "time/rollout": time.perf_counter() - begin,
      "dynamic_sampling/draws": float(len(draws)),
      "dynamic_sampling/kept_groups": float(tally[MIXED] / tally.sum()),
      "dynamic_sampling/tokens": float(sum(processes.exchange("tokens", tokens))),
  }
  local_batch = _dealt(_join(draws), counts, prompts, group_size)
  pooled = pooled_metrics(processes.exchange("samplers", pooled_metrics(metrics)))
  rollout = parallel.to_global(local_batch.host, source.sampler.mesh)
  return dataclasses.replace(local_batch, rollout=rollout, metrics=pooled | added)


def group_kinds(verdicts: Verdicts, group_size: int) -> np.ndarray:
  """Returns the kind of each group, by the rewards of its kept rows.

  MIXED: they differ. ALL_RIGHT, ALL_WRONG: they are equal. UNSCORED: fewer than two rows are kept.
  """
  rewards = verdicts.rewards.reshape(-1, group_size)
  keep = verdicts.keep.reshape(-1, group_size)
  correct = verdicts.correct.reshape(-1, group_size)
  low = np.where(keep, rewards, np.inf).min(1)
  high = np.where(keep, rewards, -np.inf).max(1)
  constant = np.where((correct | ~keep).all(1), ALL_RIGHT, ALL_WRONG)
  return np.where(keep.sum(1) < 2, UNSCORED, np.where(high > low, MIXED, constant))


def _dealt(local_groups: RolloutBatch, counts: list[list[int]], groups: int,
           group_size: int) -> RolloutBatch:
  """Returns this process's share of the first `groups` groups of all processes.

  Groups are in the order of their rounds of sampling, and of the processes in a round, so that the
  choice does not depend on the number of processes.

  Args:
    local_groups: this process's groups, in the order of the rounds.
    counts: of the groups of each process, for each round.
  """
  owner = np.concatenate([np.repeat(np.arange(len(draw)), draw) for draw in counts])
  nth = np.zeros_like(owner)  # which of its owner's groups each one is
  for process in range(processes.count()):
    nth[owner == process] = np.arange(np.sum(owner == process))
  owner, nth = owner[:groups], nth[:groups]
  target = np.arange(groups) // (groups // processes.count())
  mine = owner == processes.index()
  dealt_groups = processes.deal("groups", [
      _take(local_groups, nth[mine & (target == receiver)], group_size)
      for receiver in range(processes.count())
  ])
  # They come owner by owner, and go into the order of all.
  order = np.argsort(owner[target == processes.index()], kind="stable")
  return _take(_join(dealt_groups), np.argsort(order), group_size)


def _take(batch: RolloutBatch, groups: np.ndarray, group_size: int) -> RolloutBatch:
  """Returns the given groups of a batch, on the host only."""
  rows = (groups[:, None] * group_size + np.arange(group_size)).reshape(-1)
  return dataclasses.replace(
      batch,
      problems=[batch.problems[group] for group in groups],
      rollout=None,
      host=jax.tree.map(lambda x: x[rows], batch.host),
      verdicts=batch.verdicts.take(rows),
  )


def _join(batches: list[RolloutBatch]) -> RolloutBatch:
  """Returns the groups of several batches, on the host only."""
  return dataclasses.replace(
      batches[-1],
      problems=[problem for batch in batches for problem in batch.problems],
      host=jax.tree.map(lambda *xs: np.concatenate(xs), *(batch.host for batch in batches)),
      verdicts=Verdicts.join([batch.verdicts for batch in batches]),
  )


def dried_up(max_draws: int, prompts: int, tally: np.ndarray) -> DriedUpError:
  """Returns the error after `max_draws` batches; `tally` counts their groups by kind."""
  total = tally.sum()
  percent = 100 * tally / max(1, total)
  return DriedUpError(
      f"dynamic sampling ran dry: {tally[MIXED]} of {total} groups in {max_draws} draws have "
      f"rewards that differ, rollout.prompts = {prompts} are needed "
      f"({percent[ALL_RIGHT]:.0f} % constant and right, "
      f"{percent[ALL_WRONG]:.0f} % constant and wrong, {percent[UNSCORED]:.0f} % unscored). "
      "Fix: problems nearer to what the policy can just do, a larger rollout.group_size, a larger "
      "dynamic_sampling.max_draws, or fewer prompts.")
