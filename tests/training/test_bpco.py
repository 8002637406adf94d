"""BPCO's critic: bounded values, and first steps in which the critic alone learns."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_packing import DENSE, LOSS, TX, packer, parameters, sampled

from jaxrl_llm import parallel
from jaxrl_llm.config import (
  ConfigError,
  CriticConfig,
  EntropyConfig,
  KLConfig,
  MeshConfig,
  StepConfig,
  from_dict,
)
from jaxrl_llm.models import Model
from jaxrl_llm.objective.loss import policy_loss
from jaxrl_llm.objective.row_stats import row_stats
from jaxrl_llm.presets import PRESETS
from jaxrl_llm.training.train_step import gradients, init_state, state_shardings, train_step
from jaxrl_llm.wiring import setup

BOUNDED = Model(dataclasses.replace(DENSE.config, value_bounded=True))
FIRST = dataclasses.replace(LOSS, critic=CriticConfig(coef=0.5, bounded=True, first=2),
                            kl=KLConfig(), entropy=EntropyConfig(0.0))
ALWAYS = dataclasses.replace(FIRST, critic=CriticConfig(coef=0.5, bounded=True))


def by_numpy(hidden, head):
  return 0.5 + np.arctan(np.asarray(hidden, np.float64) @ np.asarray(head, np.float64)) / np.pi


def sigmoid_values(params, hidden):
  """Wrong: another bound, which agrees at 0 and in the limits."""
  return jax.nn.sigmoid(hidden @ params["value_head"])


def check_values(values):
  rng = np.random.default_rng(0)
  hidden = rng.standard_normal((3, 5, 16)).astype(np.float32)
  hidden[0] *= 1e4
  params = parameters(DENSE)
  np.testing.assert_allclose(values(params, jnp.asarray(hidden)),
                             by_numpy(hidden, params["value_head"]), rtol=1e-5, atol=1e-5)


def test_bounded_values_are_those_of_numpy():
  check_values(BOUNDED.values)
  with pytest.raises(AssertionError):
    check_values(sigmoid_values)
  untrained = BOUNDED.values(BOUNDED.init(jax.random.key(0)), jnp.ones((1, 2, 16)))
  np.testing.assert_array_equal(untrained, np.full((1, 2), 0.5))


@pytest.mark.parametrize("z", [-1e4, 1e4])
def test_far_from_a_target_there_is_still_a_gradient(z):
  def value(head):
    return BOUNDED.values({"value_head": head}, jnp.ones((1, 1, 16)))[0, 0]

  number, slope = jax.value_and_grad(value)(jnp.full(16, z / 16))
  assert 0 <= number <= 1 and np.isfinite(slope).all() and (slope > 1e-10).all()


@functools.cache
def stepper(loss, model=BOUNDED, micro_batches=1):
  return jax.jit(functools.partial(train_step, loss=policy_loss, model=model, tx=TX,
                                   cfg=StepConfig(loss, micro_batches)))


def state_at(step, params=None):
  params = parameters(BOUNDED) if params is None else params
  return init_state(params, TX).replace(step=jnp.int32(step))


def loss_at(step, batch, loss=FIRST, run=None, **options):
  return (run or stepper(loss))(state_at(step), batch, **options)[1]["loss/total"].total


def value_loss(batch):
  """The critic's share of the loss, in numpy."""
  rollout = batch.rollout
  values = row_stats(parameters(BOUNDED), rollout.tokens, rollout.length, model=BOUNDED,
                     stats=frozenset({"values"})).values
  mask = np.asarray(rollout.mask)
  error = np.square(np.where(mask, np.asarray(values, np.float64) - batch.returns, 0))
  return 0.5 * np.sum(np.asarray(batch.loss_weights, np.float64) * error / 2)


def test_the_first_steps_are_of_the_critic_alone():
  batch = sampled()
  for step in (0, 1):
    np.testing.assert_allclose(loss_at(step, batch), value_loss(batch), rtol=1e-5)
  for step in (2, 3):
    np.testing.assert_allclose(loss_at(step, batch), loss_at(step, batch, ALWAYS), rtol=1e-6)
  assert abs(loss_at(0, batch, ALWAYS) - value_loss(batch)) > 1e-2, "the estimator adds nothing"
  without = batch.replace(loss_weights=0 * batch.loss_weights)
  assert abs(loss_at(0, without) - value_loss(batch)) > 1e-2, "the critic learns nothing either"
  moved = stepper(FIRST)(state_at(0), batch)[0].params["value_head"]
  assert np.abs(moved - parameters(BOUNDED)["value_head"]).max() > 1e-4


def test_pieces_order_and_devices_change_nothing():
  batch, order = sampled(), np.random.default_rng(0).permutation(16)
  expected = loss_at(0, batch)
  model = dataclasses.replace(BOUNDED, constrain=parallel.Layout(parallel.make_mesh(MeshConfig())))
  mesh = model.constrain.mesh
  state = jax.device_put(state_at(0), state_shardings(model, TX, mesh))
  on_mesh = stepper(FIRST, model)(state, jax.device_put(batch, parallel.rows(mesh)))
  losses = {
      "micro-batches": loss_at(0, batch, run=stepper(FIRST, micro_batches=4)),
      "order": loss_at(0, jax.tree.map(lambda x: x[order], batch)),
      "packed": loss_at(0, batch, packing=packer(48)(batch.rollout.length)),
      "devices": on_mesh[1]["loss/total"].total,
  }
  for name, value in losses.items():
    np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-6, err_msg=name)


def test_gradients_of_bounded_values_are_slopes():
  batch, params = sampled(), parameters(BOUNDED)
  run = jax.jit(functools.partial(gradients, loss=policy_loss, model=BOUNDED,
                                  cfg=StepConfig(ALWAYS)))
  step = 1e-2 * jax.random.normal(jax.random.key(3), (16,))
  there, back = (run(params | {"value_head": params["value_head"] + sign * step}, batch)[0][0]
                 for sign in (1, -1))
  slope = jnp.sum(run(params, batch)[1]["value_head"] * step)
  np.testing.assert_allclose(slope, (there - back) / 2, rtol=1e-2)


def test_the_preset_sets_the_papers_numbers_and_needs_a_critic():
  preset = PRESETS["bpco"]
  assert {key: preset[key] for key in preset if "critic" in key or "alpha" in key} == {
      "advantage.length_alpha": 0.4, "critic.bounded": True, "critic.first": 15}
  with pytest.raises(ConfigError, match=r"critic\.bounded = True"):
    setup.resolve(from_dict({"critic": {"bounded": True}}))
