"""One iteration on a page: sample, verify, score, shape, weigh, update, write, evaluate, save."""

from typing import NamedTuple

import jax

from jaxrl_llm import parallel
from jaxrl_llm.build.learner import Learner
from jaxrl_llm.build.loop import Loop, RolloutSource
from jaxrl_llm.build.scoring import INTERPOLATED, score_rollout
from jaxrl_llm.runs import in_flight
from jaxrl_llm.runs.dynamic_sampling import sample_batch
from jaxrl_llm.runs.overlap import Ahead
from jaxrl_llm.runs.records import DeviceMetrics, Records, batch_values
from jaxrl_llm.runs.rewards import reward_parts, trained_rewards
from jaxrl_llm.runs.rollout_batch import (
  Dispatched,
  RolloutBatch,
  ScoredBatch,
  dispatch,
  verified,
)
from jaxrl_llm.runs.run_state import RunState
from jaxrl_llm.training.columns import BASE, CURRENT, REFERENCE, TEACHER
from jaxrl_llm.training.score import Scores
from jaxrl_llm.training.transforms import PhaseInputs
from jaxrl_llm.types import Params, TrainBatch, TrainState


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


class PhaseRecord(NamedTuple):
  """What update transforms did on the host before the updates.

  Attributes:
    metrics: on the device, of each step that one took, by its name.
    values: metrics on the host.
  """

  metrics: dict[str, list[dict]]
  values: dict[str, float]


class Policy(NamedTuple):
  """params: as the model reads them; step: int32 scalar, their optimizer step."""

  params: Params
  step: jax.Array


class Policies(NamedTuple):
  """The parameters that an iteration reads.

  Attributes:
    current: at the start of the updates.
    sampling: those that sample; the same object where they are the current ones.
    following: those that sample the next batch ahead; None: nothing does.
    base: the current ones without adapters; None where nothing reads them.
    reference: the KL reference; None where nothing reads it.
  """

  current: Policy
  sampling: Policy
  following: Policy | None
  base: Params | None
  reference: Params | None


def iterate(loop: Loop, run: RunState, reference: Params | None, iteration: int,
            ahead: Ahead | None = None, records: Records = Records()) -> Iteration:
  """One rollout batch, its updates and its records: the twelve steps of an iteration.

  Scores are dispatched before the host waits for the rows, so that the devices compute them while
  the host verifies. Steps 5, 7, 8 and 9 are one program (training/batches.py).

  Args:
    run: the state before; its arrays are donated.
    reference: the KL reference; None where nothing reads it.
    iteration: counted from 1.
    ahead: samples the next batch meanwhile, unless this is the last iteration. Needs
      `updates.staleness`.
    records: writes, evaluates and saves; the default only makes the records.
  """
  learner, aged = loop.learner, run.aged() if run.stale else run
  with records.updating(run, iteration) as updated:
    following = aged if ahead is not None and iteration < loop.schedule.iterations else None
    policies = _policies(learner, run, following, reference)
    sampled = sample(loop.source, policies, run, ahead)  # 1 prompts, 2 rollout
    scores = score(learner, policies, sampled)  # 4 scores
    batch = verified(loop.source, sampled)  # 3 rewards
    scored = ScoredBatch(batch, scores, *trained_rewards(loop.shaping, batch, iteration))  # 6
    values = batch_values(loop.source, scored, run.state.step)
    inputs = on_devices(learner, scored, values["reward/mean"])
    batches, of_batch = weigh(learner, inputs, policies.sampling)  # 5, 7, 8, 9 one program
    state, carried, steps, of_phases = update(learner, run, inputs, batches)  # 10 train steps
    run = RunState(state, batch.cursor, carried, aged.stale, batch.unfinished)
    updated(state.step)
  metrics = DeviceMetrics(steps, of_batch, of_phases.metrics)
  values |= {"step": values["step"] + metrics.updates} | of_phases.values
  rows = records.write(iteration, scored, metrics, values)  # 11 the line before, these rows
  del policies, sampled, scores, batch, scored, inputs, batches  # no memory beside an evaluation's
  records.evaluate_and_save(iteration, run)  # 12 every so often
  return Iteration(run, metrics, values, rows)


