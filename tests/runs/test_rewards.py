"""Shaping of rewards by the length of completions."""

import jax
import numpy as np
import pytest
import smallest
from test_rollout_batch import verdicts

from jaxrl_llm import register, registry
from jaxrl_llm.config import ConfigError, RewardConfig, ShapingConfig
from jaxrl_llm.fields import PluginError
from jaxrl_llm.runs.iteration import iterate
from jaxrl_llm.runs.rewards import reward_parts, shaped
from jaxrl_llm.runs.run_state import first_state
from jaxrl_llm.runs.verdicts import Verdicts
from jaxrl_llm.tasks import rewards
from jaxrl_llm.tasks.rewards import RewardedTask, refuse_if_all_failed, verdict
from jaxrl_llm.types import Reward, Rollout
from jaxrl_llm.wiring.loop import make_loop, make_shaping


def host(lengths, truncated):
  zeros = np.zeros(len(lengths), np.int32)
  return Rollout(None, None, np.asarray(lengths) + 3, zeros + 3, None, np.asarray(truncated),
                 zeros, zeros, zeros, np.arange(len(lengths)) // 2)


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
  rewards, _ = run(name="grpo_lambda", alpha=0.6, fraction=0.5)
  np.testing.assert_array_equal(rewards[:2], [1, 0])  # half right: accuracy first
  assert 1 > rewards[2] > rewards[3] > 0.4


# --- parts of a reward


def judged(*components, keep=None):
  """Verdicts of completions with these components, each a dict."""
  given = [Reward(sum(parts.values()), False, None, tuple(parts.items())) for parts in components]
  keep = np.ones(len(given), bool) if keep is None else np.asarray(keep)
  values = np.array([reward.value for reward in given], np.float32)
  return Verdicts(values, values > 0, keep, [""] * len(given), given), keep


def test_parts_are_the_components_by_name():
  parts = reward_parts(*judged({"b": 2.0, "a": 1.0}, {}, {"a": 3.0, "b": 4.0},
                               keep=[True, False, True]))
  np.testing.assert_array_equal(parts, [[1, 2], [0, 0], [3, 4]])
  np.testing.assert_array_equal(reward_parts(verdicts([1, 0.5]), np.ones(2, bool)), [[1], [0.5]])
  with pytest.raises(ConfigError, match=r"a, b against a, c.*the same components"):
    reward_parts(*judged({"a": 1.0, "b": 0.0}, {"a": 1.0, "c": 0.0}))


def two_iterations(scale: float, advantage: str):
  """Parameters of a run whose reward has a part that is multiplied by `scale`."""
  rewards.register("short", replace=True)(
      lambda problem, completion, cfg: {"short": scale * (completion[:1] < "5")})
  parts = smallest.built(**{"rollout.prompts": 8, "rollout.max_new_tokens": 3, "rollout.window": 3,
                            "reward.name": "task,short", "advantage.name": advantage})
  start = smallest.start_of(parts)
  run, loop = first_state(parts.learner, start), make_loop(*parts)
  for iteration in (1, 2):
    run, *_ = iterate(loop, run, None, iteration)
  return jax.device_get(run.state.params)


def largest_change(advantage: str) -> float:
  trees = [two_iterations(scale, advantage) for scale in (1.0, 100.0)]
  return max(float(np.max(np.abs(a - b))) for a, b in zip(*map(jax.tree.leaves, trees),
                                                          strict=True))


@pytest.mark.slow
def test_a_part_times_a_hundred_changes_a_run_of_gdpo_by_rounding_only():
  assert largest_change("gdpo") < 1e-4
  assert largest_change("dr_grpo") > 1e-3


def leave(*_):
  raise SystemExit(0)


def fail(*_):
  raise RuntimeError("first line\nsecond line")


@pytest.fixture
def enter_shaping():
  """Enters a shaping, and a reward of the same name, for one test."""
  yield lambda function: register.shaping("own", replace=True)(function)
  for table in (registry.SHAPINGS, registry.REWARDS):
    table.entries.pop("own", None)


@pytest.mark.parametrize("function, text", [
    (lambda *_: None, "returned None; 4 rewards"),
    (lambda rewards, *_: rewards[:1], r"shape \[1\]"),
    (lambda rewards, *_: rewards * 1j, "complex"),
    (lambda *_: ["a"] * 4, "<U1"),
    (lambda rewards, *_: rewards * np.nan, "nan for row 0 of 4"),
    (lambda rewards, *_: rewards.astype(np.float64) + 1e308, "e.308 for row 0"),
    (leave, "SystemExit: 0"),
    (fail, "RuntimeError: first line$"),
], ids=["none", "short", "complex", "text", "nan", "huge", "exit", "raises"])
def test_a_shaping_that_returns_no_rewards_is_one_line(enter_shaping, function, text):
  enter_shaping(function)
  with pytest.raises(PluginError, match=rf"shaping 'own' \(.*test_rewards.py.*{text}"):
    shaped(verdicts([1, 0, 1, 1]), host([10, 6, 8, 10], [False] * 4),
           make_shaping(ShapingConfig("own"), 10))


def test_rows_left_out_may_have_any_reward(enter_shaping):
  enter_shaping(lambda rewards, *_: np.where([True, False, True, True], [2, 0, 3, 4], np.nan))
  given = verdicts([1, 0, 1, 1], [True, False, True, True])
  rewards, _ = shaped(given, host([10, 6, 8, 10], [False] * 4),
                      make_shaping(ShapingConfig("own"), 10))
  np.testing.assert_array_equal(rewards, [2, 0, 3, 4])


def test_a_batch_of_which_nothing_was_scored_ends_the_run(enter_shaping):
  register.reward("own", replace=True)(fail)
  failed = Reward(0.0, False, "RuntimeError: first line")
  task = RewardedTask(None, RewardConfig("own"))
  with pytest.raises(PluginError, match=r"reward 'own' \(.*all 2 completions .* first line"):
    refuse_if_all_failed(task, [failed, failed])
  refuse_if_all_failed(task, [failed, Reward(1.0, True)])
  refuse_if_all_failed(object(), [failed, failed])  # the task's own verdicts


@pytest.mark.parametrize("value", [1e308, -1e39, 10**400, {"a": (1e30, 1e30)},
                                   {"a": 3e38, "b": 3e38}])
def test_a_reward_beyond_float32_is_none(value):
  with pytest.raises(ValueError, match="not finite in float32"):
    verdict("own", value)
