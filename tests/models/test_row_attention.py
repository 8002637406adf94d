"""Each kind of attention gives the values and gradients of the plain one; none mixes segments."""

import dataclasses
import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suites import quick_for

from jaxrl_llm import parallel
from jaxrl_llm.config import ConfigError, MeshConfig, ModelConfig
from jaxrl_llm.models import (
  Model,
  attention_kernels,
  blocked_attention,
  row_attention,
  transformer,
)
from jaxrl_llm.models.row_attention import ONE, PACKED, SHARED, Rows, attend_rows, choose

ROWS, LENGTH, HEADS, KV_HEADS, SIZE = 2, 203, 4, 2, 16
NONE = -1


def segments_of(form: str) -> tuple[np.ndarray, np.ndarray | None]:
  """(segments, shared) [R, S] of rows of this form, with padding at their ends."""
  at = np.arange(LENGTH)
  one = np.stack([at < 180, at < 97]).astype(np.int32)
  if form == ONE:
    return one, None
  packed = np.stack([np.digitize(at, [60, 130]) + 1, np.digitize(at, [100]) + 1]) * one
  if form == PACKED:
    return packed.astype(np.int32), None
  # the first segment of a row is the prompt of the others
  return packed.astype(np.int32), np.where(packed > 1, 1, NONE).astype(np.int32)


@functools.cache
def operands(dtype="float32") -> tuple:
  rng = np.random.default_rng(0)
  shapes = ((ROWS, LENGTH, HEADS, SIZE), (ROWS, KV_HEADS, SIZE, LENGTH),
            (ROWS, KV_HEADS, LENGTH, SIZE))
  return tuple(jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes)


def seen_by(kind: str, form: str) -> Rows:
  segments, shared = segments_of(form)
  visible = row_attention._visible(segments, shared) if kind == "plain" else None
  return Rows(jnp.asarray(segments), shared, visible, kind)


def value_and_gradients(kind: str, form: str, dtype="float32", constrain=None):
  """(output without padding, gradients of a weighted sum of it), in f32."""
  seen, given = seen_by(kind, form), operands(dtype)
  weights = np.random.default_rng(1).normal(size=given[0].shape) * (
      segments_of(form)[0] > 0)[..., None, None]

  def loss(*x):
    mixed = attend_rows(*x, seen, constrain).astype(jnp.float32)
    return jnp.sum(mixed * weights), jnp.where(weights != 0, mixed, 0)

  run = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))
  return jax.tree.map(lambda x: np.asarray(x, np.float32), run(*given))


@functools.cache
def plain(form: str, dtype="float32"):
  return value_and_gradients("plain", form, dtype)


@pytest.fixture
def small(monkeypatch):
  """Blocks of 64 tokens, and kernels in their interpreters."""
  monkeypatch.setattr(blocked_attention, "attend_blocks",
                      functools.partial(blocked_attention.attend_blocks, block=64))
  monkeypatch.setattr(attention_kernels, "LARGEST_BLOCK", 128)
  for name in ("splash", "triton"):
    interpreted = functools.partial(getattr(attention_kernels, name), interpret=True)
    monkeypatch.setattr(attention_kernels, name, interpreted)


def differs(outputs, expected) -> float:
  return max(float(np.max(np.abs(a - b)))
             for a, b in zip(jax.tree.leaves(outputs), jax.tree.leaves(expected), strict=True))


@pytest.mark.parametrize("kind, form", [
    ("blocked", ONE), ("blocked", PACKED), ("blocked", SHARED),
    *(pytest.param(kind, form, marks=pytest.mark.slow)
      for kind in ("splash", "triton") for form in (PACKED, ONE))])
def test_every_kind_is_attention(kind, form, small):
  assert differs(value_and_gradients(kind, form), plain(form)) < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["blocked", "splash", "triton"])
def test_bfloat16_is_as_near_as_its_rounding(kind, small):
  exact = plain(PACKED)
  error = differs(plain(PACKED, "bfloat16"), exact)
  assert 1e-3 < differs(value_and_gradients(kind, PACKED, "bfloat16"), exact) < max(2 * error, 0.05)


