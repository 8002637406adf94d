"""An anchor between sampler and policy in the loss and in a run's batches (A-3PO)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_batch

from jaxrl_llm.config import (
  BatchConfig,
  ConfigError,
  CorrectionConfig,
  EstimatorConfig,
  LossConfig,
  base_config,
  from_dict,
)
from jaxrl_llm.objective import anchor, loss
from jaxrl_llm.training.batches import optimizer_batches
from jaxrl_llm.training.score import Scores
from jaxrl_llm.wiring import setup

UNBOUNDED = LossConfig(EstimatorConfig("ppo", clip_low=None, clip_high=None, dual_clip=None))
DECOUPLED = dataclasses.replace(UNBOUNDED, correction=CorrectionConfig("token", cap=None))
NARROW = LossConfig(EstimatorConfig("ppo", clip_low=0.05, clip_high=0.05, dual_clip=None))


def batch(share=None):
  """The tiny batch with correction weights 1; with `share`, its anchor is interpolated."""
  sample = tiny_batch.make()
  sample = sample.replace(correction_weights=jnp.ones_like(sample.loss_weights))
  if share is None:
    return sample.replace(anchor_log_probs=sample.rollout.behavior_log_probs)
  return sample.replace(anchor_log_probs=None, columns={
      anchor.SHARE: jnp.full_like(sample.loss_weights, share)})


def gradient(rows, cfg):
  function = lambda params: loss.policy_loss(params, rows, model=tiny_batch.MODEL, cfg=cfg)[0]
  return jax.device_get(jax.jit(jax.grad(function))(tiny_batch.parameters()))


def test_one_version_behind_the_anchor_is_the_sampler():
  tiny_batch.close(gradient(batch(0.0), NARROW), gradient(batch(), NARROW), 1e-5)


def test_ratio_and_correction_make_the_whole_ratio():
  """Without bounds it does not matter where between the two the anchor lies."""
  expected = gradient(batch(), UNBOUNDED)
  tiny_batch.close(gradient(batch(0.6), DECOUPLED), expected, 1e-4)
  with pytest.raises(AssertionError):  # the correction left out
    tiny_batch.close(gradient(batch(0.6), UNBOUNDED), expected, 1e-2)


def test_shares_of_a_run_count_phases_of_updates():
  """Two updates a phase: tokens of this phase's policy, of the one before, and of two before."""
  rows = tiny_batch.rollout()
  steps = jnp.asarray(np.array([8, 6, 4])[np.arange(tiny_batch.LENGTH) % 3], jnp.int32)
  rows = rows.replace(policy_step=jnp.broadcast_to(steps, rows.mask.shape))
  keep = jnp.ones(tiny_batch.ROWS, bool)
  cfg = BatchConfig(group_size=4, parts=2)
  batches, _ = optimizer_batches(rows, jnp.arange(8.0), keep, Scores(step=jnp.int32(8)), cfg=cfg)
  for part in batches:
    np.testing.assert_allclose(part.columns[anchor.SHARE][0, :3], [0, 1 / 2, 2 / 3], rtol=1e-6)
  batches, _ = optimizer_batches(rows, jnp.arange(8.0), keep, Scores(), cfg=cfg)
  assert batches[0].columns is None


@pytest.mark.parametrize("overrides", [
    {"correction.level": "token", "correction.batch_normalize": True},
    {"kl.coef": 0.1, "kl.place": "reward"},
])
def test_what_needs_the_anchor_before_the_updates_is_refused(overrides):
  config = base_config()
  config.update_from_flattened_dict({"updates.anchor": "interpolated", **overrides})
  with pytest.raises(ConfigError, match="anchor=recomputed"):
    setup.resolve(from_dict(config))
