"""The loss of soft thoughts: its value, what is left out, and a score whose mean is zero."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suites import quick_for

from experiments.papers.soft_tokens import sampler as soft
from experiments.papers.soft_tokens import soft_loss
from experiments.papers.soft_tokens.mixtures import (
  THOUGHT,
  SoftBatch,
  hard_thought,
  noise_scale,
  soft_thought,
)
from jaxrl_llm.config import AggregationConfig, ModelConfig
from jaxrl_llm.models import Model
from jaxrl_llm.objective.aggregation import loss_weights
from jaxrl_llm.ops.token_stats import scaled_logits
from jaxrl_llm.types import PromptBatch, Sampling

MODEL = Model(
    ModelConfig(vocab_size=11, width=8, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8,
                mlp_width=16))
PARAMS = jax.tree.map(lambda x: 6 * x if x.ndim > 1 else x, MODEL.init(jax.random.key(0)))
SIGMA = float(noise_scale(PARAMS["embedding"]))
CFG = soft.SoftSamplerConfig(end_ids=(4,), prefill_ids=(5,), stop_ids=(3,), max_thought=5,
                             max_answer=2, group_size=4)
MODES = {"hard": hard_thought(), "soft": soft_thought(SIGMA)}
ROWS, CHUNK, DIRECTIONS = 4096, 256, 4


def sampled(mode, rows=16, cfg=CFG):
  tokens = jnp.tile(jnp.asarray([[6, 7, 8, 0]], jnp.int32), (rows, 1))
  prompts = PromptBatch(tokens, jnp.full(rows, 3, jnp.int32), jnp.arange(rows, dtype=jnp.int32),
                        jnp.arange(rows, dtype=jnp.int32) // 4)
  generate = jax.jit(functools.partial(soft.generate_soft, model=MODEL, cfg=cfg))
  return generate(PARAMS, prompts, jax.random.key(1), (mode, Sampling.of(1.0)))


def batch(rows, mode, aggregation="sequence_sum"):
  rollout = rows.rollout
  advantages = jnp.where(rollout.mask, jnp.linspace(-1, 2, len(rollout.length))[:, None], 0)
  weights = loss_weights(rollout.mask, None, None, AggregationConfig(aggregation))
  return SoftBatch(rows, advantages, weights, mode, jnp.float32(1))


loss = jax.jit(functools.partial(soft_loss.soft_loss, model=MODEL, cfg=None))


def slow_loss(rows, mode) -> float:
  """-(1 / B) sum_rows A sum_t log pi, one prefix after the other."""
  rollout, total = jax.device_get(rows.rollout), 0.0
  embedding = np.asarray(PARAMS["embedding"])

  @jax.jit  # compiles once for each length
  def logits_of(fed):
    hidden, _ = MODEL.hidden(PARAMS, fed[None], jnp.arange(len(fed))[None],
                             jnp.ones((1, len(fed)), jnp.int32))
    return hidden[0] @ MODEL.head(PARAMS)

  for row, advantage in enumerate(np.linspace(-1, 2, len(rollout.length))):
    fed = embedding[rollout.tokens[row]].copy()
    if mode.soft:
      thought = rollout.turn_id[row] == THOUGHT
      fed[thought] = np.asarray(rows.inputs[row])[thought]
    logits = np.asarray(logits_of(jnp.asarray(fed)), np.float64)
    for t in np.flatnonzero(rollout.mask[row]):
      soft_step = mode.soft and rollout.turn_id[row, t] == THOUGHT
      scaled = logits[t - 1] / (0.5 if soft_step else 1.0)
      probs = np.exp(scaled - scaled.max())
      probs /= probs.sum()
      log_prob = np.log(probs[rollout.tokens[row, t]])
      if soft_step:
        log_prob = -np.sum((fed[t] - probs @ embedding)**2) / (2 * SIGMA**2)
      total -= advantage * log_prob
  return total / len(rollout.length)


@pytest.mark.parametrize("name", quick_for({"soft"}, MODES))
def test_the_loss_is_the_sum_over_tokens_and_the_mean_over_rows(name):
  rows = sampled(MODES[name])
  value, metrics = loss(PARAMS, batch(rows, MODES[name]))
  assert metrics == {}
  expected = slow_loss(rows, MODES[name])
  assert value == pytest.approx(expected, rel=1e-4)
  for wrong in ("sequence", "token"):
    other, _ = loss(PARAMS, batch(rows, MODES[name], wrong))
    assert abs(other - expected) > 0.01 * abs(expected), "lengths are not normalised"


@pytest.mark.parametrize("name", quick_for({"soft"}, MODES))
def test_masked_columns_give_neither_nan_nor_gradient(name):
  rows = sampled(MODES[name])
  damaged, outside = rows, ~rows.rollout.mask
  if MODES[name].soft:
    thought = (rows.rollout.turn_id == THOUGHT)[..., None]
    damaged = rows.replace(inputs=jnp.where(thought, rows.inputs, jnp.nan))
  clean = batch(rows, MODES[name])
  other = batch(damaged, MODES[name])
  other = other.replace(advantages=jnp.where(outside, jnp.nan, other.advantages))
  gradient = jax.jit(jax.grad(lambda params, b: loss(params, b)[0]))
  for x, y in zip(*(jax.tree.leaves(gradient(PARAMS, b)) for b in (clean, other)), strict=True):
    np.testing.assert_array_equal(x, y)
    assert np.all(np.isfinite(x))


def right_score(params, row, mode=MODES["soft"]):
  """The log-density of a row's thought."""
  steps = soft_loss.steps(params, row, mode, 1.0, model=MODEL)
  return jnp.sum(jnp.where(row.rollout.turn_id == THOUGHT, steps.log_probs, 0))


