"""An engine for each device samples what one engine samples, and none waits for another."""

import itertools
import threading

import jax
import numpy as np
import pytest
from test_engine import KEY, MODEL, PARAMS, assert_same, config, prompts, reference, sampler
from test_turns import LIMITS, SAMPLING, Scripted
from test_turns import PARAMS as PARAMS_OF_TURNS
from test_turns import assert_same as assert_same_turns
from test_turns import prompts as prompts_of_turns
from test_turns import reference as reference_of_turns
from test_turns import run as run_of_turns

from jaxrl_llm import parallel
from jaxrl_llm.config import MeshConfig
from jaxrl_llm.fields import PluginError
from jaxrl_llm.models import Model
from jaxrl_llm.rollouts import engine, engines
from jaxrl_llm.types import Sampling

pytestmark = pytest.mark.slow


def model_on(axes: MeshConfig, devices: int) -> Model:
  return Model(MODEL.config, parallel.Layout(parallel.make_mesh(axes, jax.devices()[:devices])))


def run(batch=None, *, axes=MeshConfig(), devices=2, max_new=None, **options):
  model = model_on(axes, devices)
  rollout, stats = engines.run(PARAMS, prompts() if batch is None else batch, KEY, Sampling.of(1.0),
                               model=model, cfg=config(**options), mesh=model.constrain.mesh,
                               max_new=max_new)
  assert rollout.tokens.sharding == parallel.rows(model.constrain.mesh)
  return jax.device_get(rollout), stats


@pytest.mark.parametrize("axes, devices, options", [
    (MeshConfig(), 2, {"shared_prefix": True}),
    pytest.param(MeshConfig(fsdp=2), 4, {"slots": 16, "refill": False}, marks=pytest.mark.slow),
    pytest.param(MeshConfig(fsdp=2, tensor=2), 4, {}, marks=pytest.mark.slow),
], ids=["shared", "fsdp", "tensor"])
def test_equals_generate(axes, devices, options):
  got, stats = run(axes=axes, devices=devices, **options)
  assert_same(got, reference())
  assert stats.useful_steps == got.mask.sum() <= stats.slot_steps


def test_fewer_groups_than_devices():
  few = prompts(rows=8)
  expected = jax.device_get(sampler()(PARAMS, few, KEY, Sampling.of(1.0)))
  got, _ = run(few, devices=4, axes=MeshConfig(), slots=8)
  assert_same(got, expected)


def run_turns(environment, **options):
  model = model_on(MeshConfig(), 2)
  return engines.run(PARAMS_OF_TURNS, prompts_of_turns(), KEY, SAMPLING, model=model,
                     cfg=config(max_new_tokens=24, slots=16, window=128),
                     mesh=model.constrain.mesh, environment=environment, **LIMITS, **options)


def test_turns_of_one_environment():
  got, stats = run_turns(Scripted(), tool_workers=3, tool_chunks=0)
  assert_same_turns(jax.device_get(got), reference_of_turns())
  assert stats.tool_calls == run_of_turns()[1].tool_calls > 0


def test_an_engine_goes_on_while_another_waits(monkeypatch):
  """Half of the rows cannot begin before the others have ended: with lockstep, none would end."""
  real, ended, order = engine.run, threading.Event(), itertools.count()

  def run_in_turn(params, batch, *rest, **options):
    first = batch.row_id[0] == 0
    if first:
      assert ended.wait(300), "the other engine waited for this one"
    out = real(params, batch, *rest, **options)
    next(order)
    ended.set()
    return out

  monkeypatch.setattr(engine, "run", run_in_turn)
  assert_same(run()[0], reference())
  assert next(order) == 2


def test_another_order_of_rows_is_rejected(monkeypatch):
  """Groups of one device are not neighbours of those of the next if rows are dealt in turn."""
  monkeypatch.setattr(np, "array_split",
                      lambda groups, count: [groups[i::count] for i in range(count)])
  with pytest.raises(AssertionError):
    assert_same(run()[0], reference())


def test_limits_are_those_of_the_rows():
  limit = np.arange(32) % 20 + 1
  got, _ = run(max_new=limit)
  assert np.all(got.mask.sum(1) <= limit) and np.any(got.mask.sum(1) == limit)
  one, _ = engine.run(PARAMS, prompts(), KEY, Sampling.of(1.0), model=MODEL, cfg=config(),
                      max_new=limit)
  np.testing.assert_array_equal(got.tokens, one.tokens)


class BrokenError(Exception):
  pass


class Broken(Scripted):

  def step(self, row_id, turn_ids, last=False):
    raise BrokenError


def test_what_an_environment_raises_ends_the_run():
  with pytest.raises(PluginError, match=r"environment Broken .*: step: BrokenError") as error:
    run_turns(Broken())
  assert isinstance(error.value.__cause__, BrokenError)
