"""Optimizers against their papers' formulas, by name from optax, and their states on devices."""

import functools

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
  fill,
  from_dict,
  from_saved,
  to_dict,
)
from jaxrl_llm.models import Model
from jaxrl_llm.registry import OPTIMIZERS
from jaxrl_llm.store.checkpoints import Checkpoints, abstract
from jaxrl_llm.training import optimizers, train_step
from jaxrl_llm.training.optimizers import make_optimizer
from jaxrl_llm.training.train_step import init_state, state_shardings
from jaxrl_llm.wiring import setup

ADAFACTOR = OptimizerConfig(name="adafactor", learning_rate=1e-2, weight_decay=0.1,
                            max_grad_norm=1e9, decay_power=0.7, max_update_rms=0.5)
WIDE = Model(ModelConfig(vocab_size=256, width=128, num_layers=2, num_heads=4, num_kv_heads=2,
                         head_dim=32, mlp_width=256, scan_layers=True))


def gradients_of(seed: int) -> dict:
  rng = np.random.default_rng(seed)
  return {"matrix": jnp.asarray(rng.standard_normal((128, 256)), jnp.float32),
          "scale": jnp.asarray(rng.standard_normal(5), jnp.float32)}


def updated(optimizer, steps: int = 3) -> dict:
  """The parameters after some steps of an optimizer of optax, or of a config."""
  tx = make_optimizer(optimizer) if isinstance(optimizer, OptimizerConfig) else optimizer
  params = gradients_of(100)
  state = tx.init(params)
  for step in range(steps):
    updates, state = tx.update(gradients_of(step), state, params)
    params = optax.apply_updates(params, updates)
  return params


def by_formula(cfg: OptimizerConfig, factored: bool, steps: int = 3) -> dict:
  """Algorithm 4 of arXiv 1804.04235 without relative steps, in f64."""
  params = {name: np.asarray(x, float) for name, x in gradients_of(100).items()}
  rows, columns, vector = np.zeros(128), np.zeros(256), np.zeros(5)
  full = np.zeros((128, 256))
  for t in range(1, steps + 1):
    grads = {name: np.asarray(x, float) for name, x in gradients_of(t - 1).items()}
    decay = 1 - t**-cfg.decay_power
    square = grads["matrix"]**2
    rows = decay * rows + (1 - decay) * square.mean(1)
    columns = decay * columns + (1 - decay) * square.mean(0)
    full = decay * full + (1 - decay) * square
    vector = decay * vector + (1 - decay) * grads["scale"]**2
    second = np.outer(rows, columns) / rows.mean() if factored else full
    for name, moment in (("matrix", second), ("scale", vector)):
      update = grads[name] / np.sqrt(moment)
      update /= max(1, np.sqrt(np.mean(update**2)) / cfg.max_update_rms)
      params[name] -= cfg.learning_rate * (update + cfg.weight_decay * params[name])
  return params


def test_adafactor_is_that_of_its_paper():
  weights, expected = updated(ADAFACTOR), by_formula(ADAFACTOR, factored=True)
  other = by_formula(ADAFACTOR, factored=False)
  for name in weights:
    np.testing.assert_allclose(weights[name], expected[name], atol=1e-5)
  assert np.max(np.abs(weights["matrix"] - other["matrix"])) > 1e-3


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
  weights, expected = (updated(OptimizerConfig(learning_rate=1e-2, moment_dtype=dtype))
                       for dtype in ("bfloat16", "float32"))
  moved = jax.tree.map(lambda x, start: np.abs(x - start).max(), expected, gradients_of(100))
  for name in weights:
    difference = np.abs(weights[name] - expected[name]).max()
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


@pytest.mark.slow
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
  monkeypatch.setattr(train_step, "_factor_sharding", lambda factor, sharding, parameter: sharding)
  mesh = parallel.make_mesh(MeshConfig(1, 4, 2), jax.devices()[:8])
  with pytest.raises(ValueError):
    one_step(ADAFACTOR, mesh)


# --- optimizers of optax by name

