"""Samples of one held-out problem share its prompt, and are what they would be by themselves."""

import jax
import numpy as np
import pytest
from smallest import start_of
from test_overlap import built

from jaxrl_llm.rollouts.next_token import Draw
from jaxrl_llm.runs.evaluate import sample_rows
from jaxrl_llm.types import PromptBatch

SERIAL = {"updates.overlap": False, "updates.staleness": 0}
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
  made = built(devices, **SERIAL | {"rollout.slots": slots})
  prompts = prompts_of(np.repeat([3, 4, 5, 6, 7], SAMPLES))
  alone, together = sampled(made, prompts, 1), sampled(made, prompts, SAMPLES)
  np.testing.assert_array_equal(together.tokens, alone.tokens)
  np.testing.assert_allclose(together.behavior_log_probs, alone.behavior_log_probs, atol=5e-5)
  assert len({tuple(row) for row in alone.tokens.tolist()}) > SAMPLES


def test_rows_of_other_prompts_are_no_group():
  made = built(1, **SERIAL)
  prompts = prompts_of(np.tile([3, 4, 5, 6, 7], SAMPLES))
  alone, mixed = sampled(made, prompts, 1), sampled(made, prompts, SAMPLES)
  assert (mixed.behavior_log_probs != alone.behavior_log_probs).any()
