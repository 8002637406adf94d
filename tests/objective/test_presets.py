"""Presets: every one is a whole configuration, names what it uses, and keeps what it promises."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm import presets
from jaxrl_llm.config import Config, EstimatorConfig, base_config, from_dict, to_dict
from jaxrl_llm.objective import correction, estimators
from jaxrl_llm.runs.rewards import shaped
from jaxrl_llm.runs.verdicts import Verdicts
from jaxrl_llm.types import Reward, Rollout
from jaxrl_llm.wiring.loop import make_shaping

COMPONENTS = {
    "estimator", "advantage", "aggregation", "correction", "critic", "kl", "vocabulary", "shaping",
    "dynamic_sampling", "transform", "updates", "parameters"
}


def configured(name) -> Config:
  return from_dict(presets.apply(base_config(), name))


def flat(tree, prefix=""):
  for key, item in tree.items():
    yield from flat(item, f"{prefix}{key}.") if isinstance(item, dict) else [(prefix + key, item)]


@pytest.mark.parametrize("name", presets.PRESETS)
def test_sets_components_and_nothing_else(name):
  cfg = configured(name)
  before, after = dict(flat(to_dict(Config()))), dict(flat(to_dict(cfg)))
  changed = {key for key in before if before[key] != after[key]}
  assert changed <= set(presets.PRESETS[name])
  assert {key.split(".")[0] for key in presets.PRESETS[name]} <= COMPONENTS
  assert not {"updates.optimizer_batches", "updates.micro_batches"} & set(presets.PRESETS[name])
  assert {"estimator.name", "advantage.name", "aggregation.name"} <= set(presets.PRESETS[name])
  assert from_dict(to_dict(cfg)) == cfg and hash(cfg) is not None


def test_no_two_are_the_same():
  recipes = [repr(configured(name)) for name in presets.PRESETS]
  assert len(set(recipes)) == len(recipes)


def test_published_numbers():
  for name in ("dapo", "tempo"):
    estimator = configured(name).estimator
    assert (estimator.clip_low, estimator.clip_high) == (0.2, 0.28)
  assert configured("ctpo").correction.level == "sequence"
  assert configured("ctpo").correction.cap == 5.0
  assert configured("luspo").estimator.clip_high == 2.5e-3
  assert configured("trm").correction.reject == (("seq_max_k3", None, 0.1),)
  assert math.isclose(math.log(configured("dvp").vocabulary.min_p), -13)
  # minpro is bounded as cispo; its default is not.
  minpro, cispo = configured("minpro").estimator, configured("cispo").estimator
  assert (minpro.clip_low, minpro.clip_high) == (cispo.clip_low, cispo.clip_high) == (None, 4.0)
  default = estimators.resolve(EstimatorConfig("minpro"))
  assert (default.clip_low, default.clip_high) == (None, None)


def check_masks_above_five(cfg):
  """Ratios anchor / behavior of 0.01, 1, 4.9 and 5.1: the last has no weight."""
  anchor = jnp.log(jnp.asarray([[0.01, 1.0, 4.9, 5.1]]))
  weights, metrics = correction.correction_weights(anchor, jnp.zeros((1, 4)),
                                                   jnp.ones((1, 4), bool), cfg)
  np.testing.assert_allclose(weights, [[0.01, 1.0, 4.9, 0.0]], rtol=1e-5)
  assert float(metrics["correction/truncated"].total) == 1


def test_decoupled_ppo_masks_and_does_not_truncate():
  cfg = configured("decoupled_ppo").correction
  check_masks_above_five(cfg)
  with pytest.raises(AssertionError):
    check_masks_above_five(dataclasses.replace(cfg, low=None))


def test_topr_has_a_negative_side():
  """The advantage is the reward itself, 1 or -1; an unscored row has neither."""
  cfg = configured("topr")
  assert cfg.advantage.name == "none"
  keep = np.array([True, True, True, False])
  given = np.array([1, 0, 0.3, 0], np.float32)
  verdicts = Verdicts(given, given > 0, keep, [""] * 4, [Reward(float(r), r > 0) for r in given])
  zeros = np.zeros(4, np.int32)
  rows = Rollout(None, None, zeros + 5, zeros + 3, None, zeros > 0, zeros, zeros, zeros,
                 np.array([0, 0, 1, 1]))
  rewards, kept = shaped(verdicts, rows, make_shaping(cfg.shaping, 4))
  np.testing.assert_array_equal(rewards, [1, -1, 1, 0])
  np.testing.assert_array_equal(kept, keep)
  plain, _ = shaped(verdicts, rows, make_shaping(Config().shaping, 4))
  assert not np.array_equal(plain, rewards)
