"""One iteration's rollouts: prompts, completions and verdicts."""

import dataclasses
import time

import jax
import numpy as np

from jaxrl_llm import parallel
from jaxrl_llm.build.samplers import Sampler
from jaxrl_llm.config import Config
from jaxrl_llm.parallel import processes
from jaxrl_llm.rollouts.environment import Environment
from jaxrl_llm.runs.dynamic_sampling import MIXED, dried_up, group_kinds, pooled_metrics
from jaxrl_llm.runs.prompt_batch import by_row, iteration_key, prompt_batch
from jaxrl_llm.runs.verdicts import Verdicts, verify
from jaxrl_llm.types import Params, Problem, Rollout, Task


@dataclasses.dataclass(frozen=True)
class Dispatched:
  """Rows that the devices may still be sampling.

  Attributes:
    problems: one per group of this process.
    rollout: on the devices of all processes.
    cursor: index of the next task batch.
    metrics: the sampler's, host values of this process.
    begin: when sampling began, by `time.perf_counter`.
  """

  problems: list[Problem]
  rollout: Rollout
  cursor: int
  metrics: dict[str, float]
  begin: float


@dataclasses.dataclass(frozen=True)
class RolloutBatch:
  """Whole groups with their verdicts; on the host are those of this process.

  Attributes:
    problems: one per group of this process.
    rollout: on the devices of all processes.
    host: this process's rows of it.
    verdicts: of these rows, before shaping.
    cursor: index of the next task batch.
    metrics: host values.
  """

  problems: list[Problem]
  rollout: Rollout
  host: Rollout
  verdicts: Verdicts
  cursor: int
  metrics: dict[str, float]


def dispatch(cfg: Config, task: Task, sampler: Sampler, params: Params, step: jax.Array,
             cursor: int) -> Dispatched:
  """Samples the task's batch at `cursor`; its rows may still be in the making on return.

  Args:
    params: of the sampling policy, from `sampler.prepare`.
    step: its optimizer step, recorded with the rows.
    cursor: index of the task batch; row ids follow from it.
  """
  begin = time.perf_counter()
  own = processes.share(cfg.rollout.prompts)
  problems = task.batch(cursor)[own]
  prompts = prompt_batch(task, problems, cfg.rollout.max_prompt_tokens,
                         group_size=cfg.rollout.group_size,
                         first_row=cursor * cfg.rows + own.start * cfg.rollout.group_size)
  told = {"problems": by_row(prompts, problems)} if sampler.environment else {}
  placed = parallel.to_global(prompts, parallel.of_process(sampler.mesh))
  rollout, metrics = sampler.sample(params, placed, iteration_key(cfg.seed, cursor),
                                    sampler.sampling, **told)
  rollout = rollout.replace(policy_step=rollout.policy_step + step)
  return Dispatched(problems, rollout, cursor + 1, metrics, begin)


def verified(cfg: Config, task: Task, environment: Environment | None,
             dispatched: Dispatched) -> RolloutBatch:
  """Waits for this process's rows and verifies them."""
  host = parallel.local_rows(dispatched.rollout)
  sampled = time.perf_counter()
  verdicts = verify(task, environment, cfg.rollout, dispatched.problems, host)
  metrics = pooled_metrics(processes.exchange("samplers", dispatched.metrics)) | {
      "time/rollout": sampled - dispatched.begin,
      "time/verify": time.perf_counter() - sampled,
  }
  return RolloutBatch(dispatched.problems, dispatched.rollout, host, verdicts, dispatched.cursor,
                      metrics)