def test_masks_that_mix_segments_are_rejected(small, monkeypatch):
  real = blocked_attention._block_mask

  def one_segment(segments, *block):
    return real(tuple(jnp.minimum(x, 1) for x in segments), *block)

  monkeypatch.setattr(blocked_attention, "_block_mask", one_segment)
  assert differs(value_and_gradients("blocked", PACKED), plain(PACKED)) > 0.1


@pytest.mark.parametrize("kind", quick_for({"blocked"}, ["plain", "blocked", "splash", "triton"]))
def test_a_gradient_does_not_see_its_neighbour(kind, small):
  seen, given = seen_by(kind, PACKED), operands()
  inside = (segments_of(PACKED)[0] == 2)[..., None, None]

  def loss(queries, keys, values):
    return jnp.sum(jnp.where(inside, attend_rows(queries, keys, values, seen, None), 0))

  d_queries, d_keys, d_values = jax.grad(loss, (0, 1, 2))(*given)
  others = ~inside[..., 0, 0]
  for x in (d_queries, jnp.moveaxis(d_keys, 3, 1), jnp.moveaxis(d_values, 2, 1)):
    assert not np.any(np.asarray(x)[others]) and np.any(np.asarray(x)[~others])


STARTS = [(150, 390, 400, 650, 700), (128, 256, 384), (), (5, 766)]  # of segments after the first


def row_of(starts, length: int = 768) -> np.ndarray:
  """Segments [S] that begin there, with padding from 700 on."""
  at = np.arange(length)
  return ((np.digitize(at, starts) + 1) * (at < 700)).astype(np.int32)


@pytest.mark.parametrize("starts", STARTS, ids=str)
def test_splash_computes_the_blocks_in_which_a_segment_has_pairs(starts):
  block, segments = 128, row_of(starts)
  pairs = np.tril(segments[:, None] == segments)
  blocks = pairs.reshape(6, block, 6, block).any((1, 3))
  full = attention_kernels._splash_kernel(4, 768, block, True, 0)
  kernel = attention_kernels._of_segments(full, jnp.asarray(segments), block)
  for mask, of_keys in ((kernel.fwd_mask_info, False), (kernel.dkv_mask_info, True)):
    computed, names = (np.asarray(x[0].T if of_keys else x[0])
                       for x in (mask.block_mask, mask.data_next))
    np.testing.assert_array_equal(computed > 0, blocks.T if of_keys else blocks)
    for line, (of_line, named) in enumerate(zip(computed, names, strict=True)):
      live = np.flatnonzero(of_line)
      np.testing.assert_array_equal(named[live], live)
      assert set(named) <= set(live), line  # no other block is read


def alone(kind: str, segments, window: int = 0):
  """Values and gradients of attention in a single row."""
  rng, length = np.random.default_rng(0), len(segments)
  given = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in (
      (1, length, HEADS, SIZE), (1, KV_HEADS, SIZE, length), (1, KV_HEADS, length, SIZE))]
  weights = rng.normal(size=given[0].shape) * (segments > 0)[None, :, None, None]
  ids, positions = jnp.asarray(segments)[None], jnp.arange(length)[None]
  visible = row_attention._visible(ids, None, positions, window) if kind == "plain" else None
  seen = Rows(ids, None, visible, kind, positions, window)

  def loss(*x):
    mixed = attend_rows(*x, seen, None)
    return jnp.sum(mixed * weights), jnp.where(weights != 0, mixed, 0)

  return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(*given)


@pytest.mark.slow
@pytest.mark.parametrize("longest_fused, window", [(16384, 0), (0, 0), (16384, 200)])
def test_without_the_other_blocks_a_row_is_attention(longest_fused, window, small, monkeypatch):
  monkeypatch.setattr(attention_kernels, "LONGEST_FUSED", longest_fused)
  attention_kernels._splash_kernel.cache_clear()
  segments = row_of(STARTS[0], 730)
  outputs = alone("splash", segments, window)
  attention_kernels._splash_kernel.cache_clear()
  assert differs(outputs, alone("plain", segments, window)) < 2e-5


@pytest.mark.slow
def test_a_block_too_few_is_rejected(small, monkeypatch):
  real, segments = attention_kernels._of_segments, row_of(STARTS[0])

  def with_a_cut(kernel, ids, block):
    return real(kernel, ids + (jnp.arange(768) >= 256), block)

  monkeypatch.setattr(attention_kernels, "_of_segments", with_a_cut)
  assert differs(alone("splash", segments), alone("plain", segments)) > 0.1


