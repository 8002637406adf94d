"""The gradient of each row's log-probability: found row by row, on any devices, in any order."""

import dataclasses
import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import smallest
import tiny_batch

from jaxrl_llm import parallel
from jaxrl_llm.config import AdvantageConfig, LossConfig, MeshConfig, StepConfig, from_dict
from jaxrl_llm.objective import advantages
from jaxrl_llm.registry import ADVANTAGES, COLUMNS
from jaxrl_llm.training import train_step
from jaxrl_llm.training.columns import ColumnParts
from jaxrl_llm.types import AdvantageInputs, Sampling
from jaxrl_llm.wiring import setup
from jaxrl_llm.wiring.scoring import score_rollout

TEMPERATURE = 0.7


def energies(rollout, model=tiny_batch.MODEL, **numbers):
  """[B] of the column; it must be the same at all tokens of a row."""
  parts = ColumnParts(model, StepConfig(LossConfig(temperature=TEMPERATURE)), frozenset(),
                      ADVANTAGES.numbers(AdvantageConfig("opob", **numbers)))
  column = jax.jit(COLUMNS["row_gradient"].function(parts))(
      tiny_batch.parameters(), rollout, Sampling.of(TEMPERATURE))
  assert column.shape == rollout.mask.shape and column.dtype == jnp.float32
  assert (np.asarray(column) == np.asarray(column)[:, :1]).all()
  return np.asarray(column)[:, 0]


@functools.cache
def by_hand():
  """(log ratio, squared norm of the row's gradient, sum of its tokens' squared norms) of rows."""
  rows, model = tiny_batch.rollout(), tiny_batch.MODEL

  def log_probs(params, i):
    at = jnp.arange(tiny_batch.LENGTH)[None]
    hidden, _ = model.hidden(params, rows.tokens[i:i + 1], at, jnp.ones_like(at))
    logits = hidden[0] @ model.head(params) / TEMPERATURE
    scores = jax.nn.log_softmax(logits)[jnp.arange(tiny_batch.LENGTH - 1), rows.tokens[i, 1:]]
    return jnp.where(rows.mask[i, 1:], scores, 0)

  def squares(tree):
    return float(sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(tree)))

  params, out = tiny_batch.parameters(), []
  for i in range(tiny_batch.ROWS):
    jacobian = jax.jacrev(log_probs)(params, i)
    total = jax.tree.map(lambda x: x.sum(0), jacobian)
    ratio = float(log_probs(params, i).sum() - rows.behavior_log_probs[i].sum())
    out.append((ratio, squares(total), squares(jacobian)))
  return np.array(out).T


def test_is_the_norm_of_the_row_s_gradient():
  ratio, row, token = by_hand()
  has_tokens = row > 0
  assert has_tokens.sum() == 7, "the third row has no policy token"
  plain = energies(tiny_batch.rollout(), importance="none")
  np.testing.assert_allclose(plain[has_tokens], np.log(row[has_tokens]), rtol=1e-4, atol=1e-4)
  assert np.isneginf(plain[~has_tokens]).all()
  # What the check rejects: the tokens' gradients one by one.
  assert np.abs(plain[has_tokens] - np.log(token[has_tokens])).max() > 0.1
  weighted = energies(tiny_batch.rollout())
  difference = weighted[has_tokens] - plain[has_tokens]
  np.testing.assert_allclose(difference, 2 * ratio[has_tokens], atol=1e-3)
  assert np.abs(ratio[has_tokens]).max() > 0.5


def test_order_and_devices_change_nothing():
  rollout = tiny_batch.rollout()
  expected = energies(rollout)
  order = np.random.default_rng(0).permutation(tiny_batch.ROWS)
  permuted = energies(jax.tree.map(operator.itemgetter(order), rollout))
  np.testing.assert_allclose(permuted, expected[order], rtol=1e-5)
  for axes in (MeshConfig(8, 1, 1), MeshConfig(1, 4, 2)):
    mesh = parallel.make_mesh(axes, jax.devices()[:8])
    model = dataclasses.replace(tiny_batch.MODEL, constrain=parallel.Layout(mesh))
    spread = jax.tree.map(lambda x, to=parallel.rows(mesh): jax.device_put(x, to), rollout)
    np.testing.assert_allclose(energies(spread, model), expected, rtol=1e-5)


