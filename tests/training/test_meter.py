"""The mismatch meter in an iteration: under the parameters that sampled, on every row."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from smallest import built, resolved, start_of

from jaxrl_llm import parallel
from jaxrl_llm.models import Model
from jaxrl_llm.reporting.summary import summarize
from jaxrl_llm.runs.iteration import iterate
from jaxrl_llm.runs.rollout_batch import iteration_key, prompt_batch
from jaxrl_llm.runs.run_state import first_state
from jaxrl_llm.training.meter import meter, valid_tokens
from jaxrl_llm.training.score import Scores
from jaxrl_llm.types import Rollout, Sampling, TokenStats
from jaxrl_llm.wiring.loop import make_loop
from jaxrl_llm.wiring.scoring import (
  BEHAVIOR,
  DETACHED,
  RECOMPUTED,
  make_meter,
  make_scoring,
  score_rollout,
)
from jaxrl_llm.wiring.warm_start import Start


def begin(parts):
  """Parameters far enough from 0 for numerics to show, and the run before its first iteration."""
  params = jax.tree.map(lambda x: 4 * x if x.ndim > 1 else x, start_of(parts).params)
  start = Start(params, None)
  return first_state(parts.learner, start), start


def first_iteration(parts):
  """(start, metrics, rows)."""
  run, start = begin(parts)
  _, (_, metrics, _), _, rows = iterate(make_loop(*parts), run, start.params, 1)
  return start, metrics, rows


def metered(metrics) -> dict:
  return {name: value for name, value in metrics.items() if name.startswith("mismatch/")}


def tokens(rows) -> int:
  return sum(sum(row["mask"]) for row in rows)


def unexpected(*_):
  raise AssertionError("a pass that nothing asked for")


def with_scoring(parts, **changes):
  scoring = dataclasses.replace(parts.learner.scoring, **changes)
  return parts._replace(learner=dataclasses.replace(parts.learner, scoring=scoring))


def sampled(parts, start) -> Rollout:
  prompts = prompt_batch(parts.task, parts.task.batch(1), 4, group_size=4, first_row=16)
  rollout, _ = parts.sampler.sample(start.params, parallel.to_global(prompts, parts.learner.mesh),
                                    iteration_key(0, 1), parts.sampler.sampling)
  return rollout


@pytest.fixture(scope="module")
def anchored():
  """A run whose anchor pass serves; a pass of the meter's own would be noticed."""
  parts = with_scoring(built(), meter=unexpected)
  return parts, *first_iteration(parts)


@pytest.mark.slow
def test_the_anchors_pass_serves_for_all_rows(anchored):
  _, _, metrics, rows = anchored
  assert metrics["mismatch/absolute"].count == tokens(rows)
  assert metrics["mismatch/row"].count == len(rows)
  assert summarize(jax.device_get(metered(metrics)))["mismatch/absolute"] < 1e-6


@pytest.mark.slow
def test_rows_without_a_valid_reward_count(anchored):
  parts, start, metrics, _ = anchored
  rollout = sampled(parts, start)
  stats = parts.learner.scoring.score(start.params, rollout, parts.learner.scoring.sampling)
  scores = Scores(stats.log_probs, metered=TokenStats(stats.log_probs))
  for keep in (np.ones(16, bool), np.zeros(16, bool)):
    rewards, keep = parallel.to_global((np.zeros(16, np.float32), keep), parts.learner.mesh)
    batch_metrics = parts.learner.batches(rollout, rewards, keep, scores)[1]
    assert batch_metrics["mismatch/absolute"].count == np.sum(rollout.mask) > 0
    assert metered(batch_metrics).keys() == metered(metrics).keys()


@pytest.mark.slow
def test_tokens_outside_the_scorers_vocabulary_do_not_count(anchored):
  parts, start, _, _ = anchored
  rollout = sampled(parts, start)
  inside = jnp.arange(rollout.mask.shape[1]) % 2 == 0
  kept = valid_tokens(TokenStats(None, in_support=jnp.broadcast_to(inside, rollout.mask.shape)),
                      rollout)
  np.testing.assert_array_equal(kept, np.asarray(rollout.mask) & np.asarray(inside))
  np.testing.assert_array_equal(valid_tokens(TokenStats(None), rollout), rollout.mask)


@pytest.mark.slow
def test_old_parameters_are_compared_with_themselves():
  """The policy that trains has moved on: under its parameters the gap would be drift."""
  parts = built(**{"updates.staleness": 1, "rollout.meter_rows": 8})
  run, start = begin(parts)
  seen = []
  meter_ = parts.learner.scoring.meter
  spied = with_scoring(
      parts, meter=lambda *arguments: seen.append(arguments) or meter_(*arguments))
  run, *_ = iterate(make_loop(*spied), run, start.params, 1)
  # an update, whatever the rewards were
  current = jax.tree.map(lambda x: 1.1 * x, run.state.params)
  run = dataclasses.replace(run, state=run.state.replace(params=jax.tree.map(jnp.copy, current)))
  _, (_, metrics, _), values, _ = iterate(make_loop(*spied), run, start.params, 2)
  numbers = summarize(jax.device_get(metered(metrics)))
  assert values["rollout/staleness"] > 0
  assert numbers["mismatch/absolute"] < 1e-6
  _, rollout, scoring = seen[-1]
  wrong = summarize(jax.device_get(parts.learner.scoring.meter(current, rollout, scoring)))
  assert wrong["mismatch/absolute"] > 1e-4
  step = len(rollout.mask) // 8
  # of each group, not of the first alone
  assert metrics["mismatch/absolute"].count == np.sum(rollout.mask[::step])