MUON = OptimizerConfig("muon", learning_rate=0.02, weight_decay=0.1, max_grad_norm=1e9, ns_steps=3)


def of_section(**keys) -> OptimizerConfig:
  """The section of a config in which these keys are set, as a config file sets them."""
  config = base_config()
  for name, value in keys.items():
    config.optimizer[name] = value
  cfg = check(fill(from_dict(config)))
  setup.resolve(cfg)
  assert from_saved(to_dict(cfg)).optimizer == cfg.optimizer
  return cfg.optimizer


def test_muon_is_that_of_optax_with_the_section_s_numbers():
  weights, three, five = (updated(tx) for tx in (MUON, *(
      optax.contrib.muon(0.02, weight_decay=0.1, ns_steps=steps) for steps in (3, 5))))
  check_close = functools.partial(np.testing.assert_allclose, atol=1e-5)
  jax.tree.map(check_close, weights, three)
  with pytest.raises(AssertionError):
    jax.tree.map(check_close, weights, five)


def test_numbers_of_optax_are_keys_of_the_section():
  cfg = of_section(name="muon", ns_steps=4, beta=0.9)
  assert (cfg.ns_steps, cfg.beta, cfg.nesterov) == (4, 0.9, True)
  assert of_section(ns_steps=4, name="muon") == of_section(name="muon", ns_steps=4)
  assert of_section(name="lion", b1=0.95).b1 == 0.95 and of_section(name="sgd").name == "sgd"
  for keys, message in (({"name": "muon", "ns_step": 4}, r"unknown key optimizer\.ns_step; "
                         r"nearest known key: optimizer\.ns_steps"),
                        ({"name": "adamw", "ns_steps": 4}, r"optimizer\.ns_steps = 4: 'adamw'"),
                        ({"name": "muon", "ns_steps": "many"}, r"optimizer\.ns_steps = 'many'"),
                        ({"name": "muon", "b1": 0.9}, r"optimizer\.b1 = 0\.9: 'muon'"),
                        ({"name": "adafactor", "moment_dtype": "bfloat16"},
                         r"optimizer\.moment_dtype"),
                        ({"decay_power": 0.5}, r"optimizer\.decay_power")):
    with pytest.raises(ConfigError, match=message):
      of_section(**keys)


@pytest.mark.parametrize("name", ["muno", "adam2", "contrib", "chain", "clip_by_global_norm"])
def test_a_name_that_is_no_optimizer_lists_those_that_are(name):
  with pytest.raises(ConfigError, match=rf"optimizer\.name = '{name}': registered are "
                                        r"adafactor, adamw"):
    of_section(name=name)


def test_a_weight_decay_that_would_be_left_out_is_refused():
  with pytest.raises(ConfigError, match=r"optimizer\.weight_decay = 0\.1 with optimizer\.name = "
                                        r"'sgd'.*Fix: optimizer\.weight_decay=0\.0"):
    of_section(name="sgd", weight_decay=0.1)
  for name in ("adamw", "adafactor", "muon", "lion"):
    of_section(name=name, weight_decay=0.1)
  assert not np.allclose(updated(OptimizerConfig("lion", weight_decay=0.5))["matrix"],
                         updated(OptimizerConfig("lion"))["matrix"])


def test_an_optimizer_of_a_plugin():
  @optimizers.register("halved", power=1.0)
  def halved(learning_rate, weight_decay, cfg):
    return [optax.add_decayed_weights(weight_decay), optax.scale(0.5**cfg.power),
            optax.scale_by_learning_rate(learning_rate)]

  cfg = of_section(name="halved", power=2.0, learning_rate=0.1, weight_decay=0.2)
  weights, params = updated(cfg, steps=1), gradients_of(100)
  clip = min(1, 1 / float(optax.tree.norm(gradients_of(0))))
  for name, value in params.items():
    expected = value - 0.1 * 0.25 * (clip * gradients_of(0)[name] + 0.2 * value)
    np.testing.assert_allclose(weights[name], expected, atol=1e-6)
  assert "halved" in OPTIMIZERS