def learner_of(**updates):
  """The learner of a run with opob and one optimizer batch."""
  config = smallest.config(**{
      "rollout.prompts": 2, "rollout.max_new_tokens": 7, "rollout.window": 7,
      "advantage.name": "opob", "updates.optimizer_batches": 1,
      # Adam makes a full step of a gradient that is rounding.
      "optimizer.name": "sgd", "optimizer.learning_rate": 1.0})
  config.updates.update(updates)
  return setup.build_learner(setup.resolve(from_dict(config)), jax.devices()[:1])[2]


def with_prompts(rollout):
  """The rollout with one prompt, of two tokens, in each group."""
  first = rollout.group_id * 4
  prompts = jnp.where(jnp.arange(tiny_batch.LENGTH) < 2, rollout.tokens[first], rollout.tokens)
  return rollout.replace(tokens=prompts)


def updated(order=None, **updates):
  """(advantages [B, L] in the order of the first rows, weights after an update)."""
  learner, rollout = learner_of(**updates), with_prompts(tiny_batch.rollout())
  rewards, order = jnp.asarray([1.0, 0, 0, 0, 0, 1, 0, 0]), np.arange(8) if order is None else order
  rollout, rewards = jax.tree.map(operator.itemgetter(order), (rollout, rewards))
  params = jax.tree.map(lambda x: 3 * x, learner.model.init(jax.random.key(0)))
  scores = score_rollout(learner.scoring, {"current": params}, rollout,
                         packing=learner.packing(rollout))
  (batch,), _ = learner.batches(rollout, rewards, jnp.ones(8, bool), scores)
  values = np.asarray(batch.advantages)[np.argsort(order)]
  state = train_step.init_state(params, learner.optimizer)
  state, _ = learner.step(state, batch, learner.packing(batch.rollout))
  return values, jax.tree.leaves(state.params)


@pytest.mark.slow
def test_micro_batches_packing_and_order_change_nothing():
  """Neither the baselines nor the weights after an update."""
  expected, weights = updated()
  packed = {"token_budget": 22}
  cases = ({"micro_batches": 2}, {"micro_batches": 8}, packed, packed | {"shared_prompts": True},
           {"order": np.array([5, 0, 7, 2, 1, 4, 6, 3])})
  for case in cases:
    values, moved = updated(**case)
    np.testing.assert_allclose(values, expected, atol=1e-6, err_msg=str(case))
    for x, y in zip(moved, weights, strict=True):
      np.testing.assert_allclose(x, y, atol=1e-6, err_msg=str(case))
  # What the check rejects: energies of a half of the rows at a time, as a micro-batch has them.
  half = np.concatenate([opob_of(rows) for rows in (slice(0, 6), slice(6, 8))])
  assert np.abs(half - expected.max(1, where=expected != 0, initial=-9)).max() > 1e-3


def opob_of(rows):
  """[b] advantages of a part of the rows by itself."""
  learner, rollout = learner_of(), with_prompts(tiny_batch.rollout())
  rollout = jax.tree.map(operator.itemgetter(rows), rollout)
  params = jax.tree.map(lambda x: 3 * x, learner.model.init(jax.random.key(0)))
  energy = score_rollout(learner.scoring, {"current": params}, rollout).columns
  rewards = jnp.asarray([1.0, 0, 0, 0, 0, 1, 0, 0])[rows]
  inputs = AdvantageInputs(rewards, rollout.mask, rollout.tokens, rollout.group_id, columns=energy)
  values = advantages.get_advantage("opob")(inputs, AdvantageConfig("opob"))
  return np.asarray(values).max(1, where=np.asarray(rollout.mask), initial=-9)


@pytest.mark.slow
def test_reaches_the_advantage_of_a_run():
  """An iteration's batch has the baseline of these energies, not the group's mean."""
  learner = learner_of()
  rollout, params = tiny_batch.rollout(), learner.model.init(jax.random.key(0))
  scores = score_rollout(learner.scoring, {"current": params}, rollout)
  assert scores.columns.keys() == {"row_gradient"}
  rewards = jnp.asarray([1.0, 0, 0, 0, 0, 1, 0, 0])
  (batch,), _ = learner.batches(rollout, rewards, jnp.ones(8, bool), scores)
  values = np.where(rollout.mask, batch.advantages, np.nan)
  energy = np.asarray(scores.columns["row_gradient"])[:, 0]
  weight = np.exp(energy[4:] - energy[4:].max())
  expected = np.asarray(rewards[4:]) - weight[1] / weight.sum()
  np.testing.assert_allclose(np.nanmax(values[4:], 1), expected, rtol=1e-4, atol=1e-6)
  assert np.abs(expected - (np.asarray(rewards[4:]) - 0.25)).max() > 0.01
