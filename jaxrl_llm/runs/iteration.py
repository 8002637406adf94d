"""One iteration: sample, verify, score, shape, weigh, update."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from jaxrl_llm import parallel
from jaxrl_llm.build.learner import Learner
from jaxrl_llm.build.samplers import Sampler
from jaxrl_llm.build.scoring import score_rollout
from jaxrl_llm.config import Config
from jaxrl_llm.parallel import processes
from jaxrl_llm.runs.overlap import Ahead
from jaxrl_llm.runs.records import host_metrics, rollout_rows
from jaxrl_llm.runs.rewards import trained_rewards
from jaxrl_llm.runs.rollout_batch import RolloutBatch, dispatch, sample_batch, verified
from jaxrl_llm.runs.run_state import RunState
from jaxrl_llm.training.score import Scores
from jaxrl_llm.training.transforms import PhaseInputs
from jaxrl_llm.types import Params, Rollout, Task, TrainState


class DeviceMetrics(NamedTuple):
  """Mergeable metrics, which the device may still be computing.

  Attributes:
    steps: of each update.
    batch: of correction, reward, advantage and mismatch.
    phases: of each step that an update transform took before, by its name.
  """

  steps: list[dict]
  batch: dict
  phases: dict[str, list[dict]]


class Iteration(NamedTuple):
  """What an iteration leaves.

  Attributes:
    run: the next iteration's state.
    metrics: on the device.
    values: metrics on the host.
    rows: a JSON-able record of each row of this process.
  """

  run: RunState
  metrics: DeviceMetrics
  values: dict[str, float]
  rows: list[dict]


class Policy(NamedTuple):
  """params: as the model reads them; step: int32 scalar, their optimizer step."""

  params: Params
  step: jax.Array


def iterate(cfg: Config, task: Task, learner: Learner, sampler: Sampler, run: RunState,
            ref_params: Params | None, iteration: int, ahead: Ahead | None = None) -> Iteration:
  """One rollout batch and its updates.

  Args:
    run: the state before; its arrays are donated.
    ref_params: the KL reference; None where nothing reads it.
    iteration: counted from 1.
    ahead: samples the next batch meanwhile, unless this is the last iteration. Needs
      `updates.staleness`.
  """
  current, aged, following = _policy(learner, run.state), run.aged(), None
  policy = _policy(learner, run.sampling_state()) if run.stale else current
  if ahead is not None and iteration < cfg.iterations:
    following = _policy(learner, aged.sampling_state())

  base = None if learner.base is None else learner.base(run.state)

  def score(rollout: Rollout) -> Scores:
    return score_rollout(learner.scoring, current.params, ref_params, rollout,
                         own=policy is current, packing=learner.packing(rollout), base=base)

  batch, scores = _sample_and_score(cfg, task, sampler, score, policy, run.cursor, ahead, following)

  rewards, keep = trained_rewards(cfg, batch.verdicts, batch.host, iteration)
  values = _host_values(cfg, batch, run, rewards, keep)
  device_rewards, device_keep = parallel.to_global((rewards, keep), learner.mesh)
  batches, metrics = learner.batches(batch.rollout, device_rewards, device_keep, scores)
  if learner.scoring.meter is not None and scores.own is None:
    metrics |= learner.scoring.meter(policy.params, batch.rollout, learner.scoring.sampling)

  inputs = PhaseInputs(batch.rollout, device_rewards, device_keep, scores, values["reward/mean"],
                       learner.packing)
  state, carried, phases, of_phases = learner.phases.begin(run.state, run.carried, inputs)
  steps = []
  for optimizer_batch in batches:
    state, step_metrics = learner.step(state, optimizer_batch,
                                       learner.packing(optimizer_batch.rollout))
    steps.append(step_metrics)

  taken = len(steps) + sum(map(len, phases.values()))
  return Iteration(RunState(state, batch.cursor, carried, aged.stale),
                   DeviceMetrics(steps, metrics, phases),
                   values | {"step": values["step"] + taken} | of_phases,
                   _records(batch, scores, rewards, keep))


def _policy(learner: Learner, state: TrainState) -> Policy:
  return Policy(learner.merged(state), state.step)


def _sample_and_score(cfg: Config, task: Task, sampler: Sampler, score: Callable[[Rollout], Scores],
                      policy: Policy, cursor: int, ahead: Ahead | None,
                      following: Policy | None) -> tuple[RolloutBatch, Scores]:
  """A verified batch of `policy`, and its scores.

  Args:
    score: dispatches the passes over a rollout.
    ahead: where the batch is pending, if anything is sampled ahead.
    following: the policy that samples the next batch ahead; None: nothing does.
  """
  if ahead is None and not cfg.dynamic_sampling.enabled:
    prepared = sampler.prepare(policy.params)
    dispatched = dispatch(cfg, task, sampler, prepared, policy.step, cursor)
    # Scores are dispatched before the host waits for the rows, so that the devices compute them
    # while the host verifies. Here all rows are kept; dynamic sampling may drop some.
    scores = score(dispatched.rollout)
    return verified(cfg, task, sampler.environment, dispatched), scores
  if ahead is None:
    batch = sample_batch(cfg, task, sampler, policy.params, policy.step, cursor)
  else:
    batch = ahead.take(policy.params, policy.step, cursor)
  if following is not None:
    ahead.begin(following.params, following.step, batch.cursor)
  return batch, score(batch.rollout)


def _host_values(cfg: Config, batch: RolloutBatch, run: RunState, rewards: np.ndarray,
                 keep: np.ndarray) -> dict[str, float]:
  """Metrics of the rows of all processes, of their rewards after shaping, and the step before."""
  policy_step, step = float(np.mean(batch.host.policy_step)), int(run.state.step)
  rewards, keep = map(np.concatenate, zip(*processes.exchange("shaped", (rewards, keep)),
                                          strict=True))
  return batch.metrics | host_metrics(batch.verdicts, batch.host, cfg.rollout.group_size) | {
      "step": step, "rollout/staleness": step - policy_step,
      "reward/shaped": float(np.mean(rewards[keep])) if keep.any() else float("nan"),
      "reward/kept": float(np.mean(keep)),
  }


def _records(batch: RolloutBatch, scores: Scores, rewards: np.ndarray,
             keep: np.ndarray) -> list[dict]:
  """`rollout_rows` of this process; the anchor's log-probs if it is not the current policy."""
  anchor = None
  if scores.anchor_log_probs is not None:
    anchor = parallel.local_rows(scores.anchor_log_probs)
  return rollout_rows(batch.problems, batch.verdicts, batch.host, anchor, rewards, keep)
