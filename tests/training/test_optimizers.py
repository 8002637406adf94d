"""Optimizers against their papers' formulas, and their states on one device and several."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl_llm import parallel
from jaxrl_llm.config import (
  ConfigError,
  MeshConfig,
  ModelConfig,
  OptimizerConfig,
  base_config,
  check,
  from_dict,
)
from jaxrl_llm.models import Model
from jaxrl_llm.training import train_step
from jaxrl_llm.training.optimizers import make_optimizer
from jaxrl_llm.training.train_step import init_state, state_shardings

ADAFACTOR = OptimizerConfig(name="adafactor", learning_rate=1e-2, weight_decay=0.1,
                            max_grad_norm=1e9, decay_power=0.7, max_update_rms=0.5)
WIDE = Model(ModelConfig(vocab_size=256, width=128, num_layers=2, num_heads=4, num_kv_heads=2,
                         head_dim=32, mlp_width=256, scan_layers=True))


def gradients_of(seed: int) -> dict:
  rng = np.random.default_rng(seed)
  return {"matrix": jnp.asarray(rng.standard_normal((128, 256)), jnp.float32),
          "scale": jnp.asarray(rng.standard_normal(5), jnp.float32)}


def updated(cfg: OptimizerConfig, steps: int = 3) -> dict:
  tx, params = make_optimizer(cfg), gradients_of(100)
  state = tx.init(params)
  for step in range(steps):
    updates, state = tx.update(gradients_of(step), state, params)
    params = optax.apply_updates(params, updates)
  return params


def by_formula(cfg: OptimizerConfig, factored: bool, steps: int = 3) -> dict:
  """Algorithm 4 of arXiv 1804.04235 without relative steps, in f64."""
  params = {name: np.asarray(x, float) for name, x in gradients_of(100).items()}
  rows, columns, whole = np.zeros(128), np.zeros(256), np.zeros(5)
  full = np.zeros((128, 256))
  for t in range(1, steps + 1):
    grads = {name: np.asarray(x, float) for name, x in gradients_of(t - 1).items()}
    decay = 1 - t**-cfg.decay_power
    square = grads["matrix"]**2
    rows = decay * rows + (1 - decay) * square.mean(1)
    columns = decay * columns + (1 - decay) * square.mean(0)
    full = decay * full + (1 - decay) * square
    whole = decay * whole + (1 - decay) * grads["scale"]**2
    second = np.outer(rows, columns) / rows.mean() if factored else full
    for name, moment in (("matrix", second), ("scale", whole)):
      update = grads[name] / np.sqrt(moment)
      update /= max(1, np.sqrt(np.mean(update**2)) / cfg.max_update_rms)
      params[name] -= cfg.learning_rate * (update + cfg.weight_decay * params[name])
  return params


def test_adafactor_is_that_of_its_paper():
  found, expected = updated(ADAFACTOR), by_formula(ADAFACTOR, factored=True)
  other = by_formula(ADAFACTOR, factored=False)
  for name in found:
    np.testing.assert_allclose(found[name], expected[name], atol=1e-5)
  assert np.max(np.abs(found["matrix"] - other["matrix"])) > 1e-3


def state_bytes(cfg: OptimizerConfig) -> int:
  state = jax.eval_shape(make_optimizer(cfg).init, WIDE.shapes())
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))


def test_states_are_as_small_as_they_say():
  parameters = sum(4 * x.size for x in jax.tree.leaves(WIDE.shapes()))
  assert state_bytes(OptimizerConfig()) == pytest.approx(2 * parameters, rel=1e-3)
  assert state_bytes(OptimizerConfig(moment_dtype="bfloat16")) == pytest.approx(1.5 * parameters,
                                                                                rel=1e-3)
  # query, key, value and out have heads of 32 columns here, so that they keep whole moments
  assert state_bytes(ADAFACTOR) < 0.4 * parameters


def test_a_first_moment_in_bfloat16_moves_parameters_alike():
  found, expected = (updated(OptimizerConfig(learning_rate=1e-2, moment_dtype=dtype))
                     for dtype in ("bfloat16", "float32"))
  moved = jax.tree.map(lambda x, start: np.abs(x - start).max(), expected, gradients_of(100))
  for name in found:
    difference = np.abs(found[name] - expected[name]).max()
    assert 0 < difference < 0.01 * moved[name]


def one_step(cfg: OptimizerConfig, mesh) -> tuple:
  """(parameters after a step, the laid out state before it)."""
  tx = make_optimizer(cfg)
  layout = state_shardings(WIDE, tx, mesh)
  state = jax.jit(lambda: init_state(WIDE.init(jax.random.key(0)), tx), out_shardings=layout)()

  def update(state):
    grads = jax.tree.map(jnp.sin, jax.tree.map(lambda x: 100 * x, state.params))
    updates, _ = tx.update(grads, state.opt_state, state.params)
    return optax.apply_updates(state.params, updates)

  return jax.device_get(jax.jit(update)(state)), state


def test_eight_devices_follow_one_device_and_divide_the_factors():
  one, _ = one_step(ADAFACTOR, parallel.make_mesh(MeshConfig(), jax.devices()[:1]))
  mesh = parallel.make_mesh(MeshConfig(1, 4, 2), jax.devices()[:8])
  eight, state = one_step(ADAFACTOR, mesh)
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5), eight, one)
  factored = state.opt_state[1]
  gate = factored.v_row["blocks"]["mlp"]["gate"], factored.v_col["blocks"]["mlp"]["gate"]
  assert {x.shape for x in gate} == {(2, 128), (2, 256)}
  for x in gate:  # [layers, embed] over fsdp, [layers, mlp] over tensor
    assert x.addressable_shards[0].data.shape == ((2, 32) if x.shape == (2, 128) else (2, 128))


def test_factors_laid_out_like_their_parameters_are_rejected(monkeypatch):
  monkeypatch.setattr(train_step, "_of_factor", lambda factor, sharding, parameter: sharding)
  mesh = parallel.make_mesh(MeshConfig(1, 4, 2), jax.devices()[:8])
  with pytest.raises(ValueError):
    one_step(ADAFACTOR, mesh)


@pytest.mark.parametrize("keys, key", [
    ({"name": "adafactor", "b1": 0.8}, "optimizer.b1"),
    ({"name": "adafactor", "moment_dtype": "bfloat16"}, "optimizer.moment_dtype"),
    ({"decay_power": 0.5}, "optimizer.decay_power"),
    ({"max_update_rms": 2.0}, "optimizer.max_update_rms"),
])
def test_keys_of_the_other_optimizer_are_refused(keys, key):
  config = base_config()
  config.optimizer.update(keys)
  with pytest.raises(ConfigError, match=key):
    check(from_dict(config))
