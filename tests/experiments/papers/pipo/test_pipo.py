"""PIPO's arithmetic: what a batch is compared with, and how the previous one is scaled."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.papers.pipo import replay as pipo
from jaxrl_llm.types import Rollout, TrainBatch

CFG = pipo.Pipo(history=4, xi_clip=None)
MEANS = np.array([0.2, 0.4, 0.6, 0.4], np.float32)


def batch(advantages, mask, groups):
  rows = len(groups)
  zeros = jnp.zeros(rows, jnp.int32)
  rollout = Rollout(jnp.zeros(mask.shape, jnp.int32), jnp.asarray(mask), zeros, zeros,
                    jnp.zeros(mask.shape), zeros > 0, zeros, 0 * mask, zeros, jnp.asarray(groups))
  ones = jnp.ones(mask.shape)
  return TrainBatch(rollout, jnp.asarray(advantages, jnp.float32), ones, None, ones)


def test_progress_by_hand():
  xi, weight = pipo.progress(MEANS, 4, 0.6, CFG)
  expected = 0.2 / (np.std(MEANS, ddof=1) + 1e-6)
  np.testing.assert_allclose([xi, weight], [expected, expected], rtol=1e-6)
  xi, weight = pipo.progress(MEANS, 9, 0.2, CFG)
  np.testing.assert_allclose([xi, weight], [-expected, -0.1 * expected], rtol=1e-6)
  quiet = np.full(4, 0.5, np.float32)  # a history without spread is bounded
  assert pipo.progress(quiet, 4, 0.6, pipo.Pipo(history=4, xi_clip=3.0)) == (3.0, 3.0)
  assert pipo.progress(quiet, 4, 0.6, CFG)[0] > 1e4


def test_when_no_step_is_taken():
  assert pipo.progress(MEANS, 3, 0.6, CFG) is None, "before K batches"
  assert pipo.progress(MEANS, 4, float("nan"), CFG) is None, "nothing was scored"
  assert pipo.progress(MEANS, 4, 0.41, dataclasses.replace(CFG, threshold=1.0)) is None
  assert pipo.progress(MEANS, 4, 0.9, dataclasses.replace(CFG, threshold=1.0)) is not None


def test_memory_holds_the_last_means_and_the_newest_batch():
  state = pipo.PipoState(MEANS, np.int32(4), "old")
  state = pipo.remember(state, "new", 0.8)
  np.testing.assert_allclose(state.means, [0.4, 0.6, 0.4, 0.8], rtol=1e-6)
  assert (state.count, state.batch) == (5, "new")
  unscored = pipo.remember(state, "newer", float("nan"))
  np.testing.assert_array_equal(unscored.means, state.means)
  assert (unscored.count, unscored.batch) == (5, "newer")


def test_scaled_advantages_by_hand():
  """a_i = G A_i / sum |A_j|: groups interleaved, one all zero, a dropped row, holes in the mask."""
  mask = np.array([[0, 1, 1], [0, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 1], [0, 1, 1]], bool)
  groups = np.array([7, 3, 7, 3, 7, 3])
  advantages = np.where(mask, np.array([1.0, 0.0, -3.0, 0.0, 5.0, 0.0])[:, None], 99.0)
  keep = jnp.asarray([True, True, True, True, False, True])
  got = pipo.scaled_advantages(batch(advantages, mask, groups), keep, group=True)
  np.testing.assert_allclose(got, mask * np.array([2 / 4, 0, -6 / 4, 0, 0, 0])[:, None], rtol=1e-6)
  untouched = pipo.scaled_advantages(batch(advantages, mask, groups), keep, group=False)
  np.testing.assert_array_equal(untouched, np.float32(advantages))
  with pytest.raises(AssertionError):  # a scale that counts the row which was taken out
    np.testing.assert_allclose(got,
                               mask * np.array([3 / 9, 0, -9 / 9, 0, 15 / 9, 0])[:, None],
                               rtol=1e-6)
