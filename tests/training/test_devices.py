"""Any mesh gives loss, gradients and rows of one device, and sends no more than it must."""

import collections
import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suites import quick_of

from experiments.planning import collectives, hlo
from jaxrl_llm import parallel
from jaxrl_llm.config import (
  EntropyConfig,
  EstimatorConfig,
  LossConfig,
  MeshConfig,
  ModelConfig,
  ParametersConfig,
  StepConfig,
)
from jaxrl_llm.models import Model, kv_cache, trainable
from jaxrl_llm.objective.loss import policy_loss
from jaxrl_llm.ops import token_stats
from jaxrl_llm.rollouts import decoding, engine, hand_over
from jaxrl_llm.rollouts.chunk import ChunkInputs
from jaxrl_llm.rollouts.next_token import Draw
from jaxrl_llm.training import train_step
from jaxrl_llm.training.packing import Packer
from jaxrl_llm.training.train_step import gradients
from jaxrl_llm.types import Bins, PromptBatch, Rollout, Sampling, TrainBatch

DENSE = ModelConfig(vocab_size=32, width=16, num_layers=2, num_heads=8, num_kv_heads=8, head_dim=4,
                    mlp_width=48)
MOE = dataclasses.replace(DENSE, num_experts=8, experts_per_token=2, expert_width=16)
STACKED = dataclasses.replace(DENSE, scan_layers=True, remat="full", tie_head=False)
MODELS = {"dense": DENSE, "experts": MOE, "stacked": STACKED}
LORA = ParametersConfig("lora", lora_rank=2)
MESHES = {
    "data": MeshConfig(8, 1, 1),
    "fsdp": MeshConfig(1, 8, 1),
    "fsdp-tensor": MeshConfig(1, 4, 2),
    "tensor": MeshConfig(1, 1, 8),
}
ALL_AXES = MeshConfig(1, 2, 2, sequence=2)
ROWS, LENGTH, PROMPT = 8, 24, 4
QUICK = {"dense-fsdp-tensor"}
# Each network on the mesh of two axes, and each mesh with the cheapest network.
SLOW = {"dense-data", "dense-fsdp", "dense-tensor", "stacked-fsdp-tensor"}


def mesh_of(axes):
  return parallel.make_mesh(axes, jax.devices()[:8])


def batch() -> TrainBatch:
  rng = np.random.default_rng(0)
  end = rng.integers(PROMPT + 2, LENGTH + 1, ROWS).astype(np.int32)
  at, start = np.arange(LENGTH), np.full(ROWS, PROMPT, np.int32)
  mask = (at >= PROMPT) & (at < end[:, None])
  tokens = np.where(at < end[:, None], rng.integers(0, 32, (ROWS, LENGTH)), 0).astype(np.int32)
  noise = np.where(mask, -3 + 0.1 * rng.standard_normal(mask.shape), 0).astype(np.float32)
  none = np.zeros(ROWS, np.int32)
  rollout = Rollout(tokens, mask, end, start, noise, none > 0, none, 0 * tokens,
                    np.arange(ROWS, dtype=np.int32), none)
  weights = (mask / mask.sum()).astype(np.float32)
  advantages = np.where(mask, rng.standard_normal((ROWS, 1)), 0).astype(np.float32)
  return jax.tree.map(jnp.asarray, TrainBatch(rollout, advantages, weights, noise,
                                              np.ones_like(weights)))


def step_config(model, parameters=ParametersConfig()) -> StepConfig:
  loss = LossConfig(EstimatorConfig("ctpo", log_low=1.0, log_high=2.0, log_dual=2.0),
                    entropy=EntropyConfig(0.01), num_experts=model.config.num_experts)
  return StepConfig(loss, 1, parameters)


def params_of(model):
  return jax.tree.map(lambda x: 4 * x if x.ndim > 1 else x, model.init(jax.random.key(0)))


