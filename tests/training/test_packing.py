"""Packed rows give the loss, gradient, metrics and scores of padded ones, whatever the plan."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm import parallel
from jaxrl_llm.config import (
  CriticConfig,
  EntropyConfig,
  EstimatorConfig,
  KLConfig,
  LossConfig,
  MeshConfig,
  ModelConfig,
  OptimizerConfig,
  RolloutConfig,
  StepConfig,
  UpdateConfig,
)
from jaxrl_llm.models import Model
from jaxrl_llm.objective.loss import policy_loss
from jaxrl_llm.ops import bins as bins_ops
from jaxrl_llm.training.optimizers import make_optimizer
from jaxrl_llm.training.packing import Packer, Prompts, first_fit, make_packer
from jaxrl_llm.training.score import score
from jaxrl_llm.training.train_step import (
  gradients,
  init_state,
  make_train_step,
  state_shardings,
  train_step,
)
from jaxrl_llm.types import Bins, Rollout, Sampling, TrainBatch

ROWS, LENGTH, VOCABULARY = 16, 24, 16
DENSE = Model(ModelConfig(vocab_size=VOCABULARY, width=16, num_layers=2, num_heads=4,
                          num_kv_heads=2, head_dim=8, mlp_width=24, value_head=True))
EXPERTS = Model(dataclasses.replace(DENSE.config, num_experts=4, experts_per_token=2,
                                    expert_width=16))
TX = make_optimizer(OptimizerConfig(learning_rate=1e-3))
LOSS = LossConfig(EstimatorConfig("ctpo", log_low=1.0, log_high=2.0, log_dual=2.0),
                  KLConfig("k3", 0.1), EntropyConfig(0.01), 0.9, critic=CriticConfig(),
                  max_new_tokens=23)


@functools.cache
def sampled(seed=0):
  """A batch of ragged rows, mean/max about 0.5, of which one has no policy token."""
  rng = np.random.default_rng(seed)
  shape = (ROWS, LENGTH)
  length = np.minimum(5 + rng.geometric(0.15, ROWS), LENGTH).astype(np.int32)
  length[:2] = LENGTH, 5
  start = rng.integers(1, 5, ROWS).astype(np.int32)
  at = np.arange(LENGTH)
  mask = (at >= start[:, None]) & (at < length[:, None]) & (rng.random(shape) < 0.9)
  mask[3] = False
  ids = np.arange(ROWS, dtype=np.int32)
  noise = functools.partial(rng.standard_normal, shape)
  behavior = np.where(mask, -2.5 + 0.3 * noise(), 0).astype(np.float32)
  tokens = np.where(at < length[:, None], rng.integers(0, VOCABULARY, shape), 0).astype(np.int32)
  rollout = Rollout(tokens, mask, length, start, behavior, ids < 0, 0 * ids, 0 * tokens, ids,
                    ids // 4)
  some = [np.where(mask, x, 0).astype(np.float32)
          for x in (noise(), 0.1 * rng.random(shape), behavior + 0.05 * noise(), 1 + 0 * noise(),
                    behavior + 0.1 * noise(), noise(), noise())]
  return jax.tree.map(jnp.asarray, TrainBatch(rollout, *some))


@functools.cache
def parameters(model):
  params = jax.tree.map(lambda x: 4 * x if x.ndim > 1 else x, model.init(jax.random.key(0)))
  return params | {"value_head": 0.1 * jax.random.normal(jax.random.key(1), (16,))}


@functools.cache
def packer(budget, capacity=LENGTH, rows=16, devices=1):
  return Packer(Bins(capacity, rows), budget // capacity, devices)


@functools.cache
def grad_of(model, loss=LOSS):
  return jax.jit(functools.partial(gradients, loss=policy_loss, model=model, cfg=StepConfig(loss)))


def assert_close(a, b, tolerance=1e-4):
  """Relative to the largest of an array or to 1; processors' rounding differs by 3e-5."""

  def close(x, y):
    largest = max(1.0, float(np.max(np.abs(y), initial=0, where=np.isfinite(y))))
    np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * largest)

  jax.tree.map(close, a, b)


