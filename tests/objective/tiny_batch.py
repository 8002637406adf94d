"""A small network and an optimizer batch for it, for tests of what stands beside the estimator."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.config import ModelConfig
from jaxrl_llm.models import Model
from jaxrl_llm.types import Rollout, TrainBatch

ROWS, LENGTH = 8, 9
MODEL = Model(ModelConfig(vocab_size=13, width=8, num_layers=1, num_heads=1, num_kv_heads=1,
                          head_dim=8, mlp_width=8))


@functools.cache
def parameters():
  return jax.tree.map(lambda x: 4 * x if x.ndim > 1 else x, MODEL.init(jax.random.key(0)))


@functools.cache
def rollout(seed: int = 0) -> Rollout:
  """Rows of 5 to 9 tokens with holes in the mask; the third has no policy token."""
  rng, at = np.random.default_rng(seed), np.arange(LENGTH)
  ids = np.arange(ROWS, dtype=np.int32)
  length = rng.integers(5, LENGTH + 1, ROWS).astype(np.int32)
  mask = (at >= 2) & (at < length[:, None]) & (rng.random((ROWS, LENGTH)) < 0.8)
  mask[2] = False
  tokens = np.where(at < length[:, None], rng.integers(0, 13, mask.shape), 0).astype(np.int32)
  behavior = np.where(mask, -2.5, 0).astype(np.float32)
  return jax.tree.map(jnp.asarray, Rollout(tokens, mask, length, 0 * ids + 2, behavior, ids < 0,
                                           0 * ids, 0 * tokens, ids, ids // 4))


@functools.cache
def make(seed: int = 0) -> TrainBatch:
  """The rollout as an optimizer batch. Its three kinds of weights differ, and a row is dropped."""
  rows, rng = rollout(seed), np.random.default_rng(seed + 1)
  live = np.asarray(rows.mask) & (np.arange(ROWS) != 5)[:, None]

  def where_live(low: float, high: float) -> jnp.ndarray:
    return jnp.asarray(np.where(live, rng.uniform(low, high, live.shape), 0), jnp.float32)

  return TrainBatch(rows, advantages=where_live(-1, 1), loss_weights=where_live(0.05, 0.1),
                    anchor_log_probs=where_live(-3, -2), correction_weights=where_live(0.5, 1.5),
                    ref_log_probs=where_live(-3, -2), regularizer_weights=where_live(0.02, 0.04))


def close(a, b, tolerance=1e-4):
  """Compares updates of parameters, up to a share of the largest change, which must be one."""
  largest = max(float(np.max(np.abs(x))) for x in jax.tree.leaves(b))
  assert largest > 1e-4, "nothing moved"
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=tolerance * largest), a, b)


def scaled(tree, factor):
  return jax.tree.map(lambda x: factor * x, tree)