def loss_and_gradients(model, cfg, mesh=None, packing=None):
  """(loss, gradient by leaf), on one device or a mesh."""
  trained, frozen = trainable.split(params_of(model), cfg.parameters, jax.random.key(1))
  rows = batch()
  if mesh is not None:
    model = dataclasses.replace(model, constrain=parallel.Layout(mesh))
    layouts = trainable.shardings(model, cfg.parameters, mesh)
    trained, frozen = (None if tree is None else jax.device_put(tree, layout)
                       for tree, layout in zip((trained, frozen), layouts, strict=True))
    rows = jax.device_put(rows, parallel.rows(mesh))
  run = jax.jit(functools.partial(gradients, loss=policy_loss, model=model, cfg=cfg))
  (value, _), gradient = run(trained, rows, frozen=frozen, packing=packing)
  return jax.device_get((value, gradient))


@functools.cache
def on_one_device(name, parameters=ParametersConfig()):
  model = Model(MODELS[name])
  return loss_and_gradients(model, step_config(model, parameters))


def differs(results, expected) -> float:
  """The largest difference, relative to the largest entry of a leaf if that is above 1."""
  return max(float(np.max(np.abs(a - b)) / max(np.max(np.abs(b)), 1))
             for a, b in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True))


def assert_same(results, expected):
  """Losses to 1e-6, which is 10 units in the last place at 1, and gradients to 2e-5."""
  assert differs(results[0], expected[0]) < 1e-6
  assert differs(results[1], expected[1]) < 2e-5


KINDS = {name: (name, ParametersConfig()) for name in MODELS} | {"lora": ("dense", LORA)}


@pytest.mark.parametrize("name, parameters, axes", quick_of(QUICK, {
    f"{kind}-{mesh}": (*KINDS[kind], MESHES[mesh]) for mesh in MESHES for kind in KINDS},
    SLOW | {"lora-fsdp-tensor"}))
def test_loss_and_gradients_are_those_of_one_device(name, parameters, axes, monkeypatch):
  monkeypatch.setattr(token_stats, "CHUNK", 16)  # several chunks on each device
  model = Model(MODELS[name])
  results = loss_and_gradients(model, step_config(model, parameters), mesh_of(axes))
  assert_same(results, on_one_device(name, parameters))


@pytest.mark.slow
@pytest.mark.parametrize("name, axes", [
    ("dense", MeshConfig(1, 1, 1, sequence=8)), ("dense", ALL_AXES), ("experts", ALL_AXES),
    ("stacked", ALL_AXES)])
def test_a_row_may_be_divided_over_devices(name, axes, monkeypatch):
  monkeypatch.setattr(token_stats, "CHUNK", 8)
  model = Model(MODELS[name])
  results = loss_and_gradients(model, step_config(model), mesh_of(axes))
  assert_same(results, on_one_device(name))


# Two parts of `data`, which stand for two slices of four devices, and two micro-batches.
PARTS = MeshConfig(2, 2, 2)
MICRO = {"dense": ("dense", False), "dense-packed": ("dense", True)}


def packing_of(packed: bool):
  """Eight bins of a row each, four in a micro-batch; None for padded rows."""
  return Packer(Bins(LENGTH, 1), 1, 4)(batch().rollout.length) if packed else None


@pytest.mark.parametrize("name, packed", quick_of((), MICRO, {"dense-packed"}))
def test_micro_batches_of_parts_add_up_to_the_batch(name, packed):
  model = Model(MODELS[name])
  cfg = dataclasses.replace(step_config(model), micro_batches=2)
  results = loss_and_gradients(model, cfg, mesh_of(PARTS), packing_of(packed))
  assert_same(results, on_one_device(name))


@pytest.mark.slow
def test_gradients_that_are_not_summed_over_devices_are_rejected(monkeypatch):
  real = jax.shard_map

  def whole_is_stopped(function, **options):
    return real(lambda rows, shared: function(rows, jax.lax.stop_gradient(shared)), **options)

  monkeypatch.setattr(jax, "shard_map", whole_is_stopped)
  model = Model(MODELS["stacked"])
  results = loss_and_gradients(model, step_config(model), mesh_of(MESHES["fsdp"]))
  assert differs(results, on_one_device("stacked")) > 1e-2


# --- what is sent


def sent(traced) -> list[dict]:
  """Output bytes of collectives by kind: outside data-dependent loops, and per trip of each."""
  module = hlo.parse(traced.lower().compile().as_text())
  visits, loops, _ = module.visits()
  sums = [collections.Counter() for _ in range(loops + 1)]
  for visit in visits:
    for kind, moved in collectives.visit_collectives(module, visit, 8):
      sums[0 if visit.loop is None else visit.loop + 1][kind] += moved.bytes
  return sums


