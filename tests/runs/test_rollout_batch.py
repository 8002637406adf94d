"""Groups dropped and sampled again, with a sampler and a task made of tables."""

import dataclasses
import types

import jax
import numpy as np
import pytest

from jaxrl_llm import parallel
from jaxrl_llm.config import Config, DynamicSamplingConfig, MeshConfig, RolloutConfig
from jaxrl_llm.runs import dynamic_sampling
from jaxrl_llm.runs.dynamic_sampling import DriedUpError, group_kinds, sample_batch
from jaxrl_llm.runs.rollout_batch import RolloutBatch, dispatch, verify_batch
from jaxrl_llm.runs.verdicts import Verdicts
from jaxrl_llm.types import Problem, Reward, Rollout, Sampling
from jaxrl_llm.wiring.loop import make_source
from jaxrl_llm.wiring.sampler import Sampler

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


def config(enabled=True, max_draws=3) -> Config:
  return Config(
      rollout=RolloutConfig(prompts=3, group_size=GROUP, max_prompt_tokens=2, max_new_tokens=2),
      dynamic_sampling=DynamicSamplingConfig(enabled, max_draws))


def table_sample(params, prompts, key, sampling):
  return rollout_of(prompts), {"rollout/of_tests": 1.0}


def sampler(sample=table_sample, prepare=lambda params: params) -> Sampler:
  mesh = parallel.make_mesh(MeshConfig(), jax.devices()[:1])
  return Sampler(Sampling.of(1.0), mesh, mesh, None, prepare, sample, prepare, None)


def sampled(cfg=None, backend=None, params=None, step=0) -> RolloutBatch:
  return sample_batch(
      make_source(cfg or config(), TableTask(), backend or sampler()), params, step, 1)


def test_constant_and_unscored_groups_are_sampled_again():
  """Batch 1 leaves one group, batch 2 none, batch 3 three, of which two are taken."""
  batch = sampled(step=11)
  assert [p.prompt for p in batch.problems] == ["1.1", "3.0", "3.1"]
  np.testing.assert_array_equal(batch.verdicts.rewards, [0, 1, 1, 0, 0, 1])
  np.testing.assert_array_equal(batch.host.row_id, [8, 9, 18, 19, 20, 21])  # cursor * rows + row
  np.testing.assert_array_equal(batch.rollout.row_id, batch.host.row_id)
  group_id = batch.host.group_id.reshape(-1, GROUP)
  assert (group_id[:, 0] == group_id[:, 1]).all() and len(set(group_id[:, 0])) == 3
  np.testing.assert_array_equal(batch.host.policy_step, np.where(batch.host.mask, 11, 0))
  assert batch.cursor == 4
  assert batch.metrics["dynamic_sampling/draws"] == 3.0 and batch.metrics["rollout/of_tests"] == 1.0
  np.testing.assert_allclose(batch.metrics["dynamic_sampling/kept_groups"], 4 / 9)
  of_kept_rows = np.sum(batch.host.length - batch.host.prompt_length)
  assert batch.metrics["dynamic_sampling/tokens"] == 3 * of_kept_rows  # of 3 batches, not of 1


def test_the_samplers_metrics_speak_of_all_batches():
  """Three batches fill up: counts and seconds add up, ratios are averaged."""
  each = [{"tool/calls": calls, "time/tools": calls / 4, "rollout/chunks": 2 * calls,
           "rollout/wasted_slots": waste}
          for calls, waste in ((4.0, 0.5), (2.0, 0.25), (8.0, 0.75))]
  given = iter(each)
  metrics = sampled(
      backend=sampler(lambda _, prompts, *__: (rollout_of(prompts), next(given)))).metrics
  assert next(given, None) is None
  expected = {"tool/calls": 14.0, "time/tools": 3.5, "rollout/chunks": 28.0,
              "rollout/wasted_slots": 0.5}
  assert {name: metrics[name] for name in expected} == expected
  assert "time/verify" not in metrics
  assert not expected.items() & each[-1].items(), "the last batch's numbers would pass too"


def test_parameters_are_prepared_once_for_all_batches():
  """Rounding and moving them is work: three batches read the same ones."""
  moved, read = [], []

  def prepare(params):
    moved.append(params)
    return "there"

  def sample(params, prompts, key, sampling):
    read.append(params)
    return rollout_of(prompts), {}

  batch = sampled(backend=sampler(sample, prepare), params="here")
  assert batch.metrics["dynamic_sampling/draws"] == 3.0
  assert moved == ["here"] and read == ["there"] * 3


def test_dry_sampling_says_why():
  with pytest.raises(DriedUpError) as error:
    sampled(config(max_draws=2))
  for text in ("1 of 6 groups in 2 draws", "rollout.prompts = 3", "33 % constant and right",
               "33 % constant and wrong", "17 % unscored", "dynamic_sampling.max_draws"):
    assert text in str(error.value)


def test_without_dynamic_sampling_everything_is_kept():
  batch = sampled(config(enabled=False))
  assert [p.prompt for p in batch.problems] == ["1.0", "1.1", "1.2"] and batch.cursor == 2


def test_rows_are_on_the_device_before_any_is_verified():
  """So that scoring overlaps with verification; verifying copies them and keeps the same arrays."""
  cfg, task, asked = config(enabled=False), TableTask(), []
  task.rewards = lambda problems, texts: asked.append(problems) or TableTask().rewards(
      problems, texts)
  source = make_source(cfg, task, sampler())
  dispatched = dispatch(source, None, 0, 1)
  assert dispatched.rollout.tokens.shape == (6, 4) and not asked
  batch = verify_batch(source, dispatched)
  assert batch.rollout is dispatched.rollout and len(asked) == 1


def verdicts(rewards, keep=None):
  rewards = np.asarray(rewards, np.float32)
  keep = np.ones(len(rewards), bool) if keep is None else np.asarray(keep, bool)
  return Verdicts(rewards, rewards == 1, keep, [""] * len(rewards),
                  [Reward(float(r), r == 1) for r in rewards])


def test_kinds_of_groups():
  given = verdicts([1, 1, 0, 0, 1, 0, 1, 0], [1, 1, 1, 1, 1, 1, 1, 0])
  expected = ["ALL_RIGHT", "ALL_WRONG", "MIXED", "UNSCORED"]
  np.testing.assert_array_equal(
      group_kinds(given, 2), [getattr(dynamic_sampling, kind) for kind in expected])