def on_four_devices(kind: str, axes: MeshConfig):
  mesh = parallel.make_mesh(axes, jax.devices()[:4])
  return value_and_gradients(kind, PACKED, constrain=parallel.Layout(mesh))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["blocked", "splash"])
@pytest.mark.parametrize("axes", [MeshConfig(1, 2, 2), MeshConfig(1, 2, 1, sequence=2)],
                         ids=["tensor", "sequence"])
def test_four_devices_attend_as_one(kind, axes, small):
  assert differs(on_four_devices(kind, axes), plain(PACKED)) < 2e-5


@pytest.mark.slow
def test_attention_to_the_tokens_of_a_device_alone_is_rejected(small, monkeypatch):
  real = parallel.Layout.by_shard

  def of_own_tokens(self, function, arrays, axes):
    tokens = (3, 2, 2, 1)  # the axes of tokens of queries, keys, values and segments
    wrong = [tuple("length" if i == at else "rows" if i == 0 else None for i in range(len(names)))
             for names, at in zip(axes, tokens, strict=True)]
    padded = [jnp.pad(x, [(0, int(i == at)) for i in range(x.ndim)])
              for x, at in zip(arrays, tokens, strict=True)]
    return real(self, function, tuple(padded), tuple(wrong))[:, :, :, :LENGTH]

  monkeypatch.setattr(parallel.Layout, "by_shard", of_own_tokens)
  outputs = on_four_devices("blocked", MeshConfig(1, 2, 1, sequence=2))
  assert differs(outputs, plain(PACKED)) > 0.1


def test_no_array_has_two_axes_of_tokens():
  length = 4096
  shapes = ((1, length, 4, 32), (1, 2, 32, length), (1, 2, length, 32))

  def loss(*x):
    seen = Rows(jnp.ones((1, length), jnp.int32), None, None, "blocked")
    return jnp.sum(attend_rows(*x, seen, None))

  given = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
  compiled = jax.jit(jax.grad(loss, (0, 1, 2))).lower(*given).compile()
  text = compiled.as_text()
  assert f"{length},{length}" not in text and "512,512" in text
  of_scores = 4 * 4 * length**2  # bytes of four heads, if a row kept them
  assert compiled.memory_analysis().temp_size_in_bytes < of_scores / 4


@pytest.mark.slow
@pytest.mark.parametrize("target, kind, library, extra", [
    ("v5p:2x2x1", "splash", "libtpu", "plan-tpu"), ("h100:1", "cudnn", "jax_cuda12_plugin",
                                                    "plan-gpu"),
    ("h100:1", "triton", "jax_cuda12_plugin", "plan-gpu")])
def test_kernels_compile_for_32768_tokens(target, kind, library, extra):
  if importlib.util.find_spec(library) is None:
    pytest.skip(f"needs {library}: pip install -e '.[{extra}]'")
  root = Path(__file__).parent.parent.parent
  paths = [str(root), os.environ.get("PYTHONPATH", "")]
  environment = os.environ | {"XLA_FLAGS": "", "PYTHONPATH": os.pathsep.join(paths)}
  done = subprocess.run(
      [sys.executable, str(root / "tests/models/compiled_attention.py"), target, kind],
      capture_output=True, text=True, env=environment, timeout=600)
  assert done.returncode == 0, done.stderr[-2000:]
  assert int(done.stdout.split()[-1]) < 2e9


SMALL = ModelConfig(vocab_size=16, width=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8,
                    mlp_width=32)


@pytest.mark.slow
@pytest.mark.parametrize("change", [{}, {"remat": "full", "scan_layers": True}], ids=str)
def test_the_network_does_not_depend_on_the_kind(change, small):
  tokens = np.random.default_rng(0).integers(0, 16, (ROWS, LENGTH))
  segments, _ = segments_of(PACKED)
  positions = np.broadcast_to(np.arange(LENGTH), tokens.shape)
  weights = np.random.default_rng(1).normal(size=(ROWS, LENGTH, 32)) * (segments > 0)[..., None]

  def of(kind):
    model = Model(dataclasses.replace(SMALL, attention=kind, **change))

    def loss(params):
      return jnp.sum(model.hidden(params, tokens, positions, segments)[0] * weights)

    return jax.jit(jax.value_and_grad(loss))(model.init(jax.random.key(0)))

  (value, gradient), (expected, d_expected) = of("blocked"), of("plain")
  np.testing.assert_allclose(value, expected, rtol=1e-4)
  assert differs(gradient, d_expected) < 2e-5 * max(float(jnp.abs(x).max())
                                                    for x in jax.tree.leaves(d_expected))


