"""Walks of known value: the recursion against a list of all responses, and the engine's samples."""

import dataclasses
import functools
import itertools

import jax
import numpy as np

from experiments.papers.tvm import walks
from jaxrl_llm.config import SamplerConfig
from jaxrl_llm.rollouts import generate
from jaxrl_llm.types import PromptBatch, Sampling

CASE = walks.Walk(steps=3, bias=0.5)


def listed(case, prompt):
  """(rows, probability) of all responses to a prompt."""
  probs, rows, chance = walks.step_probabilities(case), [], []
  for digits in itertools.product(range(10), repeat=case.steps):
    total = (prompt[2:].sum() + sum(digits)) % 10
    of_digits = np.prod([probs[n, digit] for n, digit in enumerate(digits)])
    for stated in range(10):
      rows.append([*prompt, *digits, walks.EQUALS, stated, walks.END])
      chance.append(of_digits * (1 - case.slip if stated == total else case.slip / 9))
  return np.array(rows), np.array(chance)


def agrees(case, values) -> bool:
  rows, chance = listed(case, walks.prompts(True)[7])
  assert np.isclose(chance.sum(), 1)
  right, estimates = rows[:, -2] == rows[0, 1], values(case, rows)
  for column in range(walks.PROMPT - 1, rows.shape[1]):
    for row in range(0, len(rows), 997):
      same = (rows[:, :column + 1] == rows[row, :column + 1]).all(1)
      exact = (chance * right)[same].sum() / chance[same].sum()
      if not np.isclose(estimates[row, column], exact, atol=1e-12):
        return False
  return np.isnan(estimates[:, :walks.PROMPT - 1]).all()


def test_values_are_those_of_the_list_of_all_responses():
  assert agrees(CASE, walks.exact_values)
  never_slips = lambda case, rows: walks.exact_values(dataclasses.replace(case, slip=0.0), rows)
  of_the_state_before = lambda case, rows: np.roll(walks.exact_values(case, rows), 1, 1)
  assert not agrees(CASE, never_slips) and not agrees(CASE, of_the_state_before)


def test_a_score_is_the_value_after_the_last_token():
  rows, _ = listed(CASE, walks.prompts(True)[7])
  values = walks.exact_values(CASE, rows)
  cut = [row[:walks.PROMPT + n].tolist() for n, row in enumerate(rows[1234:1240])]
  np.testing.assert_array_equal(walks.exact_score(CASE, cut), [
      values[1234 + n, walks.PROMPT + n - 1] for n in range(6)])


def test_halves_of_the_prompts_share_none():
  halves = [set(map(tuple, walks.prompts(held_out))) for held_out in (False, True)]
  assert not halves[0] & halves[1] and len(halves[0] | halves[1]) == 1040


def test_the_engine_samples_the_stated_probabilities():
  """Shares of the digits, and of right answers for each missing rest, within 4 standard errors."""
  model, prompts = walks.WalkSampler(CASE), walks.prompts(False)[:64]
  ids = np.arange(64 * 128, dtype=np.int32)
  tokens = np.repeat(prompts, 128, 0)
  batch = PromptBatch(tokens, np.full(len(ids), walks.PROMPT, np.int32), ids, ids // 128)
  cfg = SamplerConfig(128, CASE.response, stop_ids=(walks.END,), pad_id=walks.PAD)
  sample = jax.jit(functools.partial(generate, model=model, cfg=cfg, rules=frozenset()))
  rollout = jax.device_get(sample(model.init(), batch, jax.random.key(1), Sampling.of(1.0)))
  assert (rollout.length == walks.PROMPT + CASE.response).all()

  def far(share, exact):
    return np.abs(share - exact) > 4 * np.sqrt(exact * (1 - exact) / len(ids))

  for n, probs in enumerate(walks.step_probabilities(CASE)):
    digits = rollout.tokens[:, walks.PROMPT + n]
    shares = np.bincount(digits, minlength=10) / len(ids)
    assert not far(shares, probs).any()
    assert far(shares, np.roll(probs, 1)).any(), "other probabilities would be noticed"
  right = walks.rewards(CASE, rollout.tokens)
  value = walks.exact_values(CASE, rollout.tokens)[:, walks.PROMPT - 1]
  error = np.sqrt((value * (1 - value)).sum()) / len(ids)
  assert abs(right.mean() - value.mean()) < 4 * error