def _policies(learner: Learner, run: RunState, following: RunState | None,
              reference: Params | None) -> Policies:
  """The parameters of an iteration; `following`: the state whose policy samples ahead, if any."""
  current = _policy(learner, run.state)
  sampling = _policy(learner, run.sampling_state()) if run.stale else current
  ahead = None if following is None else _policy(learner, following.sampling_state())
  base = None if learner.base is None else learner.base(run.state)
  return Policies(current, sampling, ahead, base, reference)


def _policy(learner: Learner, state: TrainState) -> Policy:
  return Policy(learner.merged(state), state.step)


def sample(source: RolloutSource, policies: Policies, run: RunState,
           ahead: Ahead | None) -> Dispatched | RolloutBatch:
  """The batch at the run's cursor: dispatched only, unless it is sampled ahead or groups are drawn
  again; then it is verified already.
  """
  policy, cursor = policies.sampling, run.cursor
  if run.unfinished is not None:
    return in_flight.dispatch(source, source.sampler.prepare(policy.params), policy.step, cursor,
                              run.unfinished)
  if ahead is not None:
    batch = ahead.take(policy.params, policy.step, cursor)
    if policies.following is not None:
      ahead.begin(policies.following.params, policies.following.step, batch.cursor)
    return batch
  if source.max_draws:
    return sample_batch(source, policy.params, policy.step, cursor)
  return dispatch(source, source.sampler.prepare(policy.params), policy.step, cursor)


def score(learner: Learner, policies: Policies, sampled: Dispatched | RolloutBatch) -> Scores:
  """Dispatches the passes that the update reads; see `score_rollout`."""
  # In flight, other policies sampled a part of the tokens.
  same = policies.sampling is policies.current and not learner.updates.in_flight
  parameters = {CURRENT: policies.current.params, BASE: policies.base,
                REFERENCE: policies.reference}
  if learner.scoring.teachers is not None:
    parameters[TEACHER] = learner.scoring.teachers.of(sampled.problems)
  scores = score_rollout(learner.scoring, parameters, sampled.rollout, own=same,
                         packing=learner.packing(sampled.rollout))
  interpolated = learner.scoring.anchor == INTERPOLATED
  return scores.replace(step=policies.current.step) if interpolated else scores


def on_devices(learner: Learner, scored: ScoredBatch, reward: float) -> PhaseInputs:
  """What the updates read; `reward` is the mean before shaping."""
  rewards, keep = parallel.to_global((scored.rewards, scored.keep), learner.mesh)
  scores = scored.scores
  if learner.scoring.part_count:
    parts = reward_parts(scored.batch.verdicts, scored.keep)
    scores = scores.replace(reward_parts=parallel.to_global(parts, learner.mesh))
  return PhaseInputs(scored.batch.rollout, rewards, keep, scores, reward, learner.packing)


def weigh(learner: Learner, inputs: PhaseInputs,
           sampling: Policy) -> tuple[list[TrainBatch], dict]:
  """(optimizer batches, metrics): correction weights, advantages, the split, loss weights."""
  batches, metrics = learner.batches(*inputs[:4])
  scoring = learner.scoring
  if scoring.meter is not None and inputs.scores.own is None:
    rollout = inputs.rollout
    if learner.updates.in_flight:  # the tokens of this policy only
      rollout = rollout.replace(mask=rollout.mask & (rollout.policy_step == sampling.step))
    metrics |= scoring.meter(sampling.params, rollout, scoring.sampling)
  return batches, metrics


def update(learner: Learner, run: RunState, inputs: PhaseInputs,
            batches: list[TrainBatch]) -> tuple[TrainState, dict, list[dict], PhaseRecord]:
  """(state, what transforms carry on the host, metrics of each update, those of the phases)."""
  state, carried, phases, values = run.state, run.carried, {}, {}
  if learner.phases.by_name:
    state, carried, phases, values = learner.phases.begin(state, carried, inputs)
  steps = []
  for batch in batches:
    state, metrics = learner.step(state, batch, learner.packing(batch.rollout))
    steps.append(metrics)
  return state, carried, steps, PhaseRecord(phases, values)
