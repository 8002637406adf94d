"""Checkpoints of every family against transformers: logits, continuations, round trips."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file
from suites import quick_for, quick_of

from experiments.families import checkpoints as hf
from experiments.families.comparison import PROMPTS
from jaxrl_llm import parallel
from jaxrl_llm.config import MeshConfig, SamplerConfig, is_uniform
from jaxrl_llm.models import load_pretrained, save_pretrained
from jaxrl_llm.models.hf import read_config
from jaxrl_llm.rollouts import generate
from jaxrl_llm.types import PromptBatch, Sampling

ROWS, LENGTH, NEW = 4, 40, 64
QUICK = {"qwen3_untied", "llama"}  # families
# Slow: a network of each other architecture. Nightly: variants of their numbers.
SLOW = {"qwen2_untied", "qwen3_moe", "mistral", "olmo2", "smollm3", "gemma3"}
REPEATING = {"olmo2_tied"}  # its random weights choose the same few tokens


@pytest.fixture(scope="module")
def mesh():
  return parallel.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))


@pytest.fixture(scope="module", params=hf.FAMILIES)
def checkpoint(request, tmp_path_factory):
  """Every family in f32, alternately in one file and in shards."""
  size = "20KB" if list(hf.FAMILIES).index(request.param) % 2 else "1GB"
  return hf.make(request.param, tmp_path_factory.mktemp(request.param), max_shard_size=size)


@functools.cache
def forward(model):
  """params -> logits [ROWS, LENGTH, V] of `inputs()`."""
  ids = jnp.asarray(inputs())
  positions = jnp.broadcast_to(jnp.arange(LENGTH), ids.shape)

  @jax.jit
  def logits(params):
    hidden, _ = model.hidden(params, ids, positions, jnp.ones_like(ids))
    return hidden @ model.head(params).astype(jnp.float32)

  return logits


def inputs():
  return np.random.default_rng(0).integers(0, hf.VOCAB, (ROWS, LENGTH))


def assert_equal_logits(ours, theirs):
  ours, theirs = np.asarray(ours), np.asarray(theirs)
  assert np.abs(ours - theirs).max() <= 2e-4 * np.abs(theirs).max()
  np.testing.assert_allclose(jax.nn.log_softmax(ours), jax.nn.log_softmax(theirs), atol=1e-4)


def assert_same(tree, other):
  """Bitwise, dtypes included."""

  def assert_leaf(x, y):
    assert x.dtype == y.dtype
    np.testing.assert_array_equal(np.asarray(x).view(np.uint8), np.asarray(y).view(np.uint8))

  jax.tree.map(assert_leaf, tree, other)


@pytest.mark.parametrize("checkpoint", quick_for(QUICK, hf.FAMILIES), indirect=True)
def test_logits(checkpoint):
  model, params, report = load_pretrained(checkpoint.directory)
  theirs = hf.logits(checkpoint.network, inputs())
  assert_equal_logits(forward(model)(params), theirs)
  assert sorted(t.name for t in report.tensors) == hf.stored_names(checkpoint.directory)
  assert sum(int(np.prod(t.shape)) for t in report.tensors) == checkpoint.network.num_parameters()
  # each part counts: the comparison sees a wrong one
  for path in ("embedding", "final_norm", "blocks"):
    moved = {**params, path: jax.tree.map(lambda x: x * 1.01, params[path])}
    with pytest.raises(AssertionError):
      assert_equal_logits(forward(model)(moved), theirs)


@pytest.mark.parametrize("checkpoint", quick_of(
    {"qwen3_untied"}, {name: (name,) for name in hf.FAMILIES if name not in REPEATING},
    SLOW | {"llama"}), indirect=True)
def test_greedy_continuation(checkpoint):
  """Prompts of different lengths in one padded batch, through prefill, cache and decode loop."""
  model, params, _ = load_pretrained(checkpoint.directory)
  length = jnp.asarray([len(p) for p in PROMPTS])
  tokens = jnp.asarray([p + [0] * (max(map(len, PROMPTS)) - len(p)) for p in PROMPTS])
  rows = jnp.arange(len(PROMPTS))
  prompts = PromptBatch(tokens, length, rows, rows)
  cfg = SamplerConfig(group_size=1, max_new_tokens=NEW, window=NEW, stop_ids=(), pad_id=0)
  run = jax.jit(functools.partial(generate, model=model, cfg=cfg))
  rollout = jax.device_get(run(params, prompts, jax.random.key(0), Sampling.of(0.0)))
  seen = set()
  for row, prompt in enumerate(PROMPTS):
    ours = rollout.tokens[row, len(prompt):len(prompt) + NEW].tolist()
    assert ours == hf.greedy(checkpoint.network, prompt, NEW)
    seen |= set(ours)
  assert len(seen) > 8, "a continuation that repeats itself shows nothing"


@pytest.mark.parametrize("checkpoint", quick_of(
    QUICK, {name: (name,) for name in hf.FAMILIES}, SLOW), indirect=True)
def test_round_trip(checkpoint, mesh, tmp_path):
  """Read on a mesh with scanned layers, changed, written in shards, read on one device unrolled."""
  scan = is_uniform(read_config(checkpoint.directory))  # layers of two kinds cannot be stacked
  model, params, _ = load_pretrained(checkpoint.directory, mesh=mesh, scan_layers=scan)
  params = jax.tree.map(lambda x: x + 0.01 * jnp.cos(100 * x), params)
  save_pretrained(tmp_path / "out", model, params, max_shard_bytes=20_000)
  assert (tmp_path / "out" / "model.safetensors.index.json").exists()
  alone, theirs, _ = load_pretrained(tmp_path / "out")
  assert alone.config.scan_layers is False and alone.config.num_layers == model.config.num_layers
  ours = forward(alone)(theirs)
  assert_equal_logits(ours, hf.logits(hf.reload(tmp_path / "out"), inputs()))
  with pytest.raises(AssertionError):
    assert_equal_logits(ours, hf.logits(checkpoint.network, inputs()))
  again, back, _ = load_pretrained(tmp_path / "out", mesh=mesh, scan_layers=scan)
  assert again == model
  assert_same(jax.device_get(back), jax.device_get(params))
  assert jax.tree.map(lambda x: x.sharding, back) == parallel.param_shardings(model, mesh)


@pytest.mark.parametrize("max_shard_bytes", [1, 5000])
def test_shards_smaller_than_a_tensor(max_shard_bytes, tmp_path):
  model, params, _ = load_pretrained(hf.make("qwen2_tied", tmp_path / "in").directory)
  save_pretrained(tmp_path / "out", model, params, max_shard_bytes=max_shard_bytes)
  assert_same(load_pretrained(tmp_path / "out")[1], params)
  assert hf.stored_names(tmp_path / "out") == hf.stored_names(tmp_path / "in")
  for file in (tmp_path / "out").glob("*.safetensors"):
    tensors = load_file(file)
    assert len(tensors) == 1 or sum(x.nbytes for x in tensors.values()) <= max_shard_bytes


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint", ["qwen2_untied", "qwen3_moe", "olmo2", "gemma3"],
                         indirect=True)
def test_on_a_mesh(checkpoint, mesh):
  model, params, _ = load_pretrained(checkpoint.directory, mesh=mesh)
  assert any(
      len(x.sharding.device_set) == 8 and not x.is_fully_replicated
      for x in jax.tree.leaves(params))
  assert_equal_logits(forward(model)(params), hf.logits(checkpoint.network, inputs()))


@pytest.mark.parametrize("name", quick_of((), {
    name: (name,) for name in ("qwen3_untied", "mistral", "olmo2", "smollm3", "gemma3")},
    {"qwen3_untied", "gemma3"}))
def test_rows_of_the_vocabulary_beyond_the_tokenizer_s(name, mesh, tmp_path, monkeypatch):
  """51 rows, which no axis of the mesh divides; the last three are no token's."""
  monkeypatch.setitem(hf.SHARED, "vocab_size", hf.VOCAB + 3)
  checkpoint = hf.make(name, tmp_path / "in", max_shard_size="20KB")
  model, params, _ = load_pretrained(checkpoint.directory, mesh=mesh)
  assert model.config.vocab_size == hf.VOCAB + 3
  theirs = hf.logits(checkpoint.network, inputs())
  assert_equal_logits(forward(model)(params), theirs)
  save_pretrained(tmp_path / "out", model, params)
  np.testing.assert_array_equal(hf.logits(hf.reload(tmp_path / "out"), inputs()), theirs)


