"""Batches of the groups that end first (`updates.in_flight`): the other completions continue under
the next weights.

An iteration has the `rollout.prompts` unfinished groups of the previous one and as many new ones,
and ends once `rollout.prompts` groups have ended. Of several processes each has its share of all
three, and an engine that waits for no other: batches then hold other groups, with the same tokens
wherever the same weights sampled them. So the completions of a batch, and the tokens of
a completion, may be sampled by different policies. Short completions enter earlier batches than
long ones that were started with them.
"""

import time

import jax
import numpy as np
from jax.sharding import Mesh

from jaxrl_llm import parallel
from jaxrl_llm.parallel import processes
from jaxrl_llm.rollouts.in_flight import InFlight, Unfinished, not_begun
from jaxrl_llm.runs.rollout_batch import Dispatched, by_row, iteration_key, prompt_batch
from jaxrl_llm.types import Params, Problem, PromptBatch, Rollout
from jaxrl_llm.wiring.learner import Learner
from jaxrl_llm.wiring.loop import RolloutSource


def dispatch(source: RolloutSource, params: Params, step: jax.Array, cursor: int,
             begun: Unfinished) -> Dispatched:
  """Continues the groups in `begun`, and samples the groups of the task's batch at `cursor`.

  Args:
    params: of the sampling policy, from `sampler.prepare`.
    step: its optimizer step, recorded with the tokens that it samples.
    begun: what the iteration before left in this process.

  Returns:
    The groups that ended first, in the order in which they were started; `unfinished` has the
    others.
  """
  begin, sampler = time.perf_counter(), source.sampler
  problems, prompts = _prompts(source, cursor, begun)
  problem_of = by_row(prompts, problems)
  # A run's only sampling key: a completion's noise depends only on its row id.
  rollout, unfinished, metrics = sampler.sample_on(
      params, prompts, iteration_key(source.seed, 0), sampler.sampling,
      InFlight(begun, int(step), source.rollout.prompts // processes.count()), problem_of)
  first_rows = parallel.local_rows(rollout).row_id[::source.rollout.group_size]
  metrics |= {"in_flight/unfinished_tokens": float(np.sum(unfinished.count))}
  return Dispatched([problem_of[int(row)] for row in first_rows], rollout, cursor + 1, metrics,
                    begin, unfinished)


def _prompts(source: RolloutSource, cursor: int,
             begun: Unfinished) -> tuple[list[Problem], PromptBatch]:
  """Returns (problems, prompts) of the groups in `begun` and of this process's share of the task's
  batch at `cursor`.

  A group's row ids say which problem of which batch is its own.
  """
  rollout, size = source.rollout, source.rollout.group_size
  of_begun = begun.row_id[::size]
  batches = {number: source.task.batch(number)
             for number in sorted({*map(int, of_begun // rollout.rows), cursor})}
  problems = [batches[int(row) // rollout.rows][int(row) % rollout.rows // size]
              for row in of_begun] + batches[cursor][source.process_prompts]
  row_id = np.concatenate([begun.row_id, row_ids(cursor, rollout.rows)])
  prompts = prompt_batch(source.task, problems, rollout.max_prompt_tokens, group_size=size)
  return problems, prompts.replace(row_id=row_id, group_id=row_id // size)


def first_rows(learner: Learner) -> Unfinished:
  """Returns this process's completions of the task's first batch, none of which is started.

  What follows a completion's tokens is never read, so any id may be there.
  """
  rollout = learner.rollout
  return not_begun(row_ids(1, rollout.rows), rollout.max_new_tokens)


def row_ids(cursor: int, rows: int) -> np.ndarray:
  """Returns this process's row ids of the task's batch at `cursor`, as in
  `rollout_batch.next_prompts`; `rows` are of all processes.
  """
  return cursor * rows + np.arange(rows, dtype=np.int32)[processes.share(rows)]


def saved(unfinished: Unfinished, mesh: Mesh | None) -> dict:
  """Returns the tree of a checkpoint: with several processes, arrays of the rows of all."""
  spread = mesh is not None and parallel.spans_processes(mesh)
  return parallel.to_global(unfinished._asdict(), mesh) if spread else unfinished._asdict()


def shapes(unfinished: Unfinished, mesh: Mesh) -> dict:
  """Returns shapes, dtypes and shardings of `saved`."""
  def of_all(x: np.ndarray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((processes.count() * len(x), *x.shape[1:]), x.dtype,
                                sharding=parallel.rows(mesh))

  spread = parallel.spans_processes(mesh)
  return jax.tree.map(of_all, unfinished._asdict()) if spread else unfinished._asdict()


def versions_everywhere(rollout: Rollout, step: int) -> dict[str, float]:
  """Returns `version_metrics` of the rows of all processes, each of which has some on the host."""
  rows = processes.exchange("versions", (rollout.mask, rollout.policy_step))
  mask, policy_step = map(np.concatenate, zip(*rows, strict=True))
  return version_metrics(mask, policy_step, step)


def version_metrics(mask: np.ndarray, policy_step: np.ndarray, step: int) -> dict[str, float]:
  """Returns the number of policies per completion, and the staleness of tokens by position.

  Args:
    mask, policy_step: [B, L] of a rollout, on the host.
    step: optimizer steps before the updates.

  Returns:
    `in_flight/versions` and `in_flight/versions_max` over the rows with a token, and
    `in_flight/age/from_<n>`: the mean staleness, in optimizer steps, of the policy tokens whose
    number in their completion is n or more, but below the next bucket's n.
  """
  versions = np.array([len(np.unique(steps[policy])) for steps, policy
                       in zip(policy_step, mask, strict=True) if policy.any()] or [0])
  number, age = np.cumsum(mask, 1)[mask], (step - policy_step)[mask]
  bucket = np.floor(np.log2(np.maximum(number, 1))).astype(int)
  return {"in_flight/versions": float(versions.mean()),
          "in_flight/versions_max": float(versions.max()),
          **{f"in_flight/age/from_{2**i}": float(age[bucket == i].mean())
             for i in np.unique(bucket)}}