def sample_batch(cfg: Config, task: Task, sampler: Sampler, params: Params, step: jax.Array,
                 cursor: int) -> RolloutBatch:
  """Samples and verifies `rollout.prompts` groups.

  Dynamic sampling drops groups whose kept rewards are all equal, or that have fewer than two kept
  rows, and samples further task batches instead, up to `max_draws`. Surplus groups are dropped.

  All processes count the groups of all, and deal them so that each has as many.

  Args:
    params, step: the sampling policy, as the model reads it, and its optimizer step.
    cursor: index of the next task batch.

  Raises:
    DriedUpError: saying how many groups were all right, all wrong or unscored.
  """
  begin = time.perf_counter()
  params = sampler.prepare(params)
  if not cfg.dynamic_sampling.enabled:
    dispatched = dispatch(cfg, task, sampler, params, step, cursor)
    return verified(cfg, task, sampler.environment, dispatched)
  found, counts, metrics, tally, tokens = [], [], [], np.zeros(4, int), 0
  while tally[MIXED] < cfg.rollout.prompts:
    if len(found) == cfg.dynamic_sampling.max_draws:
      raise dried_up(cfg, tally)
    dispatched = dispatch(cfg, task, sampler, params, step, cursor + len(found))
    batch = verified(cfg, task, sampler.environment, dispatched)
    own = group_kinds(batch.verdicts, cfg.rollout.group_size)
    kinds = processes.exchange("kinds", own)
    tally += np.bincount(np.concatenate(kinds), minlength=4)
    counts.append([int(np.sum(part == MIXED)) for part in kinds])
    found.append(_take(batch, np.flatnonzero(own == MIXED), cfg.rollout.group_size))
    metrics.append(dispatched.metrics)
    tokens += int(np.sum(batch.host.length - batch.host.prompt_length))
  added = {
      "time/rollout": time.perf_counter() - begin,
      "dynamic_sampling/draws": float(len(found)),
      "dynamic_sampling/kept_groups": float(tally[MIXED] / tally.sum()),
      "dynamic_sampling/tokens": float(sum(processes.exchange("tokens", tokens))),
  }
  joined = _dealt(_join(found), counts, cfg.rollout.prompts, cfg.rollout.group_size)
  pooled = pooled_metrics(processes.exchange("samplers", pooled_metrics(metrics)))
  return dataclasses.replace(joined, rollout=parallel.to_global(joined.host, sampler.mesh),
                             metrics=pooled | added)


def _dealt(mixed: RolloutBatch, counts: list[list[int]], wanted: int,
           group_size: int) -> RolloutBatch:
  """This process's share of the first `wanted` groups of all processes.

  Groups are in the order of their draws, and of the processes in a draw, so that which ones are
  taken does not depend on how many processes there are.

  Args:
    mixed: this process's groups, in the order of the draws.
    counts: of the groups of each process, for each draw.
  """
  owner = np.concatenate([np.repeat(np.arange(len(draw)), draw) for draw in counts])
  nth = np.zeros_like(owner)  # which of its owner's groups each one is
  for process in range(processes.count()):
    nth[owner == process] = np.arange(np.sum(owner == process))
  owner, nth = owner[:wanted], nth[:wanted]
  target = np.arange(wanted) // (wanted // processes.count())
  mine = owner == processes.index()
  received = processes.deal("groups", [_take(mixed, nth[mine & (target == other)], group_size)
                                       for other in range(processes.count())])
  # They come owner by owner, and go into the order of all.
  order = np.argsort(owner[target == processes.index()], kind="stable")
  return _take(_join(received), np.argsort(order), group_size)


def _take(batch: RolloutBatch, groups: np.ndarray, group_size: int) -> RolloutBatch:
  """The given groups of a batch, on the host only."""
  rows = (groups[:, None] * group_size + np.arange(group_size)).reshape(-1)
  return dataclasses.replace(
      batch,
      problems=[batch.problems[group] for group in groups],
      rollout=None,
      host=jax.tree.map(lambda x: x[rows], batch.host),
      verdicts=batch.verdicts.take(rows),
  )


def _join(batches: list[RolloutBatch]) -> RolloutBatch:
  """The groups of several batches, on the host only."""
  return dataclasses.replace(
      batches[-1],
      problems=[problem for batch in batches for problem in batch.problems],
      host=jax.tree.map(lambda *xs: np.concatenate(xs), *(batch.host for batch in batches)),
      verdicts=Verdicts.join([batch.verdicts for batch in batches]),
  )
