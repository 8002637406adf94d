"""One training iteration: sample, score, verify, shape, weigh, update, log, evaluate, save."""

from typing import TYPE_CHECKING, NamedTuple

import jax

from jaxrl_llm import parallel
from jaxrl_llm.runs.records import DeviceMetrics, Records, batch_values
from jaxrl_llm.runs.rewards import reward_parts, trained_rewards
from jaxrl_llm.runs.rollout_batch import Dispatched, ScoredBatch, dispatch, verify_batch
from jaxrl_llm.runs.run_state import RunState
from jaxrl_llm.training.columns import BASE, CURRENT, REFERENCE, TEACHER
from jaxrl_llm.training.score import Scores
from jaxrl_llm.training.transforms import PhaseInputs
from jaxrl_llm.types import Params, TrainBatch, TrainState
from jaxrl_llm.wiring.learner import Learner
from jaxrl_llm.wiring.loop import Loop, RolloutSource
from jaxrl_llm.wiring.scoring import INTERPOLATED, score_rollout

if TYPE_CHECKING:  # imported for runs that sample ahead
  from jaxrl_llm.runs.overlap import Ahead


class Iteration(NamedTuple):
  """Result of one iteration.

  Attributes:
    run: state at the start of the next iteration.
    metrics: metrics on the device.
    values: metrics on the host.
    rows: a JSON-able record of each completion of this process.
  """

  run: RunState
  metrics: DeviceMetrics
  values: dict[str, float]
  rows: list[dict]


class PhaseRecord(NamedTuple):
  """Metrics of the phases of update transforms, which run before the updates.

  Attributes:
    metrics: on the device, one dict for each step of a transform, by its name.
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
    sampling: the policy of this batch's sampler; the same object as `current` without staleness.
    next_sampling: the policy that samples the next batch ahead; None where nothing does.
    base: the current ones without adapters; None where nothing reads them.
    reference: the KL reference; None where nothing reads it.
  """

  current: Policy
  sampling: Policy
  next_sampling: Policy | None
  base: Params | None
  reference: Params | None


def iterate(loop: Loop, run: RunState, reference: Params | None, iteration: int,
            ahead: "Ahead | None" = None, records: Records = Records()) -> Iteration:
  """Runs one iteration: samples a rollout batch, updates on it, and records it.

  Scores are dispatched before the host waits for the completions, so that the devices compute them
  while the host verifies. Correction weights, advantages, the split into optimizer batches and the
  loss weights are one program (training/batches.py).

  Args:
    run: state at the start of the iteration; its arrays are donated.
    reference: the KL reference; None where nothing reads it.
    iteration: counted from 1.
    ahead: samples the next batch meanwhile, unless this is the last iteration. Needs
      `updates.staleness`.
    records: writes, evaluates and saves; the default only makes the records.
  """
  learner, next_run = loop.learner, run.with_new_snapshot() if run.stale else run
  with records.updating(run, iteration) as updated:
    samples_ahead = ahead is not None and iteration < loop.schedule.iterations
    policies = _policies(learner, run, next_run if samples_ahead else None, reference)
    sampled = sample(loop.source, policies, run, ahead)  # starts generation
    groups = run.groups
    if groups is not None:
      from jaxrl_llm.runs import replay
      sampled, groups = replay.mixed(loop.source, sampled, groups, iteration, learner.updates)
    scores = score(learner, policies, sampled)  # starts anchor, reference and value passes
    batch = verify_batch(loop.source, sampled)  # waits for completions, grades them
    scored = ScoredBatch(batch, scores, *trained_rewards(loop.shaping, batch, iteration))
    values = batch_values(loop.source, scored, run.state.step)
    inputs = phase_inputs(learner, scored, values["reward/mean"])
    batches, batch_metrics = weigh(learner, inputs, policies.sampling)  # advantages, weights
    del policies, sampled  # a copy of the weights, with adapters merged or older
    state, transform_state, steps, phase_record = update(learner, run, inputs, batches)
    run = RunState(state, batch.cursor, transform_state, next_run.stale, batch.unfinished,
                   groups)
    updated(state.step)
  metrics = DeviceMetrics(steps, batch_metrics, phase_record.metrics)
  values |= {"step": values["step"] + metrics.updates} | phase_record.values
  rows = records.write(iteration, scored, metrics, values)  # metrics and completions
  del scores, batch, scored, inputs, batches  # frees memory for evaluation
  records.evaluate_and_save(iteration, run)  # where they are due
  return Iteration(run, metrics, values, rows)