@pytest.mark.parametrize("name, dtype", [
    pytest.param("qwen2_tied", "float16", marks=pytest.mark.slow),
    pytest.param("gemma3", "bfloat16", marks=pytest.mark.slow),
    *(pytest.param(name, "bfloat16", marks=pytest.mark.nightly)
      for name in ("qwen2_tied", "mistral", "olmo2", "smollm3_untied"))])
def test_dtypes(name, dtype, tmp_path):
  """Of checkpoints in shards."""
  hf.make(name, tmp_path / "in", dtype=dtype, max_shard_size="10KB")
  assert len(list((tmp_path / "in").glob("*.safetensors"))) > 1
  model, params, report = load_pretrained(tmp_path / "in")
  assert {x.dtype.name for x in jax.tree.leaves(params)} == {dtype}
  assert {t.dtype for t in report.tensors} == {dtype}
  _, full, _ = load_pretrained(tmp_path / "in", dtype="float32")
  assert_same(full, jax.tree.map(lambda x: np.asarray(x).astype(np.float32), params))
  assert_equal_logits(
      forward(model)(params), hf.logits(hf.reload(tmp_path / "in", dtype="float32"), inputs()))
  save_pretrained(tmp_path / "same", model, params, max_shard_bytes=10_000)
  assert_same(load_pretrained(tmp_path / "same")[1], params)
  assert str(hf.reload(tmp_path / "same").dtype) == f"torch.{dtype}"
  save_pretrained(tmp_path / "cast", model, full, dtype="bfloat16")
  expected = jax.tree.map(lambda x: np.asarray(x).astype(ml_dtypes.bfloat16), full)
  assert_same(load_pretrained(tmp_path / "cast")[1], expected)
