"""An advantage of the user's own that needs values gets a critic, and the critic is trained."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from jaxrl_llm.config import AdvantageConfig, Config, from_dict
from jaxrl_llm.models.trainable import split
from jaxrl_llm.objective import advantages
from jaxrl_llm.runs.iteration import iterate
from jaxrl_llm.runs.run_state import first_state
from jaxrl_llm.types import AdvantageInputs
from jaxrl_llm.wiring import setup
from jaxrl_llm.wiring.loop import make_loop
from jaxrl_llm.wiring.warm_start import Start

GAMMA, LAM = 0.5, 0.25


@pytest.fixture(autouse=True, scope="module")
def _plugins():
  """Two advantages, reward minus value: without numbers of their own, and with gamma and lam."""

  def residual(inputs, cfg):
    del cfg
    values = jnp.where(inputs.mask, inputs.values, 0)
    return jax.lax.stop_gradient(inputs.mask * (inputs.rewards[:, None] - values))

  advantages.register("residual", needs={"values"}, group=False)(residual)
  advantages.register("discounted_residual", needs={"values"}, group=False, gamma=GAMMA,
                      lam=LAM)(residual)


@pytest.mark.parametrize("name", ["gae", "residual", "discounted_residual"])
def test_an_advantage_that_needs_values_has_a_critic(name):
  cfg = Config(advantage=AdvantageConfig(name))
  assert cfg.has_critic and cfg.loss.critic is not None
  other = Config(advantage=AdvantageConfig("grpo"))
  assert not other.has_critic and other.loss.critic is None


def targets(cfg: AdvantageConfig) -> np.ndarray:
  """Returns the targets of one row: outcome 1, a tool token at column 2, values 0.2, 0.4, 0.8."""
  mask = jnp.asarray([[False, True, False, True, True]])
  values = jnp.asarray([[9.0, 0.2, 9.0, 0.4, 0.8]])
  inputs = AdvantageInputs(jnp.ones(1), mask, jnp.zeros((1, 5), jnp.int32),
                           jnp.zeros(1, jnp.int32), values=values)
  return np.asarray(advantages.value_targets(inputs, cfg))[0]


def by_hand(gamma: float, lam: float) -> list[float]:
  """Returns the lambda-returns of that row from the right: R_t = gamma ((1 - lam) V + lam R)."""
  third = 1.0
  second = gamma * ((1 - lam) * 0.8 + lam * third)
  first = gamma * ((1 - lam) * 0.4 + lam * second)
  return [0.0, first, 0.0, second, third]


def test_without_numbers_of_its_own_the_target_is_the_monte_carlo_return():
  np.testing.assert_allclose(targets(AdvantageConfig("residual")), by_hand(1.0, 1.0), rtol=1e-6)
  assert by_hand(1.0, 1.0) == [0, 1, 0, 1, 1]


def test_its_own_gamma_and_lambda_are_read():
  defaults = targets(AdvantageConfig("discounted_residual"))
  np.testing.assert_allclose(defaults, by_hand(GAMMA, LAM), rtol=1e-6)
  given = targets(AdvantageConfig("discounted_residual", gamma=0.75))
  np.testing.assert_allclose(given, by_hand(0.75, LAM), rtol=1e-6)
  with pytest.raises(AssertionError):  # the defaults of another advantage
    np.testing.assert_allclose(defaults, targets(AdvantageConfig("gae")), rtol=1e-3)


@pytest.mark.slow
def test_two_iterations_move_the_value_head():
  config = tiny.get_config("reinforce")
  config.advantage.name = "residual"
  config.rollout.update(prompts=4, group_size=2)
  config.updates.optimizer_batches = 1
  built = setup.build(setup.resolve(from_dict(config)), jax.devices()[:1])
  params = built.learner.model.init(jax.random.key(0))
  # Away from 0, which is the target wherever an untrained policy is never right.
  params = {**params, "value_head": params["value_head"] + 1.0}
  run = first_state(built.learner, Start(*split(params, built.cfg.parameters)))
  for iteration in (1, 2):
    run, (steps, *_), _, _ = iterate(make_loop(*built), run, params, iteration)
    assert "critic/loss" in steps[0]
  built.sampler.close()
  moved = np.abs(np.asarray(built.learner.merged(run.state)["value_head"]) - params["value_head"])
  assert np.max(moved) > 1e-4