def kernels(jaxpr) -> list[str]:
  """The names of the kernels that are called for results."""
  out = []
  for eqn in jaxpr.eqns:
    if eqn.primitive.name == "pallas_call":
      out.append(eqn.params["name"])
    elif eqn.outvars:
      for inner in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
        inner = getattr(inner, "jaxpr", inner)
        out += kernels(inner) if hasattr(inner, "eqns") else []
  return out


def check_kept_attention(length: int):
  """With remat=dots the kernel of attention runs once forward and once backward."""
  shapes = dataclasses.replace(SMALL, attention="splash", remat="dots", scan_layers=True)
  model, tokens = Model(shapes), jax.ShapeDtypeStruct((1, length), jnp.int32)

  def loss(params, tokens):
    return jnp.sum(model.hidden(params, tokens, tokens, tokens)[0])

  names = kernels(jax.make_jaxpr(jax.grad(loss))(model.shapes(), tokens).jaxpr)
  assert [name[:14] for name in names] == ["splash_mha_fwd", "splash_mha_dkv"], names


@pytest.fixture
def on_tpu(monkeypatch):
  monkeypatch.setattr(row_attention, "platform_of", lambda constrain: "tpu")


def test_kept_attention_runs_once(on_tpu):
  check_kept_attention(512)


def test_long_rows_have_two_backward_kernels(on_tpu, monkeypatch):
  monkeypatch.setattr(attention_kernels, "LONGEST_FUSED", 512)
  attention_kernels._splash_kernel.cache_clear()
  with pytest.raises(AssertionError, match="splash_mha_dq"):
    check_kept_attention(1024)
  attention_kernels._splash_kernel.cache_clear()


def test_the_check_of_kept_attention_rejects_a_policy_without_it(on_tpu, monkeypatch):
  dots = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
  monkeypatch.setitem(transformer.POLICIES, "dots", dots)
  with pytest.raises(AssertionError, match=r"fwd.*fwd"):
    check_kept_attention(512)


BF16 = dataclasses.replace(SMALL, compute_dtype="bfloat16")


@pytest.mark.parametrize("cfg, length, platform, form, kind", [
    (SMALL, 511, "tpu", ONE, "plain"), (SMALL, 512, "tpu", ONE, "splash"),
    (SMALL, 1023, "cpu", ONE, "plain"), (BF16, 4096, "tpu", PACKED, "splash"),
    (SMALL, 4096, "tpu", ONE, "splash"), (BF16, 4096, "tpu", SHARED, "blocked"),
    (BF16, 4096, "gpu", ONE, "cudnn"), (BF16, 4096, "gpu", PACKED, "triton"),
    (SMALL, 4096, "gpu", ONE, "blocked"), (BF16, 4096, "cpu", ONE, "blocked"),
    (dataclasses.replace(SMALL, attention="plain"), 4096, "tpu", PACKED, "plain"),
])
def test_the_choice(cfg, length, platform, form, kind):
  assert choose(cfg, length, platform, form) == kind


@pytest.mark.parametrize("kind, platform, form, message", [
    ("splash", "cpu", ONE, "'splash' on cpu: its kernel needs a TPU"),
    ("cudnn", "tpu", ONE, "'cudnn' on tpu: its kernel needs a GPU"),
    ("cudnn", "gpu", PACKED, "serves rows of one segment, not packed rows. Fix"),
    ("triton", "gpu", SHARED, "not packed rows that share a prompt"),
])
def test_impossible_choices_are_errors(kind, platform, form, message):
  with pytest.raises(ConfigError, match=message):
    choose(dataclasses.replace(BF16, attention=kind), 4096, platform, form)
  with pytest.raises(ConfigError, match="compute_dtype = 'float32': allowed are bfloat16"):
    choose(dataclasses.replace(SMALL, attention="cudnn"), 4096, "gpu", ONE)