@pytest.mark.slow
def test_muon_trains_and_resumes_on_eight_devices(tmp_path):
  """Updates follow one device; shapes and shardings of a restored state are those of the run's."""
  one, _ = one_step(MUON, parallel.make_mesh(MeshConfig(), jax.devices()[:1]))
  mesh = parallel.make_mesh(MeshConfig(1, 4, 2), jax.devices()[:8])
  eight, state = one_step(MUON, mesh)
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=5e-5), eight, one)
  start = jax.device_get(state.params)
  moved = jax.tree.map(lambda x, y: float(np.abs(x - y).max()), one, start)
  assert min(jax.tree.leaves(moved)) > 1e-4, "every leaf is trained"

  tx = make_optimizer(MUON)
  shapes = jax.eval_shape(functools.partial(init_state, tx=tx), WIDE.shapes())
  layout = state_shardings(WIDE, tx, mesh)
  checkpoints = Checkpoints(tmp_path, from_dict(base_config()).checkpoint)
  checkpoints.save(1, {"train": state})
  _, restored = checkpoints.restore({"train": abstract(shapes, layout)})
  checkpoints.close()

  def same(x, y):
    np.testing.assert_array_equal(x, y)
    assert (x.shape, x.dtype, x.sharding) == (y.shape, y.dtype, y.sharding)

  jax.tree.map(same, restored["train"], state)
  divided = [x for x in jax.tree.leaves(state.opt_state) if x.size > 1
             and x.addressable_shards[0].data.size < x.size]
  assert divided, "what the layout is for"


# --- states of runs that were saved before optimizers had a table


@pytest.mark.parametrize(("cfg", "parts"), [
    (OptimizerConfig(), lambda: [optax.adamw(1e-4, b1=0.9, b2=0.95)]),
    (OptimizerConfig(warmup_steps=3, moment_dtype="bfloat16"), lambda: [
        optax.adamw(optax.linear_schedule(0.0, 1e-4, 3), b1=0.9, b2=0.95, mu_dtype="bfloat16")]),
    (OptimizerConfig("adafactor"), lambda: [
        optax.scale_by_factored_rms(decay_rate=0.8), optax.clip_by_block_rms(1.0),
        optax.add_decayed_weights(0.0), optax.scale_by_learning_rate(1e-4)]),
])
def test_the_tree_of_a_state_is_the_former_one(cfg, parts):
  """As `optax.chain(clip, *parts)` of version 0.1 made it: a checkpoint names leaves by place."""
  clip = optax.clip_by_global_norm(1.0)
  expected, nested, state = (jax.eval_shape(tx.init, WIDE.shapes()) for tx in (
      optax.chain(clip, *parts()), optax.chain(clip, optax.chain(*parts())), make_optimizer(cfg)))
  assert jax.tree.structure(state) == jax.tree.structure(expected)
  assert jax.tree.leaves(state) == jax.tree.leaves(expected)
  # What the check rejects: a chain within the chain.
  assert jax.tree.structure(nested) != jax.tree.structure(state)


@pytest.mark.parametrize(("warmup_steps", "decay_steps", "rates"), [
    (0, 0, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
    (2, 0, [0.0, 0.5, 1.0, 1.0, 1.0, 1.0]),
    (0, 3, [1.0, 0.7, 0.4, 0.1, 0.1, 0.1]),
    (2, 3, [0.0, 0.5, 1.0, 0.7, 0.4, 0.1]),
])
def test_the_learning_rate_rises_and_falls(warmup_steps, decay_steps, rates):
  cfg = OptimizerConfig("sgd", learning_rate=1.0, warmup_steps=warmup_steps,
                        decay_steps=decay_steps, max_grad_norm=10.0)
  optimizer, params = make_optimizer(cfg), {"w": jnp.zeros(1)}
  state, steps = optimizer.init(params), []
  for _ in rates:
    updates, state = optimizer.update({"w": jnp.ones(1)}, state, params)
    steps.append(-float(updates["w"][0]))
  assert steps == pytest.approx(rates)
  assert (len(set(rates)) > 1) == bool(warmup_steps or decay_steps)  # not one constant for all
