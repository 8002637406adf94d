"""Presets: every one is a whole configuration, names what it uses, and keeps what it promises."""

import math

import pytest

from jaxrl_llm import presets
from jaxrl_llm.config import Config, ConfigError, base_config, from_dict, to_dict
from jaxrl_llm.objective import correction, estimators

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


@pytest.mark.parametrize("name", presets.PRESETS)
def test_can_be_computed(name):
  """Its numbers are read, its rules are rules, and no ratio against the behavior policy is counted
  twice.
  """
  cfg = configured(name)
  estimators.resolve(cfg.estimator)
  correction.check(cfg.correction)
  anchor = estimators.spec(
      cfg.estimator.name).anchor if cfg.updates.anchor == "default" else cfg.updates.anchor
  corrects = cfg.correction.level != "none" or cfg.correction.reject
  assert not (corrects and anchor == "behavior")


def test_no_two_are_the_same():
  recipes = [repr(configured(name)) for name in presets.PRESETS]
  assert len(set(recipes)) == len(recipes)


def test_published_numbers():
  assert (configured("dapo").estimator.clip_low, configured("dapo").estimator.clip_high) == (0.2,
                                                                                             0.28)
  assert configured("ctpo").correction.level == "sequence" and configured(
      "ctpo").correction.cap == 5.0
  assert configured("luspo").estimator.clip_high == 2.5e-3
  assert (configured("tempo").estimator.clip_low, configured("tempo").estimator.clip_high) == (0.2,
                                                                                               0.28)
  assert configured("trm").correction.reject == (("seq_max_k3", None, 0.1),)
  assert math.isclose(math.log(configured("dvp").vocabulary.min_p), -13)
  with pytest.raises(ConfigError, match="'grop': known are reinforce"):
    presets.apply(base_config(), "grop")
