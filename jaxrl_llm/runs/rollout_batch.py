"""One iteration's rollouts: prompts, completions and verdicts."""

import dataclasses
import time
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm import parallel
from jaxrl_llm.parallel import processes
from jaxrl_llm.runs.verdicts import Verdicts, verify
from jaxrl_llm.tasks.rewards import refuse_if_all_failed
from jaxrl_llm.training.score import Scores
from jaxrl_llm.types import Params, Problem, PromptBatch, Rollout, Task
from jaxrl_llm.wiring.loop import RolloutSource

if TYPE_CHECKING:
  from jaxrl_llm.rollouts.in_flight import Unfinished

# Metrics of the sampler that are summed over several batches; the others are ratios.
SUMMED = {"rollout/chunks", "tool/calls", "time/tools", "server/failed_groups",
          "server/redrawn_batches", "time/server_away", "in_flight/unfinished_tokens"}


class DriedUpError(RuntimeError):
  """Dynamic sampling found too few groups whose rewards differ."""


@dataclasses.dataclass(frozen=True)
class Dispatched:
  """Rows that the devices may still be sampling.

  Attributes:
    problems: one per group of this process.
    rollout: on the devices of all processes.
    cursor: index of the next task batch.
    metrics: the sampler's, host values of this process.
    begin: when sampling began, by `time.perf_counter`.
    unfinished: with `updates.in_flight`, the completions that continue in the next iteration.
    batch: the same rows verified, where sampling had to wait for them; else None.
  """

  problems: list[Problem]
  rollout: Rollout
  cursor: int
  metrics: dict[str, float]
  begin: float
  unfinished: "Unfinished | None" = None
  batch: "RolloutBatch | None" = None

  @classmethod
  def of_batch(cls, batch: "RolloutBatch") -> "Dispatched":
    """Returns a verified batch as what was dispatched."""
    return cls(batch.problems, batch.rollout, batch.cursor, batch.metrics, time.perf_counter(),
               batch.unfinished, batch)


@dataclasses.dataclass(frozen=True)
class RolloutBatch:
  """Complete groups with their verdicts; arrays on the host hold this process's groups.

  Attributes:
    problems: one per group of this process.
    rollout: on the devices of all processes.
    host: this process's rows of it.
    verdicts: of these rows, before shaping.
    cursor: index of the next task batch.
    metrics: host values.
    unfinished: as in `Dispatched`.
  """

  problems: list[Problem]
  rollout: Rollout
  host: Rollout
  verdicts: Verdicts
  cursor: int
  metrics: dict[str, float]
  unfinished: "Unfinished | None" = None


class ScoredBatch(NamedTuple):
  """A verified batch with its scores and shaped rewards.

  Attributes:
    batch: as it was sampled.
    scores: on the devices of all processes.
    rewards, keep: [B] f32 and bool, of this process's rows, after shaping.
  """

  batch: RolloutBatch
  scores: Scores
  rewards: np.ndarray
  keep: np.ndarray


def prompt_batch(task: Task, problems: list[Problem], width: int, *, group_size: int = 1,
                 first_row: int = 0) -> PromptBatch:
  """Lays each problem's prompt out on `group_size` contiguous rows, as numpy arrays.

  Group ids follow from row ids, so they are unique in the run and groups of several batches may be
  joined.

  Args:
    width: columns of a prompt, `rollout.max_prompt_tokens`.
    first_row: row id of the first row, a multiple of `group_size`; the others count up from it.
  """
  ids = [task.render(problem) for problem in problems]
  tokens = np.full((len(ids), width), task.tokenizer.pad_token_id, np.int32)
  for row, prompt in enumerate(ids):
    tokens[row, :len(prompt)] = prompt
  length = np.array([len(prompt) for prompt in ids], np.int32)
  row_id = first_row + np.arange(len(problems) * group_size, dtype=np.int32)
  return PromptBatch(np.repeat(tokens, group_size, 0), np.repeat(length, group_size), row_id,
                     row_id // group_size)


def by_row(prompts: PromptBatch, problems: list[Problem]) -> dict[int, Problem]:
  """Returns the problem of each row id; `problems` has one per group, in the order of the rows."""
  size = len(prompts.row_id) // len(problems)
  return {int(row): problems[i // size] for i, row in enumerate(prompts.row_id)}


def iteration_key(seed: int, iteration: int) -> jax.Array:
  """Returns the sampling key of an iteration. Row ids are folded into it, so each row has its own
  noise.
  """
  return jax.random.fold_in(jax.random.key(seed), iteration)


def next_prompts(source: RolloutSource, cursor: int) -> tuple[list[Problem], PromptBatch]:
  """Returns (problems, prompts on the host) of this process, of the task's batch at `cursor`."""
  task, rollout, process_prompts = source.task, source.rollout, source.process_prompts
  problems = task.batch(cursor)[process_prompts]
  first_row = cursor * rollout.rows + process_prompts.start * rollout.group_size
  return problems, prompt_batch(task, problems, rollout.max_prompt_tokens,
                                group_size=rollout.group_size, first_row=first_row)


def dispatch(source: RolloutSource, params: Params, step: jax.Array, cursor: int) -> Dispatched:
  """Starts to sample the task's batch at `cursor`; on return its rows may not be finished.

  Args:
    params: of the sampling policy, from `sampler.prepare`.
    step: its optimizer step, recorded with the rows.
    cursor: index of the task batch; row ids follow from it.
  """
  begin, sampler = time.perf_counter(), source.sampler
  problems, prompts = next_prompts(source, cursor)
  row_inputs = {"problems": by_row(prompts, problems)} if sampler.environment else {}
  local_prompts = parallel.to_global(prompts, source.prompt_mesh)
  rollout, metrics = sampler.sample(params, local_prompts, iteration_key(source.seed, cursor),
                                    sampler.sampling, **row_inputs)
  rollout = rollout.replace(policy_step=jnp.where(rollout.mask, step, 0))
  return Dispatched(problems, rollout, cursor + 1, metrics, begin)


def verify_batch(source: RolloutSource, dispatched: Dispatched) -> RolloutBatch:
  """Waits for this process's rows and verifies them, unless they are verified already."""
  if dispatched.batch is not None:
    return dispatched.batch
  host = parallel.local_rows(dispatched.rollout)
  sampled = time.perf_counter()
  verdicts = verify(source.task, source.sampler.environment, source.rollout, dispatched.problems,
                    host)
  refuse_if_all_failed(source.task, verdicts.given)
  metrics = dispatched.metrics
  if source.multi_process:
    metrics = pooled_metrics(processes.exchange("samplers", metrics))
  metrics = metrics | {
      "time/rollout": sampled - dispatched.begin,
      "time/verify": time.perf_counter() - sampled,
  }
  return RolloutBatch(dispatched.problems, dispatched.rollout, host, verdicts, dispatched.cursor,
                      metrics, dispatched.unfinished)


def pooled_metrics(samplers: list[dict[str, float]]) -> dict[str, float]:
  """Returns the sampler's metrics over several batches or processes: counts and seconds are summed,
  ratios averaged.
  """
  totals = {}
  for name in samplers[0]:
    pool = np.sum if name in SUMMED else np.mean
    totals[name] = float(pool([metrics[name] for metrics in samplers]))
  return totals
