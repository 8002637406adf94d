"""Frozen parameters do not move, untrained adapters change nothing, bad choices are refused."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from suites import quick_for

from jaxrl_llm import parallel
from jaxrl_llm.config import (
  ConfigError,
  MeshConfig,
  ModelConfig,
  OptimizerConfig,
  ParametersConfig,
  StepConfig,
)
from jaxrl_llm.models import Model, trainable
from jaxrl_llm.objective.loss import sft_loss
from jaxrl_llm.training.optimizers import make_optimizer
from jaxrl_llm.training.train_step import init_state, make_train_step, state_shardings
from jaxrl_llm.types import SupervisedBatch

SHAPE = ModelConfig(vocab_size=16, width=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8,
                    mlp_width=24, tie_head=False)
MODEL = Model(SHAPE)
LORA = ParametersConfig("lora", lora_rank=2, lora_alpha=8.0)
MORE = dataclasses.replace(LORA, lora_targets=("attention/query", "blocks/1/mlp/down"),
                           patterns=("final_norm",), head_rows=(3, 11))
CHOICES = {
    "lora": LORA,
    "lora and more": MORE,
    "selected": ParametersConfig("selected", patterns=("blocks/1/attention", "mlp_norm")),
    "rows": ParametersConfig("selected", head_rows=(0, 5)),
}
TX = make_optimizer(OptimizerConfig(learning_rate=1e-2, weight_decay=0.1))


@functools.cache
def params_of(model=MODEL):
  return model.init(jax.random.key(0))


def batch(rows=8, length=7):
  rng = np.random.default_rng(0)
  tokens = rng.integers(0, 16, (rows, length)).astype(np.int32)
  weights = np.full((rows, length), 1 / rows / length, np.float32)
  arrays = SupervisedBatch(tokens, np.full(rows, length, np.int32), weights)
  return jax.tree.map(jnp.asarray, arrays)


def trained_for(cfg, steps=2, mesh=None, micro_batches=1, model=MODEL):
  """(start, state): parameters before, and the state after a few supervised steps on a mesh."""
  mesh = mesh or parallel.make_mesh(MeshConfig(), jax.devices()[:1])
  start = params_of(model)
  trained, frozen = trainable.split(start, cfg, jax.random.key(1))
  state = init_state(jax.tree.map(jnp.copy, trained), TX, frozen)
  state = jax.device_put(state, state_shardings(model, TX, mesh, cfg))
  step_cfg = StepConfig(micro_batches=micro_batches, parameters=cfg)
  step = make_train_step(sft_loss, model, TX, step_cfg, mesh)
  for _ in range(steps):
    state, metrics = step(state, jax.device_put(batch(), parallel.rows(mesh)))
  assert float(metrics["optimizer/grad_norm"].total) > 0
  return start, state


def flat(tree):
  return {trainable.path(keys): np.asarray(x) for keys, x in flatten_dict(tree).items()}


def moved(before, after) -> set[str]:
  before, after = flat(before), flat(after)
  assert before.keys() == after.keys()
  return {name for name in before if not np.array_equal(before[name], after[name])}


def expected_to_move(choice) -> set[str]:
  """Paths that a choice trains, listed independently of the code that divides them."""
  weights = ("attention/query", "attention/key", "attention/value", "attention/out", "mlp/gate",
             "mlp/up", "mlp/down")
  if choice == "lora":
    return {f"blocks/{n}/{weight}" for n in (0, 1) for weight in weights}
  if choice == "lora and more":
    return {"blocks/0/attention/query", "blocks/1/attention/query", "blocks/1/mlp/down",
            "final_norm/scale", "head"}
  if choice == "selected":
    norms = {"blocks/1/attention/query_norm/scale", "blocks/1/attention/key_norm/scale",
             "blocks/0/mlp_norm/scale", "blocks/1/mlp_norm/scale"}
    return norms | {f"blocks/1/{weight}" for weight in weights if weight.startswith("attention")}
  return {"head"}


def check_only(choice, start, merged):
  """The contract: exactly these parameters move, and of the head exactly these rows."""
  assert moved(start, merged) == expected_to_move(choice)
  rows = CHOICES[choice].head_rows
  if rows:
    columns = np.flatnonzero((np.asarray(start["head"]) != np.asarray(merged["head"])).any(0))
    assert tuple(columns) == rows


def logits(params, model=MODEL):
  tokens = batch().tokens
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  return model.hidden(params, tokens, positions, jnp.ones_like(tokens))[0] @ model.head(params)


# --- splitting and merging


def test_training_everything_costs_nothing():
  params = params_of()
  trained, frozen = trainable.split(params, ParametersConfig())
  assert trained is params and frozen is None
  assert trainable.merge(trained, frozen, ParametersConfig()) is params


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scanned"])
def test_before_training_the_merged_parameters_are_the_start_to_the_bit(choice, scan):
  model = Model(dataclasses.replace(SHAPE, scan_layers=scan))
  cfg = CHOICES[choice]
  if scan:
    cfg = dataclasses.replace(cfg, lora_targets=("attention/query", "mlp/down"),
                              patterns=("final_norm",) if cfg.patterns else ())
  params = params_of(model)
  merged = trainable.merge(*trainable.split(params, cfg, jax.random.key(1)), cfg)
  assert jax.tree.structure(merged) == jax.tree.structure(params)
  assert moved(params, merged) == set()


def test_an_adapter_that_starts_from_noise_is_rejected():
  cfg = CHOICES["lora"]
  trained, frozen = trainable.split(params_of(), cfg, jax.random.key(1))
  trained = jax.tree.map(lambda x: x + 1e-3, trained)
  assert moved(params_of(), trainable.merge(trained, frozen, cfg)) == expected_to_move("lora")


@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scanned"])
def test_merged_weights_are_w_plus_scaled_a_b(scan):
  """Each kind of weight against its product written out as an einsum over its own axes."""
  model = Model(dataclasses.replace(SHAPE, scan_layers=scan))
  cfg, params = LORA, params_of(model)
  trained, frozen = trainable.split(params, cfg, jax.random.key(1))
  rng = np.random.default_rng(0)
  trained = jax.tree.map(lambda x: jnp.asarray(rng.standard_normal(x.shape), jnp.float32), trained)
  merged = trainable.merge(trained, frozen, cfg)

  def weight(tree, kind, name):
    return (tree["blocks"] if scan else tree["blocks"][1])[kind][name]

  products = {
      ("attention", "query"):
          lambda a, b: np.einsum("...ir,...rhd->...ihd", a, b.reshape(*b.shape[:-1], 4, 8)),
      ("attention", "out"):
          lambda a, b: np.einsum("...hdr,...ro->...hdo", a.reshape(*a.shape[:-2], 4, 8, 2), b),
      ("mlp", "down"): np.matmul,
  }
  for path, product in products.items():
    before, after, adapter = (weight(tree, *path) for tree in (params, merged, trained["lora"]))
    change = product(np.asarray(adapter["a"]), np.asarray(adapter["b"]))
    np.testing.assert_allclose(after, before + 8.0 / 2 * change, atol=1e-4)


def test_experts_have_adapters_of_their_own():
  w = jax.random.normal(jax.random.key(0), (3, 4, 5))  # [E, D, F]
  cfg = ParametersConfig("lora", lora_rank=2, lora_targets=("mlp/gate",))
  trained, frozen = trainable.split({"mlp": {"gate": w}}, cfg, jax.random.key(1))
  a, b = trained["lora"]["mlp"]["gate"]["a"], trained["lora"]["mlp"]["gate"]["b"]
  assert a.shape == (3, 4, 2) and b.shape == (3, 2, 5)
  assert float(jnp.max(jnp.abs(a))) <= 4**-0.5 and float(jnp.std(a)) > 0.1
  trained["lora"]["mlp"]["gate"]["b"] = b.at[1].set(1.0)
  changed = trainable.merge(trained, frozen, cfg)["mlp"]["gate"] != w
  np.testing.assert_array_equal(changed.any((1, 2)), [False, True, False])


def test_an_adapter_depends_only_on_its_path():

  def adapters(cfg):
    return flatten_dict(trainable.split(params_of(), cfg, jax.random.key(1))[0]["lora"])

  many = adapters(LORA)
  one = adapters(dataclasses.replace(LORA, lora_targets=("blocks/1/mlp/up",)))
  keys = ("blocks", 1, "mlp", "up", "a")
  np.testing.assert_array_equal(one[keys], many[keys])
  assert not np.array_equal(many["blocks", 0, "mlp", "up", "a"], many[keys])


def test_frozen_parameters_keep_their_dtype_and_trained_ones_are_f32():
  half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params_of())
  cfg = CHOICES["lora and more"]
  trained, frozen = trainable.split(half, cfg, jax.random.key(1))
  assert {x.dtype for x in jax.tree.leaves(trained)} == {jnp.dtype(jnp.float32)}
  assert {x.dtype for x in jax.tree.leaves(frozen)} == {jnp.dtype(jnp.bfloat16)}
  merged = trainable.merge(trained, frozen, cfg)
  assert merged["head"].dtype == jnp.float32 and merged["embedding"] is frozen["embedding"]


def test_rows_of_a_tied_head_are_rows_of_the_embedding():
  cfg = ParametersConfig("selected", head_rows=(2, 7))
  model = Model(dataclasses.replace(SHAPE, tie_head=True))
  trained, frozen = trainable.split(params_of(model), cfg)
  merged = trainable.merge({"head_rows": trained["head_rows"] + 1}, frozen, cfg)
  changed = (merged["embedding"] != params_of(model)["embedding"]).any(1)
  assert tuple(np.flatnonzero(changed)) == (2, 7)


# --- training


@pytest.mark.parametrize("choice", quick_for({"lora"}, CHOICES))
def test_only_what_is_chosen_moves(choice):
  cfg = CHOICES[choice]
  start, state = trained_for(cfg, micro_batches=2)
  check_only(choice, start, trainable.merge(state.params, state.frozen, cfg))
  # The reference policy shares the frozen leaves; if donated, the first step would free them.
  assert moved(state.frozen, trainable.frozen_of(start, cfg)) == set()


@pytest.mark.slow
def test_a_split_that_leaks_a_frozen_leaf_into_training_is_rejected():
  """The same check must fail for a division that trains one leaf too many."""
  cfg = CHOICES["selected"]
  wrong = dataclasses.replace(cfg, patterns=(*cfg.patterns, "blocks/0/mlp/up"))
  start, state = trained_for(wrong)
  with pytest.raises(AssertionError):
    check_only("selected", start, trainable.merge(state.params, state.frozen, wrong))


@pytest.mark.parametrize("choice", CHOICES)
def test_the_optimizer_knows_trained_leaves_only(choice):
  trained, frozen = trainable.split(params_of(), CHOICES[choice], jax.random.key(1))
  shapes = sorted(x.shape for x in jax.tree.leaves(trained))
  state = init_state(trained, TX, frozen)
  moments = sorted(x.shape for x in jax.tree.leaves(state.opt_state) if x.ndim)
  assert moments == sorted(shapes * 2)
  assert sum(np.prod(s) for s in shapes) < sum(x.size for x in jax.tree.leaves(params_of())) / 1.5


@pytest.mark.slow
def test_eight_devices_follow_one_device():
  cfg = CHOICES["lora and more"]
  mesh = parallel.make_mesh(MeshConfig(2, 2, 2), jax.devices()[:8])
  _, one = trained_for(cfg)
  start, eight = trained_for(cfg, mesh=mesh)
  check_only("lora and more", start,
             trainable.merge(*jax.device_get((eight.params, eight.frozen)), cfg))
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5),
               *jax.device_get((one.params, eight.params)))
  assert "fsdp" in str(eight.params["lora"]["blocks"][0]["attention"]["query"]["a"].sharding.spec)
  assert "tensor" in str(eight.params["lora"]["blocks"][0]["attention"]["query"]["b"].sharding.spec)
  merged = trainable.make_merge(MODEL, cfg, mesh)(eight)
  shardings = parallel.param_shardings(MODEL, mesh)
  equal = jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(s, x.ndim), merged, shardings)
  assert all(jax.tree.leaves(equal))
  assert merged["embedding"] is eight.frozen["embedding"]
  expected = trainable.merge(*jax.device_get((eight.params, eight.frozen)), cfg)
  np.testing.assert_allclose(logits(jax.device_get(merged)), logits(expected), atol=5e-5)


# --- refusals


@pytest.mark.parametrize("cfg,message", [
    (ParametersConfig("selected", patterns=("atention",)),
     "matches no parameter.*blocks/0/attention/key"),
    (ParametersConfig("selected", patterns=("attent",)), "matches no parameter"),  # whole parts
    (ParametersConfig("selected", patterns=("(",)), "no regular expression"),
    (ParametersConfig("selected"), "nothing would be trained"),
    (ParametersConfig("selected", patterns=("head",), head_rows=(1,)), "head is named twice"),
    (ParametersConfig("lora", patterns=("mlp",)), "blocks/0/mlp/down is named twice"),
    (ParametersConfig("lora", lora_targets=("attention",)), "norm/scale has no adapter"),
    (ParametersConfig("selected", head_rows=(1, 1)), "1 is repeated"),
    (ParametersConfig("selected", head_rows=(16,)), "ids from 0 to 15"),
    (ParametersConfig(patterns=("mlp",)), "with parameters.train = 'all': it is read only with"),
    (ParametersConfig("selected", patterns=("mlp",), lora_rank=2), "lora_rank = 2"),
])
def test_a_choice_that_cannot_be_meant_is_refused(cfg, message):
  with pytest.raises(ConfigError, match=message):
    trainable.check(cfg, MODEL)


@pytest.mark.parametrize("cfg", [ParametersConfig(), *CHOICES.values()], ids=["all", *CHOICES])
def test_good_choices_pass(cfg):
  trainable.check(cfg, MODEL)


def test_a_pattern_covers_whole_parts():
  many = Model(dataclasses.replace(SHAPE, num_layers=11))
  shapes = jax.eval_shape(many.init, jax.random.key(0))
  chosen = trainable.roles(shapes, ParametersConfig("selected", patterns=("blocks/1",))).selected
  assert {keys[:2] for keys in chosen} == {("blocks", 1)}
