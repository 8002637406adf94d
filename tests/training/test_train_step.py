"""The loss does not depend on micro-batches, padding, row order, devices and skipped passes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suites import quick_for, quick_of

from jaxrl_llm import parallel
from jaxrl_llm.config import (
  AdvantageConfig,
  AggregationConfig,
  BatchConfig,
  CorrectionConfig,
  EntropyConfig,
  EstimatorConfig,
  KLConfig,
  LossConfig,
  MeshConfig,
  ModelConfig,
  OptimizerConfig,
  StepConfig,
)
from jaxrl_llm.models import Model
from jaxrl_llm.objective.loss import policy_loss, sft_loss
from jaxrl_llm.training.batches import optimizer_batches
from jaxrl_llm.training.estimator_weights import with_estimator_weights
from jaxrl_llm.training.optimizers import make_optimizer
from jaxrl_llm.training.score import Scores, score
from jaxrl_llm.training.train_step import (
  gradients,
  init_state,
  make_train_step,
  state_shardings,
  train_step,
)
from jaxrl_llm.types import Rollout, Sampling, SupervisedBatch

MODEL = Model(ModelConfig(vocab_size=16, width=16, num_layers=2, num_heads=4, num_kv_heads=2,
                          head_dim=8, mlp_width=24))
GROUP = 4
TX = make_optimizer(OptimizerConfig(learning_rate=1e-3))


@functools.cache
def recorded_batches(parts=1, seed=0, rows=16, length=11):
  """(optimizer batches, params): rows with holes in the mask, one void row, one unscored row."""
  rng = np.random.default_rng(seed)
  params = jax.tree.map(lambda x: 4 * x if x.ndim > 1 else x, MODEL.init(jax.random.key(seed)))
  end = rng.integers(5, length + 1, rows)
  start = rng.integers(1, 4, rows)
  at = np.arange(length)
  mask = (at >= start[:, None]) & (at < end[:, None]) & (rng.random((rows, length)) < 0.8)
  mask[3] = False
  tokens = np.where(at < end[:, None], rng.integers(0, 16, mask.shape), 0)
  zeros = np.zeros(rows, np.int32)
  tokens, end, start = (x.astype(np.int32) for x in (tokens, end, start))
  behavior = np.where(mask, -2.5 + 0.3 * rng.standard_normal(mask.shape), 0).astype(np.float32)
  ids = np.arange(rows, dtype=np.int32)
  rollout = jax.tree.map(jnp.asarray, Rollout(tokens, mask, end, start, behavior, zeros > 0, zeros,
                                              0 * tokens, ids, ids // GROUP))
  anchor = jnp.where(mask, rollout.behavior_log_probs + 0.05 * rng.standard_normal(mask.shape), 0)
  rewards = jnp.asarray(rng.integers(0, 2, rows), jnp.float32)
  keep = jnp.asarray(np.arange(rows) != 7)
  scores = Scores(anchor.astype(jnp.float32), (anchor + 0.1).astype(jnp.float32))
  cfg = BatchConfig(GROUP, parts, AdvantageConfig("grpo"), AggregationConfig("sequence"),
                    CorrectionConfig("token", 2.0))
  batches, _ = jax.jit(optimizer_batches, static_argnames="cfg")(rollout, rewards, keep, scores,
                                                                 cfg=cfg)
  return batches, params


# Numbers under which the recorded batches have tokens on both sides of every bound.
NUMBERS = {
    "ctpo": {"log_low": 1.0, "log_high": 2.0, "log_dual": 2.0},
    "m2po": {"tau": 0.15, "m2_scope": "all"},
    "bapo": {"contribution": "live", "low_start": 0.3, "high_start": 1.05},
    "clip_cov": {"share": 0.2, "cov_low": 0.0},
    "kl_cov": {"share": 0.2},
}


def config(estimator="ctpo", micro_batches=1):
  estimator = EstimatorConfig(estimator, **NUMBERS.get(estimator, {}))
  return StepConfig(LossConfig(estimator, KLConfig("k3", 0.1), EntropyConfig(0.01), 0.9),
                    micro_batches)


@functools.cache
def grad_of(cfg, loss=policy_loss):
  return jax.jit(functools.partial(gradients, loss=loss, model=MODEL, cfg=cfg))


def assert_close(a, b, tolerance=1e-5):
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance), a, b)


@pytest.mark.parametrize("estimator", quick_for({"ctpo"}, ["ctpo", "minpro", "gspo"]))
def test_micro_batches_change_nothing(estimator):
  (batch,), params = recorded_batches()
  (value, metrics), gradient = grad_of(config(estimator))(params, batch)
  assert np.isfinite(value) and max(
      float(jnp.max(jnp.abs(g))) for g in jax.tree.leaves(gradient)) > 1e-3
  for parts in (2, 4):
    (other, other_metrics), other_gradient = grad_of(config(estimator, parts))(params, batch)
    assert_close((other, other_metrics, other_gradient), (value, metrics, gradient))


@functools.cache
def prepared_step(cfg):
  return jax.jit(functools.partial(train_step, loss=policy_loss, model=MODEL, tx=TX, cfg=cfg))


@pytest.mark.parametrize("name", quick_of(
    (), {name: (name,) for name in ("m2po", "bapo", "clip_cov", "kl_cov", "tpo", "real")},
    slow=("clip_cov", "tpo")))
def test_statistics_of_the_whole_batch_survive_micro_batches(name):
  """Thresholds, bounds, chosen tokens and groups are not those of each micro-batch by itself."""
  (batch,), params = recorded_batches()
  state = init_state(params, TX)
  full, metrics = prepared_step(config(name))(state, batch)
  for parts in (2, 4):
    other, other_metrics = prepared_step(config(name, parts))(state, batch)
    # Adam divides by the gradient's size, so that only the moments show its rounding as it is.
    assert_close((other.opt_state[1][0].mu, other_metrics), (full.opt_state[1][0].mu, metrics))
  weigh = functools.partial(with_estimator_weights, model=MODEL, cfg=config(name))
  weights = jax.jit(weigh)(params, batch)
  factors, live = np.asarray(weights.estimator_weights), np.asarray(batch.rollout.mask)
  if name != "bapo":
    assert 0.1 < np.mean(factors[live] > 0) < 0.9
  # The wrong way, each micro-batch by its own threshold: `gradients` alone prepares nothing.
  (value, _), _ = grad_of(config(name, 4))(params, batch)
  assert abs(float(value - metrics["loss/total"].total)) > 1e-3


def test_only_estimators_that_ask_for_statistics_get_the_extra_pass():
  (batch,), params = recorded_batches()
  run = {name: jax.eval_shape(functools.partial(with_estimator_weights, model=MODEL,
                                                cfg=config(name)), params, batch)
         for name in ("m2po", "ctpo")}
  assert run["m2po"].estimator_weights.shape == batch.rollout.mask.shape
  assert run["ctpo"].estimator_weights is None
  # A supervised batch has no statistics of the kind, whatever the estimator of the config.
  rows = SupervisedBatch(batch.rollout.tokens, batch.rollout.length, batch.loss_weights)
  update = functools.partial(train_step, loss=sft_loss, model=MODEL, tx=TX, cfg=config("m2po"))
  jax.eval_shape(update, jax.eval_shape(functools.partial(init_state, tx=TX), params), rows)


def test_row_order_and_padding_change_nothing():
  (batch,), params = recorded_batches()
  (value, metrics), gradient = grad_of(config())(params, batch)
  order = np.random.default_rng(1).permutation(16)
  (permuted, _), permuted_gradient = grad_of(config())(params,
                                                       jax.tree.map(lambda x: x[order], batch))
  assert_close((permuted, permuted_gradient), (value, gradient))
  pad = lambda x: jnp.pad(x, ((0, 0), (0, 6)), constant_values=3
                          if x.dtype == jnp.int32 else 0) if x.ndim == 2 else x
  (padded, padded_metrics), padded_gradient = grad_of(config())(params, jax.tree.map(pad, batch))
  assert_close((padded, padded_metrics, padded_gradient), (value, metrics, gradient))


@pytest.mark.slow
def test_weights_computed_per_micro_batch_are_rejected():
  """Each micro-batch normalised by its own tokens."""
  (batch,), params = recorded_batches()
  (value, _), _ = grad_of(config())(params, batch)
  total = 0.0
  for i in range(4):
    part = jax.tree.map(lambda x, i=i: x[i::4], batch)
    part = part.replace(loss_weights=part.loss_weights / jnp.sum(part.loss_weights) / 4)
    total += grad_of(config())(params, part)[0][0]
  assert abs(float(total - value)) > 1e-4


@pytest.mark.slow
def test_unkept_and_void_rows_count_for_nothing():
  (batch,), params = recorded_batches()
  kept = np.delete(np.arange(16), [3, 7])
  (value, _), gradient = grad_of(config())(params, batch)
  (fewer, _), fewer_gradient = grad_of(config())(params, jax.tree.map(lambda x: x[kept], batch))
  assert_close((fewer, fewer_gradient), (value, gradient))


@pytest.mark.slow
def test_current_policy_as_anchor_needs_no_pass():
  """Without an anchor it is as with the anchor scored by the same parameters."""
  (batch,), params = recorded_batches()
  anchor = score(params, batch.rollout, Sampling(jnp.float32(0.9)), model=MODEL,
                 cfg=StepConfig()).log_probs
  for estimator in ("ppo", "ctpo", "gspo"):
    scored = grad_of(config(estimator))(params, batch.replace(anchor_log_probs=anchor))
    skipped = grad_of(config(estimator))(params, batch.replace(anchor_log_probs=None))
    assert_close((skipped[0][0], skipped[1]), (scored[0][0], scored[1]))


def test_optimizer_batches_hold_whole_groups_and_their_own_weights():
  batches, _ = recorded_batches(parts=2)
  for k, batch in enumerate(batches):
    np.testing.assert_array_equal(batch.rollout.group_id, np.repeat([k, k + 2], GROUP))
    np.testing.assert_allclose(jnp.sum(batch.loss_weights), 1.0, rtol=1e-5)


def test_train_step_is_pure_and_counts():
  (batch,), params = recorded_batches()
  state = init_state(params, TX)
  new, metrics = prepared_step(config())(state, batch)
  assert int(state.step) == 0 and int(new.step) == 1
  assert float(metrics["optimizer/grad_norm"].total) > 0
  moved = jax.tree.map(lambda a, b: bool(jnp.any(a != b)), state.params, new.params)
  assert all(jax.tree.leaves(moved))


@pytest.mark.slow
def test_sft_loss_is_the_mean_negative_log_likelihood():
  (batch,), params = recorded_batches()
  rollout = batch.rollout
  weights = rollout.mask / jnp.sum(rollout.mask)
  value, metrics = sft_loss(params, SupervisedBatch(rollout.tokens, rollout.length, weights),
                            model=MODEL, cfg=None)
  positions = jnp.broadcast_to(jnp.arange(11), rollout.tokens.shape)
  hidden, _ = MODEL.hidden(params, rollout.tokens, positions, jnp.ones_like(positions))
  log_p = jax.nn.log_softmax(hidden @ MODEL.head(params))[:, :-1]
  log_p = jnp.take_along_axis(log_p, rollout.tokens[:, 1:, None], -1)[..., 0]
  expected = -jnp.sum(jnp.where(rollout.mask[:, 1:], log_p, 0)) / jnp.sum(rollout.mask)
  np.testing.assert_allclose(value, expected, rtol=1e-5)
  np.testing.assert_allclose(metrics["loss/sft"].total / metrics["loss/sft"].count, expected,
                             rtol=1e-5)


@pytest.mark.slow
def test_eight_devices_follow_one_device():
  recorded = [recorded_batches(seed=s)[0][0] for s in range(5)]
  params = recorded_batches()[1]
  losses, norms, moved = {}, {}, {}
  for name, mesh in (("one", parallel.make_mesh(MeshConfig(), jax.devices()[:1])),
                     ("eight", parallel.make_mesh(MeshConfig(2, 2, 2), jax.devices()[:8]))):
    step = make_train_step(policy_loss, MODEL, TX, config(micro_batches=2), mesh)
    state = jax.device_put(init_state(jax.tree.map(jnp.copy, params), TX),
                           state_shardings(MODEL, TX, mesh))
    if name == "eight":
      assert "tensor" in str(state.params["blocks"][0]["mlp"]["gate"].sharding.spec)
    losses[name], norms[name] = [], []
    for batch in recorded:
      state, metrics = step(state, jax.device_put(batch, parallel.rows(mesh)))
      losses[name].append(float(metrics["loss/total"].total))
      norms[name].append(float(metrics["optimizer/grad_norm"].total))
    moved[name] = jax.device_get(state.params)
  assert abs(losses["one"][0] - losses["eight"][0]) < 1e-5
  np.testing.assert_allclose(losses["eight"], losses["one"], atol=1e-4)
  np.testing.assert_allclose(norms["eight"], norms["one"], rtol=1e-4)
