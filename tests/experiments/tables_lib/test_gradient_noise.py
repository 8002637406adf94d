"""lab/gradient_noise.py: signal and noise are those of what is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.tables_lib import gradient_noise
from jaxrl_llm import parallel
from jaxrl_llm.config import AdvantageConfig, EstimatorConfig, LossConfig, MeshConfig, ModelConfig
from jaxrl_llm.models import Model
from jaxrl_llm.objective.loss import policy_loss
from jaxrl_llm.types import Rollout, TrainBatch

pytestmark = pytest.mark.slow

MEAN = np.array([3.0, 0.0, 0.0])


def noise_of(draw, count=4000):
  """Noise of 2 baselines beside RLOO, with few and with all rows; `draw` gives [S, K + 1, P]."""
  rng = np.random.default_rng(0)
  estimates = [draw(rng) for _ in range(count)]
  return gradient_noise._noise(
      count, sum(estimates), sum(np.square(one).sum(-1) for one in estimates),
      sum(one @ one[-1, -1] for one in estimates), ("whole", "half"), (4, 8))


def known(rng):
  """`half` has half the signal and a third of RLOO's standard deviation; few rows have twice it."""
  scale = np.array([1.0, 0.5, 1.0])[:, None]
  spread = np.array([[2.0], [1.0]])[:, None] * np.array([1.0, 1 / 3, 1.0])[:, None]
  return scale * MEAN + spread * rng.normal(size=(2, 3, 3))


def test_known_signal_and_noise_are_found():
  noise = noise_of(known)
  for name, signal, spread in (("whole", 1.0, 1.0), ("half", 0.5, 1 / 3)):
    for size, factor in (("4", 2.0), ("8", 1.0)):
      np.testing.assert_allclose(noise[name][size].signal, signal, rtol=0.05)
      expected = 3 * (factor * spread)**2 / (signal * MEAN[0])**2
      np.testing.assert_allclose(noise[name][size].noise, expected, rtol=0.1)


def test_noise_that_is_shared_within_a_group_is_no_signal():
  """Products of a group with itself would count it, and are left out."""
  rng, signals, naive = np.random.default_rng(0), [], []
  mean = 3 * np.eye(100)[0]
  for _ in range(200):
    estimates = [np.stack([np.stack([one, one, mean + one])] * 2)
                 for one in rng.normal(size=(20, 100))]
    draws = iter(estimates)
    signals.append(noise_of(lambda _, draws=draws: next(draws), 20)["whole"]["4"].signal)
    noise, _, estimate = np.mean(estimates, 0)[0]
    naive.append(noise @ estimate / (estimate @ estimate))
  error = np.std(signals) / np.sqrt(len(signals))
  assert abs(np.mean(signals)) < 4 * error < np.mean(naive) / 4


@pytest.fixture(scope="module")
def policy():
  model = Model(ModelConfig(vocab_size=11, width=16, num_layers=1, num_heads=2, num_kv_heads=1,
                            head_dim=8, mlp_width=24, value_head=True),
                parallel.Layout(parallel.make_mesh(MeshConfig(), jax.devices()[:1])))
  return model, model.init(jax.random.key(0))


def group(rows=8, width=7, prompt=2):
  rng = np.random.default_rng(1)
  length = rng.integers(prompt + 1, width + 1, rows).astype(np.int32)
  at = np.arange(width)
  zeros = np.zeros(rows, np.int32)
  return jax.tree.map(jnp.asarray, gradient_noise.Group(
      Rollout(rng.integers(0, 11, (rows, width)).astype(np.int32),
              (at >= prompt) & (at < length[:, None]), length, np.full(rows, prompt, np.int32),
              np.zeros((rows, width), np.float32), np.zeros(rows, bool), zeros,
              np.zeros((rows, width), np.int32), np.arange(rows, dtype=np.int32), zeros),
      rng.integers(0, 2, rows).astype(np.float32)))


def test_an_estimate_is_the_gradient_of_the_loss(policy):
  """It is minus that of REINFORCE's loss with RLOO's advantages and weights of 1/G per token."""
  model, params = policy
  rows = group()
  r, mask = rows.rewards, rows.rollout.mask
  advantages = jnp.where(mask, (8 / 7 * (r - r.mean()))[:, None], 0)
  batch = TrainBatch(rows.rollout, advantages,
                     mask / 8, None, jnp.ones(mask.shape))
  loss = lambda params: policy_loss(params, batch, model=model, cfg=LossConfig(
      EstimatorConfig("reinforce")))[0]
  expected = jax.flatten_util.ravel_pytree(jax.jit(jax.grad(loss))(params))[0]
  gradient = gradient_noise.gradients(params, rows, (AdvantageConfig("rloo"),), model=model)[0]
  np.testing.assert_allclose(gradient, -expected, atol=1e-5)
  assert np.abs(expected).max() > 1e-2
