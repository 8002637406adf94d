"""Shaping of rewards by the length of completions."""

import numpy as np

from jaxrl_llm.build.loop import make_shaping
from jaxrl_llm.config import ShapingConfig
from jaxrl_llm.runs.rewards import shaped
from jaxrl_llm.runs.verdicts import Verdicts
from jaxrl_llm.types import Reward, Rollout


def verdicts(rewards, keep=None):
  rewards = np.asarray(rewards, np.float32)
  keep = np.ones(len(rewards), bool) if keep is None else np.asarray(keep, bool)
  return Verdicts(rewards, rewards == 1, keep, [""] * len(rewards),
                  [Reward(float(r), r == 1) for r in rewards])


def host(lengths, truncated):
  rows = len(lengths)
  zeros = np.zeros(rows, np.int32)
  return Rollout(None, None,
                 np.asarray(lengths) + 3, zeros + 3, None, np.asarray(truncated), zeros, zeros,
                 zeros,
                 np.arange(rows) // 2)


def test_shaping_by_hand():
  given, rows = verdicts([1, 0, 1, 1]), host([10, 6, 8, 10], [True, False, False, True])
  run = lambda **k: shaped(given, rows, make_shaping(ShapingConfig(**k), 10))
  np.testing.assert_array_equal(run()[0], [1, 0, 1, 1])
  rewards, keep = run(overlong_buffer=4, overlong_factor=2.0)
  # -2 at the limit of 10, -1 half way through the buffer
  np.testing.assert_allclose(rewards, [-1, 0, 0, -1])
  assert keep.all()
  rewards, keep = run(mask_truncated=True)
  np.testing.assert_array_equal(keep, [False, True, True, False])
  np.testing.assert_array_equal(rewards, [0, 0, 1, 0])


def test_grpo_lambda_penalises_length_in_the_most_accurate_groups():
  given, rows = verdicts([1, 0, 1, 1]), host([10, 6, 8, 10], [False] * 4)
  rewards, _ = shaped(given, rows, make_shaping(
      ShapingConfig("grpo_lambda", alpha=0.6, fraction=0.5), 10))
  np.testing.assert_array_equal(rewards[:2], [1, 0])  # half right: accuracy first
  assert 1 > rewards[2] > rewards[3] > 0.4