def _policies(learner: Learner, run: RunState, next_run: RunState | None,
              reference: Params | None) -> Policies:
  """Returns the policies of an iteration; `next_run`: the state that samples the next batch."""
  current = _policy(learner, run.state)
  sampling = _policy(learner, run.sampling_state()) if run.stale else current
  next_policy = None if next_run is None else _policy(learner, next_run.sampling_state())
  base = None if learner.base is None else learner.base(run.state)
  return Policies(current, sampling, next_policy, base, reference)


def _policy(learner: Learner, state: TrainState) -> Policy:
  return Policy(learner.merged(state), state.step)


def sample(source: RolloutSource, policies: Policies, run: RunState,
           ahead: "Ahead | None") -> Dispatched:
  """Starts sampling the batch at the run's cursor; it is finished and verified on return if it was
  sampled ahead or if dynamic sampling is on.
  """
  policy, cursor = policies.sampling, run.cursor
  if run.unfinished is not None:
    from jaxrl_llm.runs import in_flight
    return in_flight.dispatch(source, source.sampler.prepare(policy.params), policy.step, cursor,
                              run.unfinished)
  if ahead is not None:
    batch = ahead.take(policy.params, policy.step, cursor)
    if policies.next_sampling is not None:
      ahead.begin(policies.next_sampling.params, policies.next_sampling.step, batch.cursor)
    return Dispatched.of_batch(batch)
  if source.max_draws:
    from jaxrl_llm.runs.dynamic_sampling import sample_batch
    return Dispatched.of_batch(sample_batch(source, policy.params, policy.step, cursor))
  return dispatch(source, source.sampler.prepare(policy.params), policy.step, cursor)


def score(learner: Learner, policies: Policies, sampled: Dispatched) -> Scores:
  """Dispatches the scoring passes that the update reads; see `score_rollout`."""
  on_policy = policies.sampling is policies.current and not _mixes_policies(learner)
  parameters = {CURRENT: policies.current.params, BASE: policies.base,
                REFERENCE: policies.reference}
  if learner.scoring.teachers is not None:
    parameters[TEACHER] = learner.scoring.teachers.of(sampled.problems)
  scores = score_rollout(learner.scoring, parameters, sampled.rollout, on_policy=on_policy,
                         packing=learner.packing(sampled.rollout))
  interpolated = learner.scoring.anchor == INTERPOLATED
  return scores.replace(step=policies.current.step) if interpolated else scores


def _mixes_policies(learner: Learner) -> bool:
  """Returns whether other policies than this iteration's sampled a part of the tokens."""
  return learner.updates.in_flight or learner.updates.replay > 0


def phase_inputs(learner: Learner, scored: ScoredBatch, reward: float) -> PhaseInputs:
  """Returns the inputs of the updates, on the devices; `reward` is the mean before shaping."""
  rewards, keep = parallel.to_global((scored.rewards, scored.keep), learner.mesh)
  scores = scored.scores
  if learner.scoring.part_count:
    parts = reward_parts(scored.batch.verdicts, scored.keep)
    scores = scores.replace(reward_parts=parallel.to_global(parts, learner.mesh))
  return PhaseInputs(scored.batch.rollout, rewards, keep, scores, reward, learner.packing)


def weigh(learner: Learner, inputs: PhaseInputs, sampling: Policy) -> tuple[list[TrainBatch], dict]:
  """Returns (optimizer batches with advantages and weights, metrics)."""
  batches, metrics = learner.batches(inputs.rollout, inputs.rewards, inputs.keep, inputs.scores)
  scoring = learner.scoring
  if scoring.meter is not None and inputs.scores.metered is None:
    rollout = inputs.rollout
    if _mixes_policies(learner):  # the tokens of this policy only
      rollout = rollout.replace(mask=rollout.mask & (rollout.policy_step == sampling.step))
    metrics |= scoring.meter(sampling.params, rollout, scoring.sampling)
  return batches, metrics


def update(learner: Learner, run: RunState, inputs: PhaseInputs,
            batches: list[TrainBatch]) -> tuple[TrainState, dict, list[dict], PhaseRecord]:
  """Returns (state, state of transforms, metrics of each update, metrics of the phases)."""
  state, transform_state, phases, values = run.state, run.transform_state, {}, {}
  if learner.phases.by_name:
    state, transform_state, phases, values = learner.phases.begin(state, transform_state, inputs)
  steps = []
  for batch in batches:
    state, metrics = learner.step(state, batch, learner.packing(batch.rollout))
    steps.append(metrics)
  return state, transform_state, steps, PhaseRecord(phases, values)