PRUNED = dataclasses.replace(LOSS, pruning=(("top_k", 12),), min_new_tokens=3, stop_ids=(1,),
                             critic=None)
LOAD = dataclasses.replace(LOSS, num_experts=4)
CASES = {
    "dense": (DENSE, LOSS), "experts": (EXPERTS, LOAD), "pruned": (DENSE, PRUNED),
    "all_columns": (DENSE, dataclasses.replace(LOSS, max_new_tokens=None)),
    "scanned": (Model(dataclasses.replace(DENSE.config, scan_layers=True, remat="full")), LOSS),
    "dots": (Model(dataclasses.replace(DENSE.config, remat="dots")), LOSS),
}


@functools.cache
def sampled_groups():
  """`sampled` in groups of 4 with equal prompts of 1 to 9 tokens; one group's prompts differ."""
  batch, rng = sampled(), np.random.default_rng(2)
  rollout = jax.device_get(batch.rollout)
  start = np.repeat(np.array([9, 4, 1, 6], np.int32), 4)
  length = np.minimum(start + rng.integers(1, 12, ROWS), LENGTH).astype(np.int32)
  at = np.arange(LENGTH)
  prompt, held = at < start[:, None], at < length[:, None]
  draws = rng.integers(0, VOCABULARY, (ROWS, LENGTH))
  groups = np.where(np.arange(ROWS) < 12, np.arange(ROWS) // 4 * 4, np.arange(ROWS))
  tokens = np.where(prompt, draws[groups], np.where(held, draws, 0)).astype(np.int32)
  mask = held & ~prompt & (rng.random(held.shape) < 0.9)
  rollout = rollout.replace(tokens=tokens, mask=mask, length=length, prompt_length=start,
                            behavior_log_probs=np.where(mask, -2.5, 0).astype(np.float32))
  full = {name: jnp.asarray(np.where(mask, 0.1 + rng.random(mask.shape), 0), jnp.float32)
          for name in ("advantages", "loss_weights", "values", "returns")}
  full |= {name: jnp.where(mask, -2.5 + 0.1 * full["values"], 0)
           for name in ("anchor_log_probs", "ref_log_probs")}
  return batch.replace(rollout=jax.tree.map(jnp.asarray, rollout), **full)


def check_same(case, batch, packings):
  model, loss = CASES[case]
  run, params = grad_of(model, loss), parameters(model)
  (value, metrics), gradient = run(params, batch)
  assert max(float(jnp.max(jnp.abs(g))) for g in jax.tree.leaves(gradient)) > 1e-3
  for packing in packings:
    (other, other_metrics), other_gradient = run(params, batch, packing=packing)
    assert_close((other, other_metrics, other_gradient), (value, metrics, gradient))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_packing_changes_nothing(case):
  packers = [packer(48), packer(100, 32), packer(72, rows=2)]
  packings = [pack(sampled().rollout.length)
              for pack in (packers if case == "dense" else packers[:1])]
  assert all(0 < packing.count < ROWS // 2 for packing in packings)
  check_same(case, sampled(), packings)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["dense", "experts", "scanned"])
def test_shared_prompts_change_nothing(case):
  packings = [dataclasses.replace(packer(120, capacity), shared_prompts=True).pack(
      sampled_groups().rollout) for capacity in ((24, 60) if case == "dense" else (48,))]
  assert all(np.count_nonzero(packing.shared) >= 4 for packing in packings)
  check_same(case, sampled_groups(), packings)


@pytest.mark.slow
def test_order_of_rows_changes_nothing():
  run, batch, params = grad_of(DENSE), sampled(), parameters(DENSE)
  order = np.random.default_rng(1).permutation(ROWS)
  permuted = jax.tree.map(lambda x: x[order], batch)
  outcomes = [run(params, x, packing=packer(48)(x.rollout.length)) for x in (batch, permuted)]
  assert_close(outcomes[1], outcomes[0])


@pytest.mark.slow
def test_estimator_weights_are_those_of_the_whole_batch():
  batch, cfg = sampled(), StepConfig(dataclasses.replace(LOSS,
                                                         estimator=EstimatorConfig("m2po", tau=.1)))
  step = jax.jit(functools.partial(train_step, loss=policy_loss, model=DENSE, tx=TX, cfg=cfg))
  state = init_state(parameters(DENSE), TX)
  full, metrics = step(state, batch)
  other, packed = step(state, batch, packing=packer(48)(batch.rollout.length))
  assert_close((other.opt_state[1][0].mu, packed), (full.opt_state[1][0].mu, metrics))


@pytest.mark.parametrize("loss", [
    pytest.param(LOSS, id="plain", marks=pytest.mark.slow), pytest.param(PRUNED, id="pruned")])
def test_scores_are_those_of_padded_rows(loss):
  rollout = sampled().rollout
  stats = {"entropy", "sum_pi_squared", "values"} | ({"in_support"} if loss is PRUNED else set())
  run = jax.jit(functools.partial(score, model=DENSE, cfg=StepConfig(loss),
                                  stats=frozenset(stats), rules=frozenset(loss.rules)))
  sampling = Sampling.of(0.9, top_k=12)
  padded = run(parameters(DENSE), rollout, sampling)
  packed = run(parameters(DENSE), rollout, sampling, packing=packer(48)(rollout.length))
  at = np.arange(LENGTH)
  read = (at >= rollout.prompt_length[:, None]) & (at < rollout.length[:, None])
  for name in sorted(stats | {"log_probs"}):
    one, two = (np.asarray(getattr(x, name)) for x in (padded, packed))
    np.testing.assert_allclose(two[read], one[read], rtol=2e-5, atol=2e-5)
    if name != "values":
      assert not two[~read].any()


@pytest.mark.slow
def test_eight_devices_follow_one():
  axes, batch, cfg = MeshConfig(2, 2, 2), sampled(), StepConfig(LOSS)
  (value, metrics), _ = grad_of(DENSE)(parameters(DENSE), batch)
  mesh = parallel.make_mesh(axes, jax.devices()[:8])
  step = make_train_step(policy_loss, DENSE, TX, cfg, mesh)
  params = jax.tree.map(jnp.copy, parameters(DENSE))
  state = jax.device_put(init_state(params, TX), state_shardings(DENSE, TX, mesh))
  packing = packer(LENGTH, devices=axes.data * axes.fsdp)(batch.rollout.length)
  _, on_mesh = step(state, jax.device_put(batch, parallel.rows(mesh)), packing)
  assert_close(on_mesh.pop("loss/total").total, value)
  on_mesh.pop("optimizer/grad_norm")
  assert_close(on_mesh, metrics)


# Wrong places of tokens, and whether rows share prompts.
WRONG = {
    "the rows of a bin attend to each other": (False, lambda where, bins: {
        "segments": jnp.minimum(where.segments, 1)}),
    "the statistics that come back are those of the next token": (False, lambda where, bins: {
        "column": jnp.minimum(where.column + 1, bins.capacity - 1)}),
    "responses do not see the prompt that they share": (True, lambda where, bins: {
        "shared": jnp.full_like(where.shared, bins_ops.NOTHING)}),
    "a response sees the responses before it": (True, lambda where, bins: {
        "segments": jnp.minimum(where.segments, 1), "shared": None}),
}


@pytest.mark.slow
@pytest.mark.parametrize("shared, wrong", WRONG.values(), ids=WRONG)
def test_wrong_ways_to_pack_are_rejected(shared, wrong, monkeypatch):
  batch = sampled_groups() if shared else sampled()
  pack = dataclasses.replace(packer(120, 60) if shared else packer(48), shared_prompts=shared)
  params, places = parameters(DENSE), bins_ops.places
  (value, _), _ = grad_of(DENSE)(params, batch)

  def wrong_places(lengths, width, bins):
    where = places(lengths, width, bins)
    return where._replace(**wrong(where, bins))

  monkeypatch.setattr("jaxrl_llm.objective.row_stats.places", wrong_places)
  run = jax.jit(functools.partial(gradients, loss=policy_loss, model=DENSE, cfg=StepConfig(LOSS)))
  (other, _), _ = run(params, batch, packing=pack.pack(batch.rollout))
  assert abs(float(other - value)) > 1e-3


def test_positions_and_segments_begin_anew_with_each_row():
  where = bins_ops.places(jnp.array([2, 0, 3, 1, 0, 0]), 3, Bins(7, 3))
  np.testing.assert_array_equal(where.positions, [[0, 1, 0, 1, 2, 0, 0], [0] * 7])
  np.testing.assert_array_equal(where.segments, [[1, 1, 3, 3, 3, 0, 0], [1, 0, 0, 0, 0, 0, 0]])
  x = jnp.arange(18).reshape(6, 3)
  packed = bins_ops.pack(x, where)
  np.testing.assert_array_equal(packed[0, :5], [0, 1, 6, 7, 8])
  np.testing.assert_array_equal(bins_ops.unpack(packed, where), jnp.where(where.filled, x, 0))


def test_a_shared_prompt_stands_once_before_its_responses():
  shared = jnp.array([0, 2, 2, 0])
  where = bins_ops.places(jnp.array([4, 3, 5, 1]), 5, Bins(11, 4, shared))
  np.testing.assert_array_equal(where.positions, [[0, 1, 2, 3, 2, 2, 3, 4, 0, 0, 0]])
  np.testing.assert_array_equal(where.segments, [[5, 5, 1, 1, 2, 3, 3, 3, 4, 0, 0]])
  np.testing.assert_array_equal(where.shared, [[-1, -1, 5, 5, 5, 5, 5, 5, -1, -1, -1]])
  np.testing.assert_array_equal(bins_ops.weights(where), [[3, 3, 1, 1, 1, 1, 1, 1, 1, 0, 0]])
  x = jnp.array([[1, 2, 3, 4, 0], [1, 2, 5, 0, 0], [1, 2, 6, 7, 8], [9, 0, 0, 0, 0]])
  packed = bins_ops.pack(x, where)
  np.testing.assert_array_equal(packed[0, :9], [1, 2, 3, 4, 5, 6, 7, 8, 9])
  np.testing.assert_array_equal(bins_ops.unpack(packed, where), x)


def test_rows_share_a_prompt_only_if_it_is_the_same_and_they_fit():
  tokens = np.array([[1, 2, 3, 9], [1, 2, 3, 8], [1, 2, 4, 8], [1, 2, 3, 7], [1, 0, 0, 0]])
  prompts, lengths = Prompts(tokens, np.array([3, 3, 3, 3, 1])), np.array([4, 4, 4, 4, 3])
  packing = Packer(Bins(6, 3), 1, 1, True)(lengths, prompts)
  assert packing.rows[:4, 0].tolist() == [[0, 1, 5], [3, 5, 5], [2, 5, 5], [4, 5, 5]]
  assert packing.shared[:4, 0].tolist() == [[0, 2, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
  packing = Packer(Bins(15, 5), 1, 1, True)(lengths, prompts)
  assert packing.rows[0, 0].tolist() == [0, 1, 3, 2, 4] and int(packing.count) == 1
  assert packing.shared[0, 0].tolist() == [0, 2, 2, 0, 0]


@pytest.mark.slow
def test_a_row_does_not_see_its_neighbour():
  batch, params = sampled(), parameters(DENSE)
  packing = packer(48)(batch.rollout.length)
  bin_of = {int(row): at for at, rows in enumerate(packing.rows.reshape(-1, 16)) for row in rows}
  row, other = next((a, b) for a in range(4, ROWS) for b in range(4, ROWS)
                    if a != b and bin_of[a] == bin_of[b])
  alone = batch.replace(loss_weights=batch.loss_weights * (np.arange(ROWS) == row)[:, None])
  tokens = alone.rollout.tokens.at[other].set(5)
  changed = alone.replace(rollout=alone.rollout.replace(tokens=tokens))
  cfg = dataclasses.replace(LOSS, kl=KLConfig("k3", 0.0), entropy=EntropyConfig(0.0), critic=None)
  run = grad_of(DENSE, cfg)
  (value, _), gradient = run(params, alone, packing=packing)
  (again, _), same = run(params, changed, packing=packing)
  assert float(value) != 0
  assert_close((again, same), (value, gradient), 1e-6)
  (moved, _), _ = run(params, changed.replace(loss_weights=batch.loss_weights), packing=packing)
  assert abs(float(moved - run(params, batch, packing=packing)[0][0])) > 1e-4


def test_first_fit_fills_bins_and_depends_on_lengths_alone():
  rng = np.random.default_rng(0)
  bins = Bins(32, 4)
  for lengths in (rng.integers(0, 33, 50), np.full(9, 16), np.array([32]), np.array([0, 0])):
    packs = first_fit(lengths, bins)
    assert sorted(row for members in packs for row in members) == list(range(len(lengths)))
    assert all(sum(lengths[members]) <= 32 and len(members) <= 4 for members in packs)
    assert packs == first_fit(lengths.copy(), bins)
  assert first_fit(np.array([16, 20, 12, 16]), bins) == [[1, 2], [0, 3]]
  # No worse than 11/9 of the best plan and one bin, as is known of this rule without a row limit.
  lengths = rng.integers(1, 33, 200)
  assert len(first_fit(lengths, Bins(32, 200))) <= 11 / 9 * np.ceil(lengths.sum() / 32) + 1


def test_a_row_longer_than_a_bin_is_refused():
  with pytest.raises(ValueError, match="row 1 has 25 tokens, but a bin holds 24"):
    packer(48)(np.array([3, 25, 24]))


@pytest.mark.parametrize("prompts, batches, width",
                         [(16, 1, 8), (20, 1, 10), (21, 1, 7), (16, 2, 8), (16, 4, 4), (3, 1, 3)])
def test_micro_batches_of_groups_are_of_equal_size(prompts, batches, width):
  """Of sixteen groups ten bins make 10 and 6, which computes four empty bins, or 8 and 8."""
  rollout = RolloutConfig(prompts=prompts, group_size=8, max_prompt_tokens=48, max_new_tokens=5)
  updates = UpdateConfig(optimizer_batches=batches, token_budget=1024, shared_prompts=True)
  planned = make_packer(updates, 96, rollout, parallel.make_mesh(MeshConfig(), jax.devices()[:1]))
  groups = prompts // batches
  assert planned.per_device == width
  assert -(-groups // width) == -(-groups // 10)  # no more micro-batches than before
  assert width * -(-groups // width) - groups < -(-groups // 10)  # at most a bin of each is empty


@pytest.mark.slow
def test_plans_of_other_lengths_have_the_same_shapes(compiled):
  run, batch = grad_of(DENSE), sampled()
  jax.block_until_ready(run(parameters(DENSE), batch, packing=packer(48)(batch.rollout.length)))
  compiled.clear()
  full = packer(48)(np.full(ROWS, LENGTH))
  assert int(full.count) == ROWS // 2
  jax.block_until_ready(run(parameters(DENSE), batch, packing=full))
  assert not compiled
  shapes = jax.tree.map(lambda x: (x.shape, x.dtype), packer(48).abstract(ROWS))
  assert shapes == jax.tree.map(lambda x: (x.shape, x.dtype), full)
