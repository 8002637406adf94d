"""Groups dropped and drawn again, and the shaping of rewards; with a sampler and a task made of
tables.
"""

import dataclasses
import types

import jax
import numpy as np
import pytest

from jaxrl_llm import parallel
from jaxrl_llm.config import Config, DynamicSamplingConfig, MeshConfig, RolloutConfig, ShapingConfig
from jaxrl_llm.runs import draw as draw_lib
from jaxrl_llm.runs.collect import Verdicts
from jaxrl_llm.types import Problem, Reward, Rollout

GROUP = 2
# Rewards of each task batch's groups; None: unscored.
TABLE = {1: [(1, 1), (0, 1), (0, 0)], 2: [(0, 0), (None, 1), (1, 1)], 3: [(1, 0), (0, 1), (1, 0)]}


def rollout_of(prompts):
  rows, width = prompts.tokens.shape
  length = np.asarray(prompts.prompt_length) + 1 + np.arange(rows) % 2
  tokens = np.zeros((rows, width + 2), np.int32)
  mask = (np.arange(width + 2) >= 1) & (np.arange(width + 2) < length[:, None])
  zeros = np.zeros(rows, np.int32)
  return Rollout(tokens, mask, length.astype(np.int32), np.asarray(prompts.prompt_length),
                 mask * -1.0,
                 np.arange(rows) % 2 == 1, zeros, zeros, np.asarray(prompts.row_id),
                 np.asarray(prompts.group_id))


@dataclasses.dataclass
class TableTask:
  tokenizer: object = dataclasses.field(default_factory=lambda: types.SimpleNamespace(
      pad_token_id=0, decode=lambda ids: ""))

  def batch(self, index):
    return [Problem(f"{index}.{group}", "") for group in range(3)]

  def render(self, problem):
    return [5]

  def rewards(self, problems, completions):
    out = []
    for i, problem in enumerate(problems):
      index, group = map(int, problem.prompt.split("."))
      value = TABLE[index][group][i % GROUP]
      out.append(
          Reward(0.0, False, "timeout") if value is None else Reward(float(value), value == 1))
    return out


def parts(enabled=True, max_draws=3):
  cfg = Config(
      rollout=RolloutConfig(prompts=3, group_size=GROUP, max_prompt_tokens=2, max_new_tokens=2),
      dynamic_sampling=DynamicSamplingConfig(enabled, max_draws))
  mesh = parallel.make_mesh(MeshConfig(), jax.devices()[:1])
  return types.SimpleNamespace(
      cfg=cfg, mesh=mesh, task=TableTask(), tokenizer=TableTask().tokenizer, sampling=None,
      to_sampler=lambda params: params, sample=lambda params, prompts, *_: (rollout_of(prompts), {
          "rollout/of_tests": 1.0
      }))


def test_constant_and_unscored_groups_are_drawn_again():
  """Batch 1 leaves one group, batch 2 none, batch 3 three: two of them fill up, the third is
  dropped.
  """
  drawn = draw_lib.draw(parts(), None, 11, 1)
  assert [p.prompt for p in drawn.problems] == ["1.1", "3.0", "3.1"]
  np.testing.assert_array_equal(drawn.verdicts.rewards, [0, 1, 1, 0, 0, 1])
  np.testing.assert_array_equal(drawn.host.row_id, [8, 9, 18, 19, 20, 21])  # cursor * rows + row
  np.testing.assert_array_equal(drawn.rollout.row_id, drawn.host.row_id)
  np.testing.assert_array_equal(drawn.host.policy_step, 11)
  assert drawn.cursor == 4
  assert drawn.metrics["dynamic_sampling/draws"] == 3.0 and drawn.metrics["rollout/of_tests"] == 1.0
  np.testing.assert_allclose(drawn.metrics["dynamic_sampling/kept_groups"], 4 / 9)


def test_rows_of_a_group_stay_together():
  ids = draw_lib.draw(parts(), None, 0, 1).host.group_id.reshape(-1, GROUP)
  assert (ids[:, 0] == ids[:, 1]).all() and len(set(ids[:, 0])) == 3