def traced_gradients(cfg: ModelConfig, axes: MeshConfig, length: int = LENGTH,
                     micro_batches: int = 1, packing=None):
  """The traced loss and gradients of rows of so many tokens."""
  mesh = mesh_of(axes)
  model = Model(cfg, parallel.Layout(mesh))
  layout = parallel.param_shardings(model, mesh)

  def abstract(x, sharding):
    shape = tuple(length if size == LENGTH else size for size in x.shape)
    return jax.ShapeDtypeStruct(shape, x.dtype, sharding=sharding)

  params = jax.tree.map(abstract, model.shapes(), layout)
  rows = jax.tree.map(lambda x: abstract(x, parallel.rows(mesh)), batch())
  step = dataclasses.replace(step_config(model), micro_batches=micro_batches)
  run = functools.partial(gradients, loss=policy_loss, model=model, cfg=step)
  return jax.jit(run, out_shardings=((None, None), layout)).trace(params, rows, packing=packing)


def head_bytes(chunk: int, monkeypatch) -> float:
  """Bytes that a gradient with a large head sends, with chunks of so many tokens."""
  monkeypatch.setattr(token_stats, "CHUNK", chunk)
  wide = dataclasses.replace(STACKED, num_layers=1, vocab_size=4096)
  return sum(sent(traced_gradients(wide, MESHES["fsdp"]))[0].values())


def bytes_across(name: str, packed: bool) -> float:
  """Bytes that the gradients of two micro-batches send between two slices, over the parameters'."""
  wide = dataclasses.replace(MODELS[name], num_layers=1, vocab_size=2048)
  traced = traced_gradients(wide, PARTS, micro_batches=2, packing=packing_of(packed))
  module = hlo.parse(traced.lower().compile().as_text())
  moved = sum(move.across * (1 if visit.loop is None else 2) for visit in module.visits()[0]
              for _, move in collectives.visit_collectives(module, visit, 8, slices=2))
  return moved / sum(4 * math.prod(x.shape) for x in jax.tree.leaves(Model(wide).shapes()))


@pytest.mark.parametrize("name, packed", quick_of((), MICRO, {"dense-packed"}))
def test_gradients_cross_slices_once_a_step(name, packed, monkeypatch):
  assert bytes_across(name, packed) < 0.7  # a device has a fourth of most parameters
  monkeypatch.setattr(train_step, "_apart_over_data", lambda *_: False)  # as the compiler would
  assert bytes_across(name, packed) > 1.2


@pytest.mark.slow
def test_the_head_is_sent_as_often_with_many_chunks_as_with_one(monkeypatch):
  one, many = head_bytes(1024, monkeypatch), head_bytes(4, monkeypatch)
  head = 4 * 16 * 4096
  assert head < one < 4 * head and abs(many - one) < 0.1 * head
  # Without shards of rows every chunk fetches the head, and reduces its gradient.
  monkeypatch.setattr(parallel.Layout, "by_rows", lambda self, function, rows, shared:
                      function(rows, shared))
  assert head_bytes(4, monkeypatch) > 4 * many


def gathered_bytes(axes: MeshConfig) -> float:
  """Bytes of all-gathers of a gradient with long rows and small parameters."""
  return sum(part["all-gather"] for part in sent(traced_gradients(STACKED, axes, 4096)))


@pytest.mark.slow
def test_blocks_gather_no_activation_where_rows_are_divided(monkeypatch):
  axes = MeshConfig(1, 2, 1, sequence=4)
  activations = 4 * 8 * 4096 * 16 // 2  # bytes of those of a device's rows, with all their tokens
  assert gathered_bytes(axes) < 2 * activations  # one is the gradient of the embeddings

  # The gradient of a matrix that makes one axis of rows and tokens gathers them.
  monkeypatch.setattr(parallel.Layout, "divides_tokens", False)
  assert gathered_bytes(axes) > 8 * activations


