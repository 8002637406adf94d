"""Bytes of abstract programs are those of the real ones; what does not fit has a rule."""

import dataclasses

import jax
import jax.numpy as jnp
import planned_config
import pytest

from experiments.planning import abstract, advice, analysis, programs, report, targets
from experiments.planning.analysis import Analysis, Program
from jaxrl_llm import parallel
from jaxrl_llm.config import ConfigError
from jaxrl_llm.models import trainable
from jaxrl_llm.training.train_step import init_state, state_shardings

DEVICES = 4
CPU = targets.Target("cpu", targets.Chip("cpu", 1e9, 1e6, 1e9, 1e9, 1e9, "a made-up device"),
                     tuple(jax.devices()[:DEVICES]))


def on_device(tree) -> int:
  """Bytes of a tree's shards on the first device."""
  return sum(shard.data.nbytes for x in jax.tree.leaves(tree) for shard in x.addressable_shards
             if shard.device == CPU.devices[0])


def real_step(cfg, planned):
  """A real state and batch, and what one update makes of them."""
  learner, key = planned.learner, jax.random.key(0)
  params, frozen = trainable.split(learner.model.init(key), cfg.parameters, key)
  layout = state_shardings(learner.model, learner.optimizer, learner.mesh, cfg.parameters)
  state = jax.device_put(init_state(params, learner.optimizer, frozen), layout)
  batch = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), planned.batch)
  return state, jax.device_put(batch, parallel.rows(learner.mesh)), learner.step


@pytest.mark.slow
@pytest.mark.parametrize("train", ["all", "lora"])
def test_bytes_of_the_train_step_are_those_of_its_real_shards(train):
  cfg = planned_config.ready(parameters=dict(train=train))
  planned = abstract.plan(cfg, CPU.devices)
  (program,) = programs.iteration_programs(planned, ("step",))
  memory = analysis.analyse(program, CPU)
  state, batch, step = real_step(cfg, planned)
  assert memory.arguments["parameters"] == on_device((state.params, state.frozen))
  assert memory.arguments["optimizer"] == on_device((state.opt_state, state.step))
  assert memory.arguments["batch"] == on_device(batch)
  given = on_device((state.params, state.opt_state, state.step))
  new, metrics = step(state, batch)
  # Donated leaves are given back in place: only the metrics need room of their own.
  total = on_device((new.params, new.opt_state, new.step, metrics))
  assert given + memory.outputs == pytest.approx(total, rel=0.1)
  # A counter that takes every leaf to be whole on each device is wrong by far.
  full = sum(x.nbytes for x in jax.tree.leaves(state.params))
  assert full > 1.2 * on_device(new.params)


def analysed(name: str, needed: int, held: int = 0, **columns: int) -> Analysis:
  program = Program(name, None, {}, 1, 1, (), 0.0, held, 0, (1, 1))
  arguments = dict(parameters=0, optimizer=0, cache=0, batch=0) | columns
  return Analysis(program, arguments, 0, needed, needed, "", 0.0, None, (), (), None)


@pytest.mark.parametrize("analysis, keys", [
    (analysed("step", 990_000), ()),
    (analysed("step", 1_200_000), ("updates.micro_batches", "model.remat")),
    (analysed("step", 1_200_000, optimizer=900_000), ("mesh.fsdp",)),
    (analysed("decode", 1_200_000, cache=900_000), ("rollout.slots", "rollout.cache_dtype")),
    (analysed("generate", 700_000, held=600_000), ("mesh.rollout", "rollout.slots")),
])
def test_each_large_column_has_a_rule(analysis, keys):
  text = " ".join(advice.memory_advice(analysis, CPU.chip))
  assert bool(text) == bool(keys)
  for key in keys:
    assert key in text


def test_a_plan_fails_where_one_program_does_not_fit():
  """Arrays that are held beside it and the compiler's refusal count."""
  fitting = analysed("decode", 600_000)
  refused = dataclasses.replace(analysed("step", 900_000), refused="Ran out of memory in HBM")
  for large in (analysed("step", 1_200_000), analysed("step", 900_000, held=200_000), refused):
    with pytest.raises(ConfigError, match=r"cpu does not fit.*step .*Fix: "):
      report.verdict([fitting, large], CPU)
