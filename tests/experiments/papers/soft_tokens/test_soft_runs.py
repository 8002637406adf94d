"""Training and evaluation with soft thoughts: rewards, advantages, updates that repeat."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.papers.soft_tokens import soft_runs
from experiments.papers.soft_tokens.mixtures import ANSWER, THOUGHT, SoftRollout, noise_scale
from experiments.papers.soft_tokens.sampler import SoftSamplerConfig
from jaxrl_llm.config import ModelConfig, TaskConfig
from jaxrl_llm.models import Model
from jaxrl_llm.objective import advantages
from jaxrl_llm.tasks import make_task
from jaxrl_llm.tasks.tokenizer import encode
from jaxrl_llm.types import Problem, Rollout

MODEL = Model(ModelConfig(vocab_size=17, width=8, num_layers=1, num_heads=1, num_kv_heads=1,
                          head_dim=8, mlp_width=16))
CFG = SoftSamplerConfig(end_ids=(16,), prefill_ids=(15,), stop_ids=(1,), max_thought=4,
                        max_answer=2)
TRAINING = soft_runs.Training(updates=3, prompts=2, group_size=4, learning_rate=1e-3, warmup=1)


@functools.cache
def start():
  params = MODEL.init(jax.random.key(0))
  return params, float(noise_scale(params["embedding"]))


def task():
  return make_task(TaskConfig("modular_chain", num_terms=2), 0, TRAINING.prompts)


def soft_rows(completions: list[str], ended: list[bool]) -> SoftRollout:
  """Rows of the prompt 1+1, a thought of two tokens, an equals sign, and the given answers."""
  tokens = np.zeros((len(completions), 12), np.int32)
  turns, length = np.zeros_like(tokens), []
  for row, (text, end) in enumerate(zip(completions, ended, strict=True)):
    answer = encode(task().tokenizer, text) + [1] * end
    ids = encode(task().tokenizer, "1+1::=") + answer
    tokens[row, :len(ids)] = ids
    turns[row, 3:5], turns[row, 6:len(ids)] = THOUGHT, ANSWER
    length.append(len(ids))
  rows, length = len(completions), np.array(length)
  none = np.zeros(rows, np.int32)
  rollout = Rollout(
      tokens=tokens, mask=turns > 0, length=length, prompt_length=none + 3,
      behavior_log_probs=np.zeros(tokens.shape, np.float32), truncated=~np.array(ended),
      stop_reason=none, policy_step=none, row_id=np.arange(rows), group_id=none,
      turn_id=turns)
  return SoftRollout(jax.tree.map(jnp.asarray, rollout), None)


def test_rewards_are_100_10_and_0():
  """Nothing, and an answer that has no end, count as no answer."""
  problem = Problem("1+1", "2", id="1+1")
  rows = soft_rows(["2", "3", "", "34"], [True, True, True, False])
  rewards, correct = soft_runs.graded(task(), [problem], rows)
  assert rewards.tolist() == [100, 10, 0, 0] and correct.tolist() == [True, False, False, False]
  other = soft_rows(["3", "2", "", "34"], [True, True, True, False])
  assert soft_runs.graded(task(), [problem], other)[0].tolist() == [10, 100, 0, 0]
  two = [problem, Problem("1+1", "3", id="other")]
  assert soft_runs.graded(task(), two, soft_rows(["2", "2", "3", "2"], [True] * 4))[0].tolist() == [
      100, 100, 100, 10], "rows of a group share their problem"


GOLDEN = [63.333332, -56.666668, -70.0, 63.333332]  # G / (G - 1) (r - mean)


def golden_gap() -> float:
  rewards = jnp.asarray([100.0, 10.0, 0.0, 100.0])
  rows = soft_rows(["2", "3", "", "2"], [True] * 4)
  batch = soft_runs.batch_of(rows, rewards, soft_runs.modes(0.1)["soft"], 1.0)
  values = np.where(rows.rollout.mask, batch.advantages, np.nan)
  np.testing.assert_array_equal(np.isnan(values), ~rows.rollout.mask)
  np.testing.assert_allclose(batch.loss_weights, rows.rollout.mask / 4)  # 1 / (B G)
  return float(np.nanmax(np.abs(values - np.array(GOLDEN)[:, None])))


def test_advantages_leave_the_row_itself_out(monkeypatch):
  """Another baseline gives other ones."""
  assert golden_gap() < 1e-4
  right = advantages.get_advantage
  for wrong in ("dr_grpo", "grpo", "none"):
    monkeypatch.setattr(advantages, "get_advantage", lambda name, wrong=wrong: right(wrong))
    assert golden_gap() > 1


def test_a_control_trains_on_answers_only():
  rows = soft_rows(["2", "3", "", "2"], [True] * 4)
  rewards, mode = jnp.asarray([100.0, 10.0, 0.0, 100.0]), soft_runs.modes(0.1)["hard"]
  weights = [soft_runs.batch_of(rows, rewards, mode, 1.0, thoughts=thoughts).loss_weights
             for thoughts in (True, False)]
  thought = rows.rollout.turn_id == THOUGHT
  assert np.all(weights[0][thought] == 0.25) and not np.any(weights[1][thought])
  np.testing.assert_array_equal(weights[0][~thought], weights[1][~thought])


def trained(name: str, seed: int = 0, **changes):
  params, sigma = start()
  return soft_runs.train(params, task(), soft_runs.modes(sigma)[name],
                         dataclasses.replace(TRAINING, **changes),
                         policy=soft_runs.Policy(MODEL, CFG), seed=seed)[0]


def distance(a, b) -> float:
  return max(float(jnp.max(jnp.abs(x - y)))
             for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["hard", "soft"])
def test_training_moves_parameters_and_repeats(name, monkeypatch):
  once = trained(name)
  assert distance(once, start()[0]) > 1e-5
  assert distance(once, trained(name)) == 0
  assert distance(once, trained(name, seed=1)) > 0, "the seed is that of the noise"
  assert distance(once, trained(name, thoughts=False)) > 1e-5

  def constant(task, problems, sampled):
    return np.full(len(sampled.rollout.length), 10, np.float32), np.zeros(1)

  monkeypatch.setattr(soft_runs, "graded", constant)
  held = trained(name)  # only weight decay moves parameters without an advantage
  assert distance(held, start()[0]) < 1e-6


@pytest.mark.nightly
def test_evaluation_has_the_samples_of_a_problem_in_its_row(monkeypatch):
  params, sigma = start()
  seen = []

  def graded(task, problems, sampled):
    seen.append(sampled.rollout)
    first = sampled.rollout.group_id == jnp.min(sampled.rollout.group_id)
    return None, np.asarray(first & (jnp.arange(len(first)) % 2 == 0))

  monkeypatch.setattr(soft_runs, "graded", graded)
  for name in ("hard sampled", "soft greedy"):
    correct = soft_runs.evaluate(params, task(), task().heldout(3), soft_runs.inference_modes(
        sigma)[name], policy=soft_runs.Policy(MODEL, dataclasses.replace(CFG, group_size=4)))
    assert correct.tolist() == [[True, False, True, False], [False] * 4, [False] * 4]
  sampled, greedy = (np.asarray(rollout.tokens).reshape(3, 4, -1) for rollout in seen)
  assert np.all(greedy == greedy[:, :1]) and np.any(sampled != sampled[:, :1])
  assert min(seen[0].row_id) >= soft_runs.EVALUATION - 4
