"""Advantages of planted rows under a policy whose adapters were trained."""

import dataclasses

import numpy as np
import pytest

from experiments.papers.arca import planted_adapter
from experiments.papers.arca.residual import COLUMN
from experiments.tables_lib import planted
from experiments.tables_lib.planted import GOOD, Planted
from jaxrl_llm.config import AdvantageConfig

EXACT = AdvantageConfig("gae", lam=0.0, whiten=False)
TRAINED = planted_adapter.AdapterTraining(rank=4, updates=20, group_size=8)


def test_without_updates_the_adapter_changes_nothing():
  case = Planted(seed=1)
  scored = planted_adapter.train(case, dataclasses.replace(TRAINED, updates=0), 0)
  np.testing.assert_allclose(scored.probs, planted.policy(case), atol=1e-6)
  np.testing.assert_array_equal(scored.columns[COLUMN], 0)
  same = [planted.landing(case, AdvantageConfig(name), planted.Groups(8, 50, 0), scored=scored)
          for name in ("arca", "grpo")]
  assert same[0] == same[1]


def test_the_adapter_learns_the_decisive_token_and_the_exact_advantage_follows():
  case = Planted(seed=1)
  scored = planted_adapter.train(case, TRAINED, 0)
  assert scored.probs[case.position, GOOD] > 0.7
  np.testing.assert_allclose(scored.probs.sum(1), 1)
  even = planted_adapter.train(case, dataclasses.replace(TRAINED, rank=16), 0).columns[COLUMN]
  assert np.argmax(even) == case.position, "rank 16 can tell the positions apart"
  landing = planted.landing(case, EXACT, planted.Groups(8, 50, 0), scored=scored)
  assert landing.alignment == pytest.approx(1.0, abs=1e-5)
  # What this rejects: exact values of the policy before its training.
  other = dataclasses.replace(scored, probs=planted.policy(case))
  values = planted.state_values(dataclasses.replace(case, good=scored.probs[case.position, GOOD]))
  assert abs(values[0, 0] - planted.state_values(case)[0, 0]) > 0.2
  assert planted.landing(case, EXACT, planted.Groups(8, 50, 0), scored=other) != landing


def test_entropy_and_residual_reach_the_advantage():
  case = Planted(seed=1)
  scored = planted_adapter.train(case, TRAINED, 0)
  only = np.where(np.arange(case.length) == case.position, 1.0, 0.0)
  arca = AdvantageConfig("arca")
  landing = planted.landing(case, arca, planted.Groups(8, 50, 0),
                            scored=dataclasses.replace(scored, columns={COLUMN: only}))
  assert landing.share == pytest.approx(1.0, abs=1e-5)
  drop = planted.landing(case, AdvantageConfig("arca", signal="entropy_drop"),
                         planted.Groups(8, 50, 0), scored=scored)
  entropy = -np.sum(scored.probs * np.log(np.where(scored.probs > 0, scored.probs, 1)), 1)
  drops = np.maximum(entropy[:-1] - entropy[1:], 0)
  np.testing.assert_allclose(drop.by_position[1:], drops / drops.sum(), rtol=1e-4)


@pytest.mark.parametrize("case, cfg, message", [
    (Planted(repair=0.1), TRAINED, "repair=0"),
    (Planted(), dataclasses.replace(TRAINED, width=11), "need 12 or more")])
def test_training_refuses(case, cfg, message):
  with pytest.raises(ValueError, match=message):
    planted_adapter.train(case, cfg, 0)
