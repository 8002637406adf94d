"""Routing replay: the trainer sends each token to the experts that the sampler chose."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm import parallel
from jaxrl_llm.config import (
  ConfigError,
  EstimatorConfig,
  LossConfig,
  MeshConfig,
  ModelConfig,
  RolloutConfig,
  SamplerConfig,
  StepConfig,
  from_dict,
)
from jaxrl_llm.models import Model
from jaxrl_llm.models.moe import MoE
from jaxrl_llm.models.transformer import unconstrained
from jaxrl_llm.objective.loss import policy_loss
from jaxrl_llm.rollouts import generate, numerics
from jaxrl_llm.training.packing import Packer
from jaxrl_llm.training.score import score
from jaxrl_llm.training.train_step import gradients
from jaxrl_llm.types import Bins, PromptBatch, Sampling, TrainBatch
from jaxrl_llm.wiring.setup import resolve

MODEL = Model(ModelConfig(vocab_size=13, width=16, num_layers=2, num_heads=2, num_kv_heads=1,
                          head_dim=8, num_experts=8, experts_per_token=2, expert_width=12))
ROWS, WIDTH, NEW = 32, 4, 12
LENGTH = np.arange(ROWS // 4).repeat(4) % 3 + 2
INT8 = RolloutConfig(quantization="int8")
OWN = "what a router chooses"


@functools.cache
def params():
  """Weights large enough for experts to differ and for routers to be near a tie now and then."""
  return jax.tree.map(lambda x: 6 * x if x.ndim > 1 else x, MODEL.init(jax.random.key(0)))


def stale(tree):
  """The parameters of a policy some updates earlier."""
  leaves, tree = jax.tree.flatten(tree)
  return jax.tree.unflatten(tree, [
      x * (1 + 0.01 * jax.random.normal(jax.random.key(i), x.shape))
      for i, x in enumerate(leaves)])


@functools.cache
def sampled(kind):
  """A rollout of the exact parameters, of int8's, or of older ones."""
  if kind == "int8":
    return drawn(*numerics.rollout_numerics(MODEL, params(), INT8))
  return drawn(MODEL, stale(params()) if kind == "stale" else params())


