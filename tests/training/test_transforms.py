"""Update transforms: before and after an update, and what they carry, also in a checkpoint."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import smallest
import tiny_batch
from tiny_batch import close, scaled

from jaxrl_llm import parallel
from jaxrl_llm.config import (
  ConfigError,
  EstimatorConfig,
  LossConfig,
  MeshConfig,
  OptimizerConfig,
  StepConfig,
  TransformConfig,
  from_dict,
)
from jaxrl_llm.models.trainable import split
from jaxrl_llm.objective.loss import policy_loss, sft_loss
from jaxrl_llm.runs.iteration import iterate
from jaxrl_llm.runs.run_state import abstract_saved, first_state, restored_state
from jaxrl_llm.store.checkpoints import Checkpoints
from jaxrl_llm.training import transforms
from jaxrl_llm.training.optimizers import make_optimizer
from jaxrl_llm.training.train_step import (
  carrying_shardings,
  init_state,
  make_train_step,
  state_shardings,
  train_step,
)
from jaxrl_llm.types import CarryingState, Mean, SupervisedBatch, TrainState
from jaxrl_llm.wiring import setup
from jaxrl_llm.wiring.loop import make_loop
from jaxrl_llm.wiring.warm_start import Start

MODEL = tiny_batch.MODEL
# Without a clip and with plain steps, so that an update is proportional to its gradient.
TX = make_optimizer(OptimizerConfig("sgd", learning_rate=0.1, max_grad_norm=1e9))
LOSS = LossConfig(EstimatorConfig("ppo", clip_low=0.9, clip_high=9.0))


class Fading(transforms.Transform):
  """Weighs the advantages of update n by share^n."""

  def __init__(self, cfg):
    self._cfg = cfg

  def first(self):
    return {"updates": jnp.int32(0)}

  def before(self, params, batch, carried, parts):
    del params, parts
    weight = self._cfg.share ** carried["updates"].astype(jnp.float32)
    return (batch.replace(advantages=weight * batch.advantages),
            {"updates": carried["updates"] + 1}, {"fading/weight": Mean(weight, jnp.float32(1))})


class Shorter(transforms.Transform):
  """Scales the updates of the trained leaves."""

  def __init__(self, cfg):
    self._cfg = cfg

  def after(self, updates, batch, carried, parts):
    del batch, parts
    scaled = jax.tree.map(lambda x: self._cfg.share * x, updates)
    return scaled, carried, {"shorter/share": Mean(jnp.float32(self._cfg.share), jnp.float32(1))}


class Farther(transforms.Transform):
  """Adds the same to every update."""

  def __init__(self, cfg):
    del cfg

  def after(self, updates, batch, carried, parts):
    return jax.tree.map(lambda x: x + 0.01, updates), carried, {}


class Standard(transforms.Transform):
  """Divides the advantages by their largest size in the optimizer batch."""

  def __init__(self, cfg):
    del cfg

  def before(self, params, batch, carried, parts):
    largest = jnp.max(jnp.abs(batch.advantages))
    return batch.replace(advantages=batch.advantages / largest), carried, {}


@pytest.fixture(autouse=True)
def registered():
  transforms.register("fading", share=0.5)(Fading)
  transforms.register("shorter", share=0.5)(Shorter)
  transforms.register("farther")(Farther)
  transforms.register("standard")(Standard)


def config(name: str = "none", micro_batches: int = 1, **numbers) -> StepConfig:
  transform = None if name == "none" else TransformConfig(name, **numbers)
  return StepConfig(LOSS, micro_batches, transform=transform)


def begin(cfg: StepConfig) -> TrainState:
  state = init_state(jax.tree.map(jnp.copy, tiny_batch.parameters()), TX)
  return transforms.with_carried(state, cfg, functools.partial(jax.tree.map, jnp.asarray))


@functools.cache
def step_of(cfg: StepConfig, loss=policy_loss):
  return jax.jit(functools.partial(train_step, loss=loss, model=MODEL, tx=TX, cfg=cfg))


def moved(cfg: StepConfig, updates: int = 1, batch=None) -> tuple[dict, TrainState, dict]:
  """(change of the parameters by the last update, state, metrics)."""
  step, state = step_of(cfg), begin(cfg)
  for _ in range(updates):
    before = state.params
    state, metrics = step(state, tiny_batch.make() if batch is None else batch)
  return jax.tree.map(jnp.subtract, state.params, before), state, metrics


# --- after and before


def test_after_acts_on_the_updates():
  plain, short = moved(config())[0], moved(config("shorter", share=0.25))
  close(short[0], scaled(plain, 0.25))
  assert float(short[2]["shorter/share"].total) == 0.25 and type(short[1]) is TrainState
  with pytest.raises(AssertionError):
    close(plain, scaled(plain, 0.25))


def test_before_carries_a_counter_from_update_to_update():
  """The third update has the weight share^2; the counter of a forgetful state would give 1."""
  cfg = config("fading", share=0.3)
  change, state, metrics = moved(cfg, updates=3)
  assert isinstance(state, CarryingState) and int(state.carried["fading"]["updates"]) == 3
  assert float(metrics["fading/weight"].total) == pytest.approx(0.09)

  def third(share: float):
    """The third update from the state before it, with all weights of the batch as given."""
    batch = tiny_batch.make()
    before = moved(cfg, updates=2)[1]
    plain = TrainState(before.step, before.params, before.opt_state)
    after, _ = step_of(config())(plain, batch.replace(advantages=share * batch.advantages))
    return jax.tree.map(jnp.subtract, after.params, before.params)

  close(change, third(0.09))
  with pytest.raises(AssertionError):
    close(change, third(1.0))


def test_they_act_in_the_order_of_their_names():
  plain = moved(config())[0]
  first, last = (moved(config(name))[0] for name in ("shorter,farther", "farther,shorter"))
  close(first, jax.tree.map(lambda x: 0.5 * x + 0.01, plain))
  close(last, jax.tree.map(lambda x: 0.5 * (x + 0.01), plain))
  with pytest.raises(AssertionError):
    close(first, last)


def test_numbers_and_carried_states_are_each_transform_s_own():
  cfg = config("shorter,fading", share=0.5)
  assert list(transforms.active(cfg)) == ["shorter", "fading"]
  assert begin(cfg).carried.keys() == {"fading"}
  change, state, metrics = moved(cfg)
  assert int(state.carried["fading"]["updates"]) == 1
  assert {"shorter/share", "fading/weight"} <= set(metrics)
  close(change, scaled(moved(config("fading", share=0.5))[0], 0.5))


@pytest.mark.slow
def test_micro_batches_change_nothing():
  """`before` sees the whole optimizer batch, however many micro-batches the gradient has."""
  expected = moved(config("standard"))[0]
  for micro_batches in (2, 4):
    close(moved(config("standard", micro_batches))[0], expected)
  # The wrong way, each micro-batch by its own largest advantage.
  batch = tiny_batch.make()
  halves = jnp.max(jnp.abs(batch.advantages).reshape(2, -1), 1)
  apart = batch.replace(advantages=batch.advantages / jnp.repeat(halves, 4)[:, None])
  with pytest.raises(AssertionError):
    close(moved(config(micro_batches=2), batch=apart)[0], expected)


@pytest.mark.slow
def test_eight_devices_give_the_update_of_one():
  cfg, results = config("fading,shorter"), []
  for sizes, devices in ((MeshConfig(), jax.devices()[:1]),
                         (MeshConfig(fsdp=2, tensor=1, sequence=1, data=4), jax.devices()[:8])):
    mesh = parallel.make_mesh(sizes, devices)
    layout = carrying_shardings(state_shardings(MODEL, TX, mesh), cfg, mesh)
    step, state = make_train_step(policy_loss, MODEL, TX, cfg, mesh), begin(cfg)
    state = jax.device_put(state, layout)
    for _ in range(2):
      state, _ = step(state, jax.device_put(tiny_batch.make(), parallel.rows(mesh)))
    results.append(jax.device_get((state.params, state.carried)))
  assert int(results[1][1]["fading"]["updates"]) == 2
  close(results[1][0], results[0][0])


def test_supervised_batches_are_left_alone():
  batch, cfg = tiny_batch.make(), config("fading,shorter")
  rows = SupervisedBatch(batch.rollout.tokens, batch.rollout.length, batch.loss_weights)
  after, _ = step_of(cfg, sft_loss)(begin(cfg), rows)
  plain, _ = step_of(config(), sft_loss)(begin(config()), rows)
  jax.tree.map(np.testing.assert_array_equal, after.params, plain.params)
  assert int(after.carried["fading"]["updates"]) == 0


# --- what is refused


def test_what_is_refused():
  class Counting(Fading):
    """Carries something for which a state without a place has no first value."""

    def before(self, params, batch, carried, parts):
      return batch, jnp.int32(1), {}

  transforms.register("counting", share=0.5)(Counting)
  with pytest.raises(ValueError, match=r"'counting' carries something, and the state has no place"):
    step_of(config("counting"))(begin(config()), tiny_batch.make())
  with pytest.raises(ConfigError, match=r"transform\.name = 'fadin': registered are .*'fading'\?"):
    transforms.active(config("fadin"))
  with pytest.raises(ConfigError, match=r"transform\.power = 1: 'fading' does not read it"):
    transforms.active(config("fading", power=1))


def tiny(name: str, **numbers):
  settings = smallest.config(**{"optimizer.name": "sgd", "optimizer.learning_rate": 1.0,
                                "mesh.data": 1, "advantage.name": "none"})
  settings.transform.update(name=name, **numbers)
  return from_dict(settings)


def test_a_transform_refuses_a_config():
  class Picky(Shorter):

    def check(self, updates):
      if updates.optimizer_batches == 2:
        raise ConfigError("updates.optimizer_batches = 2: Picky. Fix: another.")

  transforms.register("picky", share=0.5)(Picky)
  with pytest.raises(ConfigError, match="Picky"):
    setup.resolve(tiny("shorter,picky"))
  cfg = tiny("picky")
  setup.resolve(dataclasses.replace(cfg, updates=dataclasses.replace(cfg.updates,
                                                                     optimizer_batches=1)))


# --- a run that goes on from a checkpoint


class Summing(transforms.Transform):
  """On the host: sums the mean rewards, and takes no step."""

  def __init__(self, cfg):
    del cfg

  def phase(self, parts):
    return Sum(parallel.replicated(parts.mesh))


@dataclasses.dataclass(frozen=True)
class Sum:
  sharding: jax.sharding.Sharding

  def begin(self, state, carried, inputs):
    total = carried + 1.0 + inputs.reward
    return transforms.PhaseOutput(state, total, [], {"summing/total": float(total)})

  def carried(self, rollout, rewards, keep, scores):
    return jax.ShapeDtypeStruct((), jnp.float32, sharding=self.sharding)


@pytest.fixture
def history(tmp_path):
  """(built, start, saved trees and values of 3 iterations, the first tree from a checkpoint)."""
  transforms.register("summing")(Summing)
  parts = setup.build(setup.resolve(tiny("fading,summing", share=0.7)), jax.devices()[:1])
  params = parts.learner.model.init(jax.random.key(0))
  start = Start(*split(params, parts.cfg.parameters))
  trees, values = go_on(parts, first_state(parts.learner, start), start, range(1, 4))
  checkpoints = Checkpoints(tmp_path / "checkpoints", parts.cfg.checkpoint)
  checkpoints.save(1, trees[0])
  _, restored = checkpoints.restore(abstract_saved(parts.learner))
  checkpoints.close()
  return parts, start, trees, values, restored


def go_on(parts, run, start, iterations):
  trees, values = [], []
  for iteration in iterations:
    run, metrics, host, _ = iterate(make_loop(*parts), run, start.params, iteration)
    trees.append(jax.device_get(run.saved()))
    values.append(host | {"weight": float(metrics.steps[-1]["fading/weight"].total)})
  return trees, values


def test_a_resumed_run_goes_on_with_what_was_carried(history):
  parts, start, trees, values, restored = history
  assert [v["weight"] for v in values] == pytest.approx([0.7, 0.7**3, 0.7**5])
  assert [int(tree["train"].carried["fading"]["updates"]) for tree in trees] == [2, 4, 6]
  assert float(trees[2]["summing"]) == pytest.approx(values[2]["summing/total"])
  assert values[2]["summing/total"] == pytest.approx(3 + sum(v["reward/mean"] for v in values))

  def last(tree):
    """The third tree of a run that goes on from one, whose arrays stay."""
    copy = jax.tree.map(jnp.copy, tree)
    return go_on(parts, restored_state(copy, start), start, range(2, 4))[0][-1]

  jax.tree.map(np.testing.assert_array_equal, last(restored), trees[-1])
  # What the check rejects: states that forget one of the two.
  train = restored["train"]
  fresh = train.replace(carried=jax.tree.map(jnp.zeros_like, train.carried))
  for forgetful in ({**restored, "train": fresh},
                    {**restored, "summing": jnp.zeros_like(restored["summing"])}):
    with pytest.raises(AssertionError):
      jax.tree.map(np.testing.assert_array_equal, last(forgetful), trees[-1])