def other_temperature(params, row):
  return right_score(params, row, soft_thought(SIGMA, 1.0))


def other_column(params, row):
  moved = row.replace(inputs=jnp.where(row.inputs != 0, jnp.roll(row.inputs, 1, 1), 0))
  steps = soft_loss.steps(params, row, MODES["soft"], 1.0, model=MODEL)
  gap = jnp.sum(jnp.square(moved.inputs - steps.means), -1)
  return -jnp.sum(jnp.where(row.rollout.turn_id == THOUGHT, gap, 0)) / (2 * SIGMA**2)


def of_shadow_tokens(params, row):
  """As if the most likely tokens had been sampled."""
  hidden, _ = MODEL.hidden(params, params["embedding"][row.rollout.tokens],
                           jnp.arange(row.rollout.tokens.shape[1])[None],
                           jnp.ones_like(row.rollout.tokens))
  log_probs = jax.nn.log_softmax(scaled_logits(hidden, MODEL.head(params), 1.0)[:, :-1], -1)
  chosen = jnp.take_along_axis(log_probs, row.rollout.tokens[:, 1:, None], -1)[..., 0]
  return jnp.sum(jnp.where(row.rollout.turn_id[:, 1:] == THOUGHT, chosen, 0))


def largest_z(score) -> float:
  """Over the blocks of parameters: the mean score along random directions, in standard errors."""
  rows = sampled(MODES["soft"], ROWS)
  directions = [jax.tree.map(lambda x, i=i: jax.random.rademacher(
      jax.random.fold_in(jax.random.key(i), x.size), x.shape, jnp.float32), PARAMS)
                for i in range(DIRECTIONS)]

  leaves, tree = jax.tree.flatten(rows)

  def along(row):
    gradient = jax.grad(score)(PARAMS, jax.tree.unflatten(tree, [x[None] for x in row]))
    return [jax.tree.map(lambda g, u: jnp.sum(g * u), gradient, u) for u in directions]

  chunks = [x.reshape(-1, CHUNK, *x.shape[1:]) for x in leaves]
  values = jax.jit(lambda chunks: jax.lax.map(jax.vmap(along), chunks))(chunks)
  blocks = np.stack([np.asarray(x).reshape(-1) for x in jax.tree.leaves(values)])
  assert blocks.shape == (DIRECTIONS * len(jax.tree.leaves(PARAMS)), ROWS)
  assert np.all(blocks.std(1) > 0), "every block moves the thought"
  return float(np.max(np.abs(blocks.mean(1)) / (blocks.std(1, ddof=1) / np.sqrt(ROWS))))


@pytest.mark.nightly
def test_the_score_of_thoughts_has_mean_zero():
  """Over 4096 rollouts of one prompt, within 4 standard errors in every block of parameters."""
  assert largest_z(right_score) < 4
  for wrong in (other_temperature, other_column, of_shadow_tokens):
    assert largest_z(wrong) > 6