@pytest.fixture(scope="module")
def rounded():
  """A run in int8, whose anchor is the behavior: the meter's own pass."""
  parts = built(**{"estimator.name": "minpro", "rollout.quantization": "int8",
                   "rollout.meter_rows": 16})
  return parts, *first_iteration(parts)


@pytest.mark.slow
def test_a_behavior_anchor_needs_the_meters_own_pass(rounded):
  _, _, metrics, rows = rounded
  assert metrics["mismatch/absolute"].count == tokens(rows)
  assert summarize(jax.device_get(metered(metrics)))["mismatch/absolute"] > 1e-4


@pytest.mark.slow
def test_a_pruned_vocabulary_makes_no_pass_for_a_behavior_anchor():
  """Nothing reads the anchor's set there: the meter's few rows are all that is scored."""
  parts = built(**{"estimator.name": "minpro", "vocabulary.top_p": 0.9})
  _, metrics, rows = first_iteration(with_scoring(parts, score=unexpected))
  assert metrics["mismatch/row"].count == parts.cfg.rollout.meter_rows < len(rows)
  assert summarize(jax.device_get(metered(metrics)))["mismatch/absolute"] < 1e-5


@pytest.mark.parametrize(("overrides", "passes"), [
    pytest.param({"estimator.name": "minpro"}, 0, id="behavior"),
    pytest.param({"updates.optimizer_batches": 1}, 0, id="current policy"),
    pytest.param({}, 1, id="recomputed"),
    pytest.param({"estimator.name": "minpro", "advantage.name": "otb"}, 1,
                 id="behavior, sum_pi_squared"),
    pytest.param({"updates.optimizer_batches": 1, "advantage.name": "otb"}, 1,
                 id="current policy, sum_pi_squared"),
])
def test_the_vocabulary_is_asked_for_beside_a_recomputed_anchor_alone(overrides, passes):
  cfg, calls, one = resolved(**{"vocabulary.top_p": 0.9}, **overrides), [], jnp.ones(())
  stats = TokenStats(one, sum_pi_squared=one, in_support=one)
  scoring = make_scoring(cfg, Model(cfg.model), parallel.make_mesh(cfg.mesh, jax.devices()[:1]), ())
  assert not scoring.columns
  scoring = dataclasses.replace(scoring, meter=unexpected,
                                score=lambda *_: calls.append(1) or stats)
  rollout = types.SimpleNamespace(behavior_log_probs=2 * one)
  scores = score_rollout(scoring, {"current": None}, rollout, on_policy=True)
  assert len(calls) == passes
  recomputed = not overrides
  behavior = cfg.updates.anchor == "behavior"
  assert scoring.anchor == (RECOMPUTED if recomputed else BEHAVIOR if behavior else DETACHED)
  anchor = 1 if recomputed else 2 if behavior else None
  assert scores.anchor_log_probs == anchor and (scores.in_support is not None) == recomputed
  assert (scores.metered is None) == (not passes), "the meter reads a pass where there is one"


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "expected"), [(4, [0, 4, 8, 12]), (6, [0, 2, 5, 8, 10, 13]),
                                                (16, [*range(16)])])
def test_the_meters_rows_are_spread_over_the_whole_batch(rows, expected):
  """Also where they do not divide it: a step of B // rows = 2 would leave the last third out."""
  seen, shape = [], (16, 3)
  zeros = jnp.zeros(16, jnp.int32)
  rollout = Rollout(jnp.zeros(shape, jnp.int32), jnp.ones(shape, bool), zeros + 3, zeros,
                    jnp.zeros(shape), zeros > 0, zeros, zeros, jnp.arange(16), zeros)
  scorer = lambda params, some, sampling: seen.append(some) or TokenStats(some.behavior_log_probs)
  assert meter(None, rollout, None, scorer=scorer, rows=rows)["mismatch/row"].count == rows
  assert seen[0].row_id.tolist() == expected


@pytest.mark.slow
def test_an_evaluation_keeps_the_trainers_numerics(rounded):
  parts, start, *_ = rounded
  scoring, mesh, sampling = parts.learner.scoring, parts.learner.mesh, Sampling.of(1.0)
  prompts = parallel.to_global(prompt_batch(parts.task, parts.task.heldout(8), 4), mesh)
  rollout = parts.sampler.sample_heldout(start.params, prompts, jax.random.key(0), sampling)
  eight = dataclasses.replace(parts.cfg,
                              rollout=dataclasses.replace(parts.cfg.rollout, meter_rows=8))
  metrics = make_meter(eight.rollout, mesh, scoring.score_heldout)(start.params, rollout, sampling)
  numbers = summarize(jax.device_get(metrics))
  assert max(numbers["mismatch/range/max"], -numbers["mismatch/range/min"]) < 1e-5


@pytest.mark.slow
def test_no_rows_no_meter():
  parts = built(**{"rollout.meter_rows": 0})
  assert parts.learner.scoring.meter is None
  assert metered(first_iteration(parts)[1]) == {}


def test_more_rows_than_there_are_and_rows_on_devices():
  """As many as there are; and whole multiples of the devices."""
  cfg = built().cfg

  def metered_rows(rows, devices):
    mesh = parallel.make_mesh(dataclasses.replace(cfg.mesh, data=devices), jax.devices()[:devices])
    rollout = dataclasses.replace(cfg.rollout, meter_rows=rows)
    return make_meter(rollout, mesh, None).__wrapped__.keywords["rows"]

  assert [metered_rows(3, 1), metered_rows(3, 8)] == [3, 8]
  assert [metered_rows(100, 1), metered_rows(100, 8)] == [16, 16]
