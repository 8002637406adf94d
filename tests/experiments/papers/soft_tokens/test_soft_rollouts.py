"""Rollouts that think in vectors: what was fed is what is scored, and rows depend on themselves."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.papers.soft_tokens import sampler as soft
from experiments.papers.soft_tokens import soft_loss
from experiments.papers.soft_tokens.mixtures import (
  ANSWER,
  FUZZY,
  THOUGHT,
  hard_thought,
  noise_scale,
  soft_thought,
)
from jaxrl_llm.config import ModelConfig
from jaxrl_llm.models import Model
from jaxrl_llm.rollouts.next_token import row_keys
from jaxrl_llm.types import PromptBatch, Sampling

pytestmark = pytest.mark.slow

MODEL = Model(
    ModelConfig(vocab_size=13, width=16, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=8,
                mlp_width=24))
# far from uniform
PARAMS = jax.tree.map(lambda x: 8 * x if x.ndim > 1 else x, MODEL.init(jax.random.key(0)))
SIGMA = float(noise_scale(PARAMS["embedding"]))
CFG = soft.SoftSamplerConfig(end_ids=(9, 5), prefill_ids=(4, 6), stop_ids=(3,), max_thought=10,
                             max_answer=4, group_size=4)
KEY = jax.random.key(7)
MODES = {"hard": hard_thought(), "soft": soft_thought(SIGMA), "fuzzy": soft_thought(SIGMA, FUZZY)}
NEAR_TIE = 1e-2


def prompts(rows=16, group=4, width=7, seed=0):
  rng = np.random.default_rng(seed)
  length = rng.integers(1, width + 1, rows // group)
  tokens = rng.integers(4, 13, (rows // group, width))
  return PromptBatch(jnp.asarray(np.repeat(tokens, group, 0), jnp.int32),
                     jnp.asarray(np.repeat(length, group), jnp.int32),
                     jnp.arange(rows, dtype=jnp.int32),
                     jnp.asarray(np.arange(rows) // group, jnp.int32))


@functools.cache
def sampler(cfg=CFG):
  return jax.jit(functools.partial(soft.generate_soft, model=MODEL, cfg=cfg))


@functools.cache
def scorer():
  return jax.jit(functools.partial(soft_loss.steps, model=MODEL))


def sampled(mode, batch=None, answer=1.0, cfg=CFG):
  return sampler(cfg)(PARAMS, prompts() if batch is None else batch, KEY,
                      (mode, Sampling.of(answer)))


def noise_of(rollout) -> np.ndarray:
  """[B, L, D], of every column."""
  keys = row_keys(KEY, rollout.row_id)
  columns = [jax.vmap(jax.random.fold_in)(keys, jnp.full(len(keys), column))
             for column in range(rollout.tokens.shape[1])]
  return np.stack([soft.input_noise(at, MODEL.config.width) for at in columns], 1)


def mean_gap(name: str, scored_with, shift: int = 0) -> float:
  """Largest distance of the decode loop's means from those of one pass over whole rows."""
  rows = sampled(MODES[name])
  again = scorer()(PARAMS, rows, scored_with, 1.0)
  seen = rows.inputs - SIGMA * noise_of(rows.rollout)
  best = np.sort(again.logits, -1)  # of a fuzzy step, near ties have another mean
  counted = np.asarray(rows.rollout.turn_id == THOUGHT)
  if name == "fuzzy":
    counted = counted & (best[..., -1] - best[..., -2] > NEAR_TIE)
  assert counted.sum() > 100
  return np.max(np.abs(np.roll(again.means, shift, 1) - seen)[counted])


def test_means_of_the_loop_are_those_of_one_pass():
  for name in ("soft", "fuzzy"):
    assert mean_gap(name, MODES[name]) < 1e-5
  other_temperature = soft_thought(SIGMA, 0.6)
  for wrong in (("soft", MODES["soft"], 1), ("soft", other_temperature), ("fuzzy", MODES["soft"])):
    assert mean_gap(*wrong) > 1e-3


@pytest.mark.parametrize("name", MODES)
def test_the_loop_reports_what_one_pass_scores(name):
  rows = sampled(MODES[name])
  again = scorer()(PARAMS, rows, MODES[name], 1.0).log_probs
  assert np.max(np.abs(again - rows.rollout.behavior_log_probs)) < 1e-4
  assert np.all(rows.rollout.behavior_log_probs[~rows.rollout.mask] == 0)
  if name == "hard":
    other = scorer()(PARAMS, rows, hard_thought(1.5), 1.0).log_probs
    assert np.max(np.abs(other - again)) > 1e-2, "the temperature matters"


def parts(rows, row: int) -> tuple[list, list, list]:
  """Tokens of thought, text put in, and answer; they must follow each other without gaps."""
  rollout = jax.device_get(rows.rollout)
  begin, end = rollout.prompt_length[row], rollout.length[row]
  turns, tokens = rollout.turn_id[row, begin:end], rollout.tokens[row, begin:end]
  order = np.where(turns == THOUGHT, 0, np.where(turns == ANSWER, 2, 1))
  assert np.all(np.diff(order) >= 0) and not np.any(rollout.turn_id[row, :begin])
  assert not np.any(rollout.turn_id[row, end:]) and not np.any(rollout.tokens[row, end:])
  return tuple(tokens[order == part].tolist() for part in range(3))


