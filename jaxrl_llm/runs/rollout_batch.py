"""One iteration's rollouts: prompts, completions and verdicts."""

import dataclasses
import time

import jax
import numpy as np

from jaxrl_llm import parallel
from jaxrl_llm.config import Config
from jaxrl_llm.rollouts.environment import Environment
from jaxrl_llm.runs.dynamic_sampling import MIXED, dried_up, group_kinds, pooled_metrics
from jaxrl_llm.runs.prompt_batch import by_row, iteration_key, prompt_batch
from jaxrl_llm.runs.samplers import Sampler
from jaxrl_llm.runs.verdicts import Verdicts, verify
from jaxrl_llm.types import Params, Problem, Rollout, Task


@dataclasses.dataclass(frozen=True)
class Dispatched:
  """Rows that the devices may still be sampling.

  Attributes:
    problems: one per group.
    rollout: on the device.
    cursor: index of the next task batch.
    metrics: the sampler's, host values.
    begin: when sampling began, by `time.perf_counter`.
  """

  problems: list[Problem]
  rollout: Rollout
  cursor: int
  metrics: dict[str, float]
  begin: float


@dataclasses.dataclass(frozen=True)
class RolloutBatch:
  """Whole groups with their verdicts.

  Attributes:
    problems: one per group.
    rollout: on the device.
    host: the same rows on the host.
    verdicts: of the rows, before shaping.
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
  problems = task.batch(cursor)
  prompts = prompt_batch(task, problems, cfg.rollout.max_prompt_tokens,
                         group_size=cfg.rollout.group_size, first_row=cursor * cfg.rows)
  told = {"problems": by_row(prompts, problems)} if sampler.environment else {}
  rollout, metrics = sampler.sample(params, parallel.to_global(prompts, sampler.mesh),
                                    iteration_key(cfg.seed, cursor), sampler.sampling, **told)
  rollout = rollout.replace(policy_step=rollout.policy_step + step)
  return Dispatched(problems, rollout, cursor + 1, metrics, begin)


def verified(cfg: Config, task: Task, environment: Environment | None,
             dispatched: Dispatched) -> RolloutBatch:
  """Waits for the rows and verifies them."""
  host = parallel.gather_host(dispatched.rollout)
  sampled = time.perf_counter()
  verdicts = verify(task, environment, cfg.rollout, dispatched.problems, host)
  metrics = dispatched.metrics | {
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
  found: list = []
  metrics, tally = [], np.zeros(4, int)
  while sum(len(batch.problems) for batch in found) < cfg.rollout.prompts:
    if len(found) == cfg.dynamic_sampling.max_draws:
      raise dried_up(cfg, tally)
    dispatched = dispatch(cfg, task, sampler, params, step, cursor + len(found))
    batch = verified(cfg, task, sampler.environment, dispatched)
    kinds = group_kinds(batch.verdicts, cfg.rollout.group_size)
    tally += np.bincount(kinds, minlength=4)
    found.append(_take(batch, np.flatnonzero(kinds == MIXED), cfg.rollout.group_size))
    metrics.append(dispatched.metrics)
  times = {
      "time/rollout": time.perf_counter() - begin,
      "dynamic_sampling/draws": float(len(found)),
      "dynamic_sampling/kept_groups": float(tally[MIXED] / tally.sum()),
  }
  joined = _take(_join(found), np.arange(cfg.rollout.prompts), cfg.rollout.group_size)
  return dataclasses.replace(joined, rollout=parallel.to_global(joined.host, sampler.mesh),
                             metrics=pooled_metrics(metrics) | times)


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
