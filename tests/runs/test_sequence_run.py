"""A run whose rows are divided over devices is the run on one device, up to rounding."""


import jax
import numpy as np
import pytest
from smallest import start_of
from test_overlap import built, from_the_start

from jaxrl_llm import parallel
from jaxrl_llm.config import ConfigError
from jaxrl_llm.rollouts.next_token import Draw
from jaxrl_llm.runs.evaluate import sample_rows
from jaxrl_llm.types import PromptBatch

SERIAL = {"updates.overlap": False, "updates.staleness": 0, "model.num_heads": 4,
          "model.num_kv_heads": 2}
MESH = {"mesh.fsdp": 2, "mesh.sequence": 2}


def without_sizes(values: dict) -> dict:
  """The host values, but for those that depend on the sizes of the engine's batches."""
  return {name: x for name, x in values.items()
          if name not in ("rollout/wasted_slots", "rollout/chunks", "rollout/cache_read")}


@pytest.mark.slow
def test_a_divided_row_changes_nothing():
  divided, plain = built(4, **SERIAL | MESH), built(1, **SERIAL)
  assert dict(divided.learner.mesh.shape) == {"data": 1, "fsdp": 2, "sequence": 2, "tensor": 1}
  assert dict(divided.sampler.rollout_mesh.shape) == {"data": 1, "fsdp": 4, "sequence": 1,
                                                      "tensor": 1}
  assert not parallel.apart(divided.sampler.rollout_mesh, divided.learner.mesh)
  for (tree, _, rows, values), (tree_, _, rows_, values_) in zip(
      from_the_start(divided), from_the_start(plain), strict=True):
    assert [row["tokens"].tolist() for row in rows] == [row["tokens"].tolist() for row in rows_]
    assert without_sizes(values) == pytest.approx(without_sizes(values_), rel=1e-3, abs=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
                 tree["train"].params, tree_["train"].params)


@pytest.mark.parametrize("overrides, texts", [
    ({"rollout.max_prompt_tokens": 5}, ["mesh.sequence = 2", "9 tokens", "max_prompt_tokens=6"]),
    ({"model.num_kv_heads": 1}, ["mesh.sequence * mesh.tensor = 2", "1 kv-heads", "divides 1"]),
    ({"rollout.prompts": 2, "rollout.group_size": 3, "updates.optimizer_batches": 1},
     ["rows of an iteration = 6", "mesh.data * mesh.fsdp * mesh.sequence = 4", "multiple of 4"]),
    ({"mesh.sequence": 4}, ["mesh.sequence = 4", "make 8 devices, but there are 4"]),
])
def test_refused_with_the_fix(overrides, texts):
  with pytest.raises(ConfigError) as error:
    built(4, **SERIAL | MESH | overrides)
  assert all(text in str(error.value) for text in texts), error.value


# --- samples of one held-out problem share its prompt, and are what they would be by themselves

SAMPLES = 4


def sampled(of, prompts, group_size):
  return sample_rows(of.sampler, start_of(of).params, prompts,
                     Draw(jax.random.key(1), of.sampler.sampling), piece=6, group_size=group_size)


def prompts_of(firsts):
  """Rows that begin with these tokens and differ in nothing else but their ids."""
  at = np.arange(len(firsts), dtype=np.int32)
  tokens = np.stack([np.asarray(firsts, np.int32), *np.full((3, len(firsts)), 5, np.int32)], 1)
  return PromptBatch(tokens, np.full(len(firsts), 4, np.int32), at, at)


@pytest.mark.parametrize(("devices", "slots"), [
    (1, 0), (1, 8), pytest.param(4, 8, marks=pytest.mark.slow)])
def test_groups_change_no_token(devices, slots):
  parts = built(devices, **SERIAL | {"rollout.slots": slots})
  prompts = prompts_of(np.repeat([3, 4, 5, 6, 7], SAMPLES))
  alone, together = sampled(parts, prompts, 1), sampled(parts, prompts, SAMPLES)
  np.testing.assert_array_equal(together.tokens, alone.tokens)
  np.testing.assert_allclose(together.behavior_log_probs, alone.behavior_log_probs, atol=5e-5)
  assert len({tuple(row) for row in alone.tokens.tolist()}) > SAMPLES


def test_rows_of_other_prompts_are_no_group():
  parts = built(1, **SERIAL)
  prompts = prompts_of(np.tile([3, 4, 5, 6, 7], SAMPLES))
  alone, mixed = sampled(parts, prompts, 1), sampled(parts, prompts, SAMPLES)
  assert (mixed.behavior_log_probs != alone.behavior_log_probs).any()