def decode_traced(axes, rules):
  """A traced chunk of decode steps, its abstract parameters, and its abstract cache."""
  mesh = mesh_of(axes)
  model = Model(dataclasses.replace(DENSE, vocab_size=4096), parallel.Layout(mesh))
  programs = decoding.build(model, 4, (1,), False, mesh)
  layout = parallel.param_shardings(hand_over.decode_model(model), mesh, rules)
  params = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
                        model.shapes(), layout)
  shape = functools.partial(jax.ShapeDtypeStruct, sharding=parallel.replicated(mesh))
  inputs = ChunkInputs(*[shape((), jnp.int32)] * 2, *[shape((ROWS,), jnp.int32)] * 6, columns=16)
  cache = programs.empty(ROWS, 24, 1)
  key = jax.device_put(jax.random.key(0), parallel.replicated(mesh))
  sampling = jax.device_put(Sampling.of(1.0), parallel.replicated(mesh))
  return programs.decode.trace(params, cache, None, inputs, Draw(key, sampling),
                               rules=frozenset()), params, cache


@pytest.mark.slow
def test_no_weight_is_sent_while_decoding():
  matrix = 4 * 16 * 48  # bytes of the smallest matrix of an MLP
  for axes in (MESHES["fsdp"], MESHES["fsdp-tensor"]):
    traced, *_ = decode_traced(axes, parallel.DECODING_RULES)
    assert all(sum(part.values()) < matrix for part in sent(traced))
  # In the layout of training every weight is gathered, for each step or at best for each chunk.
  traced, params, _ = decode_traced(MESHES["fsdp"], parallel.RULES)
  weights = sum(4 * x.size for x in jax.tree.leaves(params) if x.ndim > 1)
  assert sum(sum(part.values()) for part in sent(traced)) > 0.9 * weights


def test_the_cache_divides_over_rows_and_heads():
  for axes, shards in ((MESHES["fsdp"], 8), (MESHES["fsdp-tensor"], 8), (MESHES["tensor"], 8)):
    _, _, cache = decode_traced(axes, parallel.DECODING_RULES)
    for x in (*cache.keys, *cache.values):
      assert x.nbytes == shards * x.addressable_shards[0].data.nbytes


@pytest.mark.slow
def test_the_copy_of_the_sampler_is_made_once():
  mesh = mesh_of(MESHES["fsdp"])
  model = Model(dataclasses.replace(STACKED, compute_dtype="bfloat16"), parallel.Layout(mesh))
  params = jax.device_put(params_of(model), parallel.param_shardings(model, mesh))
  make = hand_over.make(model, mesh)
  copy = make(params)
  assert make(copy) is copy
  assert copy["blocks"][1]["mlp"]["up"].sharding.is_fully_replicated
  assert copy["head"].dtype == jnp.bfloat16 and copy["final_norm"]["scale"].dtype == jnp.float32
  np.testing.assert_array_equal(
      copy["blocks"][1]["mlp"]["up"],
      np.asarray(params["blocks"]["mlp"]["up"][1]).astype(jnp.bfloat16))


# --- sampling


def sampled(name, mesh=None):
  model = Model(MODELS[name])
  params = params_of(model)
  if mesh is not None:
    model = dataclasses.replace(model, constrain=parallel.Layout(mesh))
    params = jax.device_put(params, parallel.param_shardings(model, mesh))
  rng = np.random.default_rng(3)
  tokens = np.repeat(rng.integers(4, 32, (8, PROMPT)), 2, 0).astype(np.int32)
  at = np.arange(16, dtype=np.int32)
  prompts = PromptBatch(tokens, np.full(16, PROMPT, np.int32), at, at // 2)
  cfg = engine.EngineConfig(2, 12, 8, (1,), 0, slots=8, chunk=4)
  rollout, _ = engine.run(params, prompts, jax.random.key(5), Sampling.of(1.0), model=model,
                          cfg=cfg, mesh=mesh)
  return jax.device_get(rollout)


@pytest.mark.parametrize("name, axes", quick_of(QUICK, {
    f"{name}-{mesh}": (name, MESHES[mesh]) for mesh in MESHES for name in MODELS}, SLOW))
def test_sampled_rows_are_those_of_one_device(name, axes):
  rollout, expected = sampled(name, mesh_of(axes)), sampled(name)
  np.testing.assert_array_equal(rollout.tokens, expected.tokens)
  np.testing.assert_allclose(rollout.behavior_log_probs, expected.behavior_log_probs, atol=5e-5)
  assert kv_cache.dtype(MODELS[name]) == jnp.float32