def drawn(model, weights):
  """Samples groups of four rows, with prompts of two to four tokens."""
  rng, ids = np.random.default_rng(0), np.arange(ROWS, dtype=np.int32)
  tokens = rng.integers(2, 13, (ROWS // 4, WIDTH)).repeat(4, 0).astype(np.int32)
  prompts = PromptBatch(tokens, LENGTH.astype(np.int32), ids, ids // 4)
  cfg = SamplerConfig(4, NEW, window=4, routing=True)
  run = jax.jit(functools.partial(generate, model=model, cfg=cfg))
  return run(weights, prompts, jax.random.key(3), Sampling.of(1.0))


@functools.cache
def scorer(pieces=1, model=MODEL):
  return jax.jit(functools.partial(score, model=model, cfg=StepConfig(LossConfig(), pieces)))


def gaps(rollout, weights=None):
  """|log-prob of the trainer - of the sampler| of each sampled token."""
  scores = scorer()(params() if weights is None else weights, rollout, Sampling.of(1.0)).log_probs
  return np.abs(np.asarray(scores - rollout.behavior_log_probs)[np.asarray(rollout.mask)])


def shifted(rollout):
  """A wrong recording: a column late."""
  return rollout.replace(routing=jnp.roll(rollout.routing, 1, 1))


def test_the_sampler_records_what_its_network_chose():
  rollout = sampled("exact")
  routing, length = np.asarray(rollout.routing), np.asarray(rollout.length)
  assert routing.shape == (ROWS, WIDTH + NEW, 2, 2) and routing.dtype == np.int16
  fed = np.arange(WIDTH + NEW) < length[:, None] - 1
  assert (routing[fed] >= 0).all() and (routing[~fed] == -1).all()
  positions = jnp.broadcast_to(jnp.arange(WIDTH + NEW), rollout.tokens.shape)
  segments = (positions < length[:, None]).astype(jnp.int32)
  experts = jax.jit(MODEL.hidden_and_routing)(params(), rollout.tokens, positions, segments)[2]
  experts = np.moveaxis(np.asarray(experts), 0, 2)
  same = (np.sort(experts, -1) == np.sort(routing, -1)).all((-1, -2))[fed]
  assert same.mean() > 0.999, OWN
  assert gaps(rollout).max() < 1e-4
  assert gaps(shifted(rollout)).max() > 0.1, "a wrong recording changes nothing"


@pytest.mark.parametrize("kind", ["int8", "stale"])
def test_replay_takes_out_the_mismatch_of_routers(kind):
  """What is left is the mismatch of the weights: no token is sent to another expert."""
  rollout = sampled(kind)
  with_replay, without = gaps(rollout), gaps(rollout.replace(routing=None))
  print(kind, "mean", with_replay.mean(), without.mean(), "max", with_replay.max(), without.max())
  assert with_replay.mean() < without.mean() and with_replay.max() < 0.8 * without.max()
  if kind == "stale":  # the weights that sampled agree to rounding
    assert gaps(rollout, stale(params())).max() < 1e-4


def by_loop(mlp, x, routing):
  """One token and one expert at a time, in numpy."""
  out = np.zeros_like(x)
  for t, token in enumerate(x):
    logits = token @ mlp["router"]
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    for e in routing[t]:
      gate = token @ mlp["gate"][e]
      inner = gate / (1 + np.exp(-gate)) * (token @ mlp["up"][e])
      out[t] += shares[e] / shares[routing[t]].sum() * (inner @ mlp["down"][e])
  return out


def test_replayed_experts_have_the_weights_of_the_router():
  from flax import nnx
  moe = MoE(MODEL.config, nnx.Rngs(params=0))
  mlp = {name: 4 * np.asarray(getattr(moe, name)[...]) for name in ("router", "gate", "up", "down")}
  for name, value in mlp.items():
    getattr(moe, name)[...] = jnp.asarray(value)
  rng = np.random.default_rng(0)
  x = rng.standard_normal((6, 16)).astype(np.float32)
  routing = np.array([rng.permutation(8)[:2] for _ in x])
  out, likely = moe(jnp.asarray(x)[None], unconstrained, jnp.asarray(routing)[None])
  np.testing.assert_allclose(out[0], by_loop(mlp, x, routing), rtol=1e-5, atol=1e-5)
  plain = moe(jnp.asarray(x)[None], unconstrained)
  none = moe(jnp.asarray(x)[None], unconstrained, jnp.full((1, 6, 2), -1))
  np.testing.assert_array_equal(plain[0], none[0])
  np.testing.assert_array_equal(likely, plain[1])
  assert not np.array_equal(likely[0], routing)
  assert np.abs(plain[0] - out).max() > 1e-2

  @jax.jit
  def total(router):
    fresh = MoE(MODEL.config, nnx.Rngs(params=0))
    nnx.update(fresh, mlp | {"router": router})
    return fresh(jnp.asarray(x)[None], unconstrained, jnp.asarray(routing)[None])[0].sum()

  gradient = jax.grad(total)(jnp.asarray(mlp["router"]))
  step = 1e-2 * rng.standard_normal(gradient.shape).astype(np.float32)
  slope = (total(mlp["router"] + step) - total(mlp["router"] - step)) / 2
  np.testing.assert_allclose(np.sum(gradient * step), slope, rtol=2e-2)
  assert np.abs(gradient).max() > 1e-3


def test_packing_micro_batches_order_and_devices_change_nothing():
  rollout, one = sampled("int8"), Sampling.of(1.0)
  expected = scorer()(params(), rollout, one).log_probs
  order = np.random.default_rng(0).permutation(ROWS)
  permuted = scorer()(params(), jax.tree.map(lambda x: x[order], rollout), one).log_probs
  packer = Packer(Bins(2 * (WIDTH + NEW), 4), 4, 1)
  shared = dataclasses.replace(packer, shared_prompts=True).pack(rollout)
  assert np.count_nonzero(shared.shared) >= 4
  model = dataclasses.replace(MODEL, constrain=parallel.Layout(parallel.make_mesh(MeshConfig())))
  mesh = model.constrain.mesh
  placed = jax.device_put(params(), parallel.param_shardings(model, mesh))
  scanned = dataclasses.replace(MODEL, config=dataclasses.replace(MODEL.config, scan_layers=True))
  blocks = jax.tree.map(lambda *x: jnp.stack(x), *params()["blocks"].values())
  stacked = params() | {"blocks": blocks}
  pairs = {
      "micro-batches": scorer(4)(params(), rollout, one).log_probs,
      "order": permuted[np.argsort(order)],
      "packed": scorer()(params(), rollout, one, packing=packer.pack(rollout)).log_probs,
      "shared prompts": scorer()(params(), rollout, one, packing=shared).log_probs,
      "devices": scorer(model=model)(
          placed, jax.device_put(rollout, parallel.rows(mesh)), one).log_probs,
      "scanned": scorer(model=scanned)(stacked, rollout, one).log_probs,
  }
  for name, log_probs in pairs.items():
    np.testing.assert_allclose(np.asarray(log_probs)[rollout.mask], expected[rollout.mask],
                               rtol=1e-6, atol=1e-6, err_msg=name)


def test_the_loss_takes_the_recorded_experts():
  """The gradient of a router is that of the sampler's choice; without the record it is another."""
  rollout = sampled("int8")
  zeros = jnp.zeros_like(rollout.behavior_log_probs)
  batch = TrainBatch(rollout, zeros + 1.0, rollout.mask / jnp.sum(rollout.mask),
                     rollout.behavior_log_probs, zeros + 1.0)
  run = jax.jit(functools.partial(gradients, loss=policy_loss, model=MODEL, cfg=StepConfig(
      LossConfig(EstimatorConfig("ppo")))))

  def router(batch, routing):
    batch = batch.replace(rollout=batch.rollout.replace(routing=routing))
    return run(params(), batch)[1]["blocks"][0]["mlp"]["router"]

  replayed, other = router(batch, rollout.routing), router(batch, None)
  unlike = router(batch, shifted(rollout).routing)
  assert np.abs(replayed - other).max() > 1e-5 and np.abs(replayed - unlike).max() > 1e-3
  none = jnp.full_like(rollout.routing, -1)
  np.testing.assert_allclose(router(batch, none), other, rtol=1e-6, atol=1e-7)


WINDOWED = Model(dataclasses.replace(MODEL.config, num_layers=3, window=3, full_layers=(2,),
                                     dense_layers=(1,)))


def test_windows_and_dense_layers():
  weights = jax.tree.map(lambda x: 6 * x if x.ndim > 1 else x, WINDOWED.init(jax.random.key(0)))
  rollout = drawn(WINDOWED, weights)
  assert rollout.routing.shape == (ROWS, WIDTH + NEW, 2, 2)
  log_probs = scorer(model=WINDOWED)(weights, rollout, Sampling.of(1.0)).log_probs
  gap = np.abs(log_probs - rollout.behavior_log_probs)[rollout.mask]
  assert gap.max() < 1e-4


@pytest.mark.parametrize("values", [
    {"rollout.slots": 8}, {"server.url": "http://h:1", "server.folder": "w"},
    {"model.num_experts": 0}])
def test_what_cannot_record_is_refused_by_name(values):
  cfg = {"model": {"num_experts": 8, "experts_per_token": 2, "expert_width": 12},
         "rollout": {"routing": True}}
  for key, value in values.items():
    section, name = key.split(".")
    cfg.setdefault(section, {})[name] = value
  with pytest.raises(ConfigError, match=r"rollout\.routing = True") as error:
    resolve(from_dict(cfg))
  assert next(iter(values)) in str(error.value)