def layout_faults(rows, cfg) -> int:
  """Rows that do not end their thought, or go on from it, as the rules say."""
  faults = 0
  for row in range(len(rows.rollout.length)):
    thought, put_in, answer = parts(rows, row)
    size = len(cfg.end_ids)
    ends = [n for n in range(size, len(thought) + 1) if tuple(thought[n - size:n]) == cfg.end_ids]
    closed = bool(ends)
    good = ends == [len(thought)] if closed else len(thought) == cfg.max_thought
    good &= tuple(put_in) == (cfg.prefill_ids if closed else cfg.end_ids + cfg.prefill_ids)
    stops = [token in cfg.stop_ids for token in answer]
    cut = not any(stops)
    good &= len(answer) == cfg.max_answer if cut else stops.index(True) == len(answer) - 1
    faults += not (good and bool(rows.rollout.truncated[row]) == cut)
  return faults


@pytest.mark.parametrize("name, end_ids, prefill_ids", [
    *((name, (4,), (4, 6)) for name in MODES), ("soft", (4, 4), ()), ("fuzzy", (9, 5), (4, 6))])
def test_a_row_is_thought_prefill_and_answer(name, end_ids, prefill_ids):
  cfg = dataclasses.replace(CFG, end_ids=end_ids, prefill_ids=prefill_ids)
  rows = sampled(MODES[name], prompts(64, seed=1), cfg=cfg)
  assert layout_faults(rows, cfg) == 0
  for wrong in (dataclasses.replace(cfg, end_ids=(8,)), dataclasses.replace(cfg, max_answer=5),
                dataclasses.replace(cfg, prefill_ids=(*prefill_ids, 5))):
    assert layout_faults(rows, wrong) > 0


def test_some_thoughts_close_and_others_reach_their_cap():
  cfg = dataclasses.replace(CFG, end_ids=(4,))
  for mode in MODES.values():
    put_in = [len(parts(sampled(mode, prompts(64, seed=1), cfg=cfg), row)[1]) for row in range(64)]
    assert set(put_in) == {len(cfg.prefill_ids), len(cfg.prefill_ids) + 1}


def test_fuzzy_without_noise_is_greedy():
  """Token for token, on 100 prompts without near ties."""
  batch = prompts(150, group=1, seed=2)
  cfg = dataclasses.replace(CFG, group_size=1)
  hard = sampled(hard_thought(0.0), batch, 0.0, cfg)
  logits = np.sort(scorer()(PARAMS, hard, hard_thought(1.0), 1.0).logits, -1)
  tie = np.any((logits[..., -1] - logits[..., -2] < NEAR_TIE) & np.asarray(hard.rollout.mask), 1)
  chosen = np.flatnonzero(~tie)[:100]
  assert len(chosen) == 100

  def differing(mode) -> int:
    other = sampled(mode, batch, 0.0, cfg)
    return int(np.any(np.asarray(other.rollout.tokens != hard.rollout.tokens), 1)[chosen].sum())

  assert differing(soft_thought(0.0, FUZZY)) == 0
  assert differing(soft_thought(0.0)) > 0 and differing(MODES["fuzzy"]) > 0


@pytest.mark.parametrize("name", MODES)
def test_a_row_depends_on_nothing_but_itself(name):
  batch, expected = prompts(), sampled(MODES[name])
  order = (4 * np.array([2, 0, 3, 1])[:, None] + np.arange(4)).reshape(-1)
  for rows, cfg in ((order, CFG), (np.arange(4, 12), CFG),
                    (np.arange(16), dataclasses.replace(CFG, group_size=1))):
    other = sampled(MODES[name], jax.tree.map(lambda x, rows=rows: x[rows], batch), cfg=cfg)
    np.testing.assert_array_equal(other.rollout.tokens, expected.rollout.tokens[rows])
    if MODES[name].soft:
      np.testing.assert_allclose(other.inputs, expected.inputs[rows], atol=1e-5)
  renamed = sampled(MODES[name], batch.replace(row_id=batch.row_id + 100))
  assert np.any(renamed.rollout.tokens != expected.rollout.tokens), "the row id seeds the noise"


def test_noise_differs_between_rows_and_columns():
  noise = noise_of(sampled(MODES["soft"]).rollout)
  flat = noise.reshape(-1, noise.shape[-1])
  assert len(np.unique(flat[:, 0])) == len(flat)
  assert abs(noise.mean()) < 0.05 and abs(noise.std() - 1) < 0.05


@pytest.mark.parametrize("temperature, greedy", [(0.0, True), (1.0, False)])
def test_answers_are_greedy_at_temperature_zero(temperature, greedy):
  rows = sampled(MODES["soft"], answer=temperature)
  best = np.argmax(scorer()(PARAMS, rows, MODES["soft"], 1.0).logits, -1)
  answers = np.asarray(rows.rollout.turn_id == ANSWER)
  assert np.array_equal(best[answers], np.asarray(rows.rollout.tokens)[answers]) == greedy


@pytest.mark.parametrize("change", [{"end_ids": ()}, {"max_thought": 0}, {"max_answer": 0}])
def test_an_empty_part_is_refused(change):
  with pytest.raises(ValueError, match=next(iter(change))):
    dataclasses.replace(CFG, **change)