def test_the_samplers_metrics_speak_of_all_draws():
  """Three draws fill the batch: counts and seconds add up, ratios are averaged."""
  made = parts()
  each = [{
      "tool/calls": calls,
      "time/tools": calls / 4,
      "rollout/chunks": 2 * calls,
      "rollout/wasted_slots": waste
  } for calls, waste in ((4.0, 0.5), (2.0, 0.25), (8.0, 0.75))]
  given = iter(each)
  made.sample = lambda params, prompts, *_: (rollout_of(prompts), next(given))
  found = draw_lib.draw(made, None, 0, 1).metrics
  assert next(given, None) is None
  expected = {
      "tool/calls": 14.0,
      "time/tools": 3.5,
      "rollout/chunks": 28.0,
      "rollout/wasted_slots": 0.5
  }
  assert {name: found[name] for name in expected} == expected
  assert not expected.items() & each[-1].items(), "the last draw's numbers would pass too"


def test_parameters_go_to_the_sampler_once_for_all_draws():
  """Rounding and moving them is work: three draws read the same ones."""
  made, moved, read = parts(), [], []
  made.to_sampler = lambda params: moved.append(params) or "there"
  made.sample = lambda params, prompts, *_: read.append(params) or (rollout_of(prompts), {})
  assert draw_lib.draw(made, "here", 0, 1).metrics["dynamic_sampling/draws"] == 3.0
  assert moved == ["here"] and read == ["there"] * 3


def test_dry_sampling_says_why():
  with pytest.raises(draw_lib.DriedUpError) as error:
    draw_lib.draw(parts(max_draws=2), None, 0, 1)
  for text in ("1 of 6 groups in 2 draws", "rollout.prompts = 3", "33 % constant and right",
               "33 % constant and wrong", "17 % unscored", "dynamic_sampling.max_draws"):
    assert text in str(error.value)


def test_without_dynamic_sampling_everything_is_kept_and_scoring_overlaps():
  seen = []
  drawn = draw_lib.draw(parts(enabled=False), None, 0, 1, seen.append)
  assert [p.prompt for p in drawn.problems] == ["1.0", "1.1", "1.2"] and drawn.cursor == 2
  assert len(seen) == 1 and seen[0] is drawn.rollout


def verdicts(rewards, keep=None):
  rewards = np.asarray(rewards, np.float32)
  keep = np.ones(len(rewards), bool) if keep is None else np.asarray(keep, bool)
  return Verdicts(rewards, rewards == 1, keep, [""] * len(rewards),
                  [Reward(float(r), r == 1) for r in rewards])


def test_kinds_of_groups():
  given = verdicts([1, 1, 0, 0, 1, 0, 1, 0], [1, 1, 1, 1, 1, 1, 1, 0])
  np.testing.assert_array_equal(draw_lib.group_kinds(
      given, 2), [draw_lib.ALL_RIGHT, draw_lib.ALL_WRONG, draw_lib.MIXED, draw_lib.UNSCORED])


def host(lengths, truncated):
  rows = len(lengths)
  zeros = np.zeros(rows, np.int32)
  return Rollout(None, None,
                 np.asarray(lengths) + 3, zeros + 3, None, np.asarray(truncated), zeros, zeros,
                 zeros,
                 np.arange(rows) // 2)


def test_shaping_by_hand():
  given, rows = verdicts([1, 0, 1, 1]), host([10, 6, 8, 10], [True, False, False, True])
  run = lambda **k: draw_lib.shaped(given, rows, ShapingConfig(**k), 10)
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
  rewards, _ = draw_lib.shaped(given, rows, ShapingConfig("grpo_lambda", alpha=0.6, fraction=0.5),
                               10)
  np.testing.assert_array_equal(rewards[:2], [1, 0])  # half right: accuracy first
  assert 1 > rewards[2] > rewards[3] > 0.4
