"""The mismatch meter in an iteration: under the parameters that sampled, on every row that was, whatever its reward."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm import parallel
from jaxrl_llm.config import base_config, from_dict
from jaxrl_llm.reporting.summary import summarize
from jaxrl_llm.training import collect, setup
from jaxrl_llm.training.iteration import first_run, iterate
from jaxrl_llm.training.meter import counted
from jaxrl_llm.training.parameters import split
from jaxrl_llm.training.score import Scores
from jaxrl_llm.training.warm_start import Start
from jaxrl_llm.types import TokenStats


def parts(**overrides):
  config = base_config()
  config.model.update(vocab_size=17, width=8, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8, mlp_width=8)
  config.task.update(num_terms=2, worked_share=0.0, heldout_problems=8)
  config.rollout.update(prompts=4, group_size=4, max_prompt_tokens=4, max_new_tokens=4, window=4)
  config.updates.update(optimizer_batches=2)
  config.optimizer.learning_rate = 1e-2
  config.mesh.data = 1
  config.update_from_flattened_dict(overrides)
  return setup.build(setup.resolve(from_dict(config)), jax.devices()[:1])


def begin(made):
  """Parameters far enough from 0 for numerics to show, and the run before its first iteration."""
  params = jax.tree.map(lambda x: 4 * x if x.ndim > 1 else x, made.model.init(jax.random.key(0)))
  start = Start(*split(params, made.cfg.parameters))
  return first_run(made, start), start


def metered(metrics) -> dict:
  return {name: value for name, value in metrics.items() if name.startswith("mismatch/")}


def tokens(rows) -> int:
  return sum(sum(row["mask"]) for row in rows)


@pytest.fixture(scope="module")
def anchored():
  """A run whose anchor pass, with the parameters that sampled, serves; a pass of the meter's own would be noticed."""

  def unexpected(*_):
    raise AssertionError("the meter made a pass of its own")

  made = dataclasses.replace(parts(), meter=unexpected)
  run, start = begin(made)
  _, (_, metrics, _), _, rows = iterate(made, run, start.params, 1)
  return made, start, metrics, rows


def test_the_anchors_pass_serves_for_all_rows(anchored):
  _, _, metrics, rows = anchored
  assert metrics["mismatch/absolute"].count == tokens(rows) and metrics["mismatch/row"].count == len(rows)
  assert summarize(jax.device_get(metered(metrics)))["mismatch/absolute"] < 1e-6


def test_rows_without_a_valid_reward_count(anchored):
  made, start, metrics, _ = anchored
  problems = made.task.batch(1)
  prompts = collect.prompt_batch(made, problems, 4, 16)
  rollout, _ = made.sample(start.params, prompts, collect.iteration_key(0, 1), made.sampling)
  stats = made.score(start.params, rollout, made.scoring)
  scores = Scores(stats.log_probs, own=TokenStats(stats.log_probs))
  for keep in (np.ones(16, bool), np.zeros(16, bool)):
    rewards, keep = parallel.to_global((np.zeros(16, np.float32), keep), made.mesh)
    found = made.batches(rollout, rewards, keep, scores)[1]
    assert found["mismatch/absolute"].count == np.sum(rollout.mask) > 0
    assert metered(found).keys() == metered(metrics).keys()


def test_tokens_outside_the_scorers_vocabulary_do_not_count(anchored):
  made, start, _, _ = anchored
  rollout = made.sample(start.params, collect.prompt_batch(made, made.task.batch(1), 4, 16),
                        collect.iteration_key(0, 1), made.sampling)[0]
  inside = jnp.arange(rollout.mask.shape[1]) % 2 == 0
  kept = counted(TokenStats(None, in_support=jnp.broadcast_to(inside, rollout.mask.shape)), rollout)
  np.testing.assert_array_equal(kept, np.asarray(rollout.mask) & np.asarray(inside))
  np.testing.assert_array_equal(counted(TokenStats(None), rollout), rollout.mask)


def test_old_parameters_are_compared_with_themselves():
  """The policy that trains has moved on: under its parameters the gap would be drift."""
  made = parts(**{"updates.staleness": 1, "rollout.meter_rows": 8})
  run, start = begin(made)
  seen = []
  spied = dataclasses.replace(made, meter=lambda *arguments: seen.append(arguments) or made.meter(*arguments))
  run, *_ = iterate(spied, run, start.params, 1)
  current = jax.tree.map(lambda x: 1.1 * x, run.state.params)  # an update, whatever the rewards were
  run = dataclasses.replace(run, state=run.state.replace(params=jax.tree.map(jnp.copy, current)))
  _, (_, metrics, _), values, _ = iterate(spied, run, start.params, 2)
  found = summarize(jax.device_get(metered(metrics)))
  assert values["rollout/staleness"] > 0
  assert found["mismatch/absolute"] < 1e-6
  _, rollout, scoring = seen[-1]
  wrong = summarize(jax.device_get(made.meter(current, rollout, scoring)))
  assert wrong["mismatch/absolute"] > 1e-4
  step = len(rollout.mask) // 8
  assert metrics["mismatch/absolute"].count == np.sum(rollout.mask[::step])  # of each group, not of the first alone


@pytest.fixture(scope="module")
def rounded():
  """A run in int8, whose anchor is the behavior: the meter's own pass."""
  made = parts(**{"estimator.name": "minpro", "rollout.quantization": "int8", "rollout.meter_rows": 16})
  run, start = begin(made)
  return made, start, iterate(made, run, start.params, 1)


def test_a_behavior_anchor_needs_the_meters_own_pass(rounded):
  _, _, (_, (_, metrics, _), _, rows) = rounded
  assert metrics["mismatch/absolute"].count == tokens(rows)
  assert summarize(jax.device_get(metered(metrics)))["mismatch/absolute"] > 1e-4


def test_an_evaluation_keeps_the_trainers_numerics(rounded):
  made, start, _ = rounded
  prompts = collect.prompt_batch(made, made.task.heldout(8), 1, 0)
  rollout = made.sample_heldout(start.params, prompts, jax.random.key(0), collect.sampling(1.0))
  found = summarize(jax.device_get(setup._meter(
      dataclasses.replace(made.cfg, rollout=dataclasses.replace(made.cfg.rollout, meter_rows=8)), made.mesh,
      made.score_heldout)(start.params, rollout, collect.sampling(1.0))))
  assert max(found["mismatch/range/max"], -found["mismatch/range/min"]) < 1e-5


def test_no_rows_no_meter():
  made = parts(**{"rollout.meter_rows": 0})
  assert made.meter is None
  run, start = begin(made)
  assert metered(iterate(made, run, start.params, 1)[1][1]) == {}


def test_more_rows_than_there_are_and_rows_on_devices():
  """As many as there are; and whole multiples of the devices."""
  cfg = parts().cfg
  shapes = lambda rows, devices: setup._meter(
      dataclasses.replace(cfg, rollout=dataclasses.replace(cfg.rollout, meter_rows=rows)),
      parallel.make_mesh(cfg.mesh if devices == 1 else dataclasses.replace(cfg.mesh, data=devices),
                         jax.devices()[:devices]), None).__wrapped__.keywords["rows"]
  assert [shapes(rows, devices) for rows, devices in itertools.product((3, 100), (1, 8))] == [3, 8, 16, 16]
