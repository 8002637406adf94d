"""What adapters change of the hidden states: found by hand, in any pieces, and in a run."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import smallest

from experiments.papers.arca.residual import COLUMN, adapter_residual
from experiments.tables_lib.residual_stream import hidden_states
from jaxrl_llm import parallel
from jaxrl_llm.config import (
  ConfigError,
  LossConfig,
  MeshConfig,
  ModelConfig,
  ParametersConfig,
  StepConfig,
  from_dict,
)
from jaxrl_llm.models import Model, trainable
from jaxrl_llm.training.columns import BASE
from jaxrl_llm.training.packing import Packer
from jaxrl_llm.training.score import Scores
from jaxrl_llm.types import Bins, Rollout
from jaxrl_llm.wiring import setup
from jaxrl_llm.wiring.learner import Start
from jaxrl_llm.wiring.scoring import make_scoring, score_rollout

pytestmark = pytest.mark.slow

ROWS, LENGTH = 8, 12
MODEL = Model(ModelConfig(vocab_size=16, width=16, num_layers=2, num_heads=4, num_kv_heads=2,
                          head_dim=8, mlp_width=24))
LORA = ParametersConfig("lora", lora_rank=2)


@functools.cache
def given():
  """(trained leaves with adapters that are not 0, frozen leaves, a rollout of ragged rows)."""
  params = MODEL.init(jax.random.key(0))
  trained, frozen = trainable.split(params, LORA, jax.random.key(1))
  trained = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(jax.random.key(2), x.shape), trained)
  rng, at = np.random.default_rng(0), np.arange(LENGTH)
  length = rng.integers(5, LENGTH + 1, ROWS).astype(np.int32)
  length[0] = LENGTH
  tokens = np.where(at < length[:, None], rng.integers(0, 16, (ROWS, LENGTH)), 0).astype(np.int32)
  tokens[:4, :3] = tokens[0, :3]
  start, ids = np.full(ROWS, 3, np.int32), np.arange(ROWS, dtype=np.int32)
  mask = (at >= 3) & (at < length[:, None])
  rollout = Rollout(tokens, mask, length, start, 0.0 * mask, ids < 0, 0 * ids, 0 * ids, ids, ids)
  return trained, frozen, jax.tree.map(jnp.asarray, rollout)


def residual(model=MODEL, micro_batches=1, packing=None, normed=True):
  trained, frozen, rollout = given()
  params = trainable.merge(trained, frozen, LORA)
  run = jax.jit(functools.partial(adapter_residual, model=model, normed=normed,
                                  cfg=StepConfig(LossConfig(), micro_batches)))
  return np.where(rollout.mask, run((params, frozen), rollout, packing=packing), 0)


@functools.partial(jax.jit, static_argnums=2)
def last_states(params, tokens, normed: bool):
  """[length, width] of one row."""
  at, ones = jnp.arange(tokens.shape[1])[None], jnp.ones_like(tokens)
  if normed:
    return MODEL.hidden(params, tokens, at, ones)[0][0]
  return hidden_states(MODEL, params, tokens, at, ones, at, (2,))[0, 0]


@pytest.mark.parametrize("normed", [True, False])
def test_is_the_distance_of_the_states_that_predict_each_token(normed):
  trained, frozen, rollout = given()
  params = trainable.merge(trained, frozen, LORA)
  for row in (0, 3):
    n = int(rollout.length[row])
    states = [last_states(p, rollout.tokens[row:row + 1, :n], normed) for p in (params, frozen)]
    by_hand = np.linalg.norm(np.asarray(states[0] - states[1]), axis=-1)
    got = residual(normed=normed)[row, :n]
    np.testing.assert_allclose(got[3:], by_hand[2:-1], rtol=1e-4)
    # What the check rejects: the state of the token itself.
    assert np.abs(got[3:] - by_hand[3:]).max() > 0.01


@pytest.mark.parametrize("normed", [True, False])
def test_pieces_packing_and_devices_change_nothing(normed):
  expected, rollout = residual(normed=normed), given()[2]
  assert expected[np.asarray(rollout.mask)].min() > 0
  close = functools.partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-5)
  close(residual(micro_batches=4, normed=normed), expected)
  pack = Packer(Bins(24, 8), 2, 1)
  close(residual(packing=pack(rollout.length), normed=normed), expected)
  shared = dataclasses.replace(pack, shared_prompts=True).pack(rollout)
  assert np.count_nonzero(shared.shared) >= 2
  close(residual(packing=shared, normed=normed), expected)
  mesh = parallel.make_mesh(MeshConfig(1, 4, 2), jax.devices()[:8])
  layout = dataclasses.replace(MODEL, constrain=parallel.Layout(mesh))
  close(residual(model=layout, normed=normed), expected)
  wrong = residual(model=dataclasses.replace(
      MODEL, config=dataclasses.replace(MODEL.config, rope_base=7.0)), normed=normed)
  assert np.abs(wrong - expected).max() > 1e-3


def test_small_adapters_are_not_lost_in_bfloat16():
  """A run in bfloat16 weighs tokens as one in float32; its own passes would not."""
  half = dataclasses.replace(MODEL, config=dataclasses.replace(
      MODEL.config, compute_dtype="bfloat16"))
  trained, frozen, rollout = given()
  trained = jax.tree.map(lambda x: 1e-3 * x, trained)
  frozen = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), frozen)
  params, mask = trainable.merge(trained, frozen, LORA), np.asarray(rollout.mask)

  def of(model):
    run = functools.partial(adapter_residual, model=model, normed=True,
                            cfg=StepConfig(LossConfig()))
    return np.asarray(jax.jit(run)((params, frozen), rollout))[mask]

  cfg = config(parameters={"train": "lora"})
  scoring = make_scoring(cfg, half, parallel.make_mesh(MeshConfig(data=1), jax.devices()[:1]), ())
  column = scoring.columns[COLUMN].run(params, frozen, rollout, scoring.sampling)
  np.testing.assert_allclose(np.asarray(column)[mask], of(MODEL), rtol=0.01)
  assert of(half).mean() > 10 * of(MODEL).mean(), "what the check rejects"


def config(**sections):
  settings = smallest.config()
  settings.advantage.name, settings.rollout.group_size = "arca", 2
  for name, values in sections.items():
    settings[name].update(values)
  return from_dict(settings)


def test_a_run_scores_without_adapters_and_only_if_asked():
  lora = {"parameters": {"train": "lora"}}
  built = setup.build(setup.resolve(config(**lora)), jax.devices()[:1])
  learner = built.learner
  params = learner.model.init(jax.random.key(0))
  start = Start(*trainable.split(params, built.cfg.parameters, jax.random.key(1)))
  jax.tree.map(np.testing.assert_array_equal, learner.base(start), params)
  moved = Start(jax.tree.map(lambda x: x + 0.1, start.params), start.frozen)
  jax.tree.map(np.testing.assert_array_equal, learner.base(moved), params)
  for changes in ({"advantage": {"name": "grpo"}}, {"advantage": {"signal": "surprisal"}}):
    other = setup.build(setup.resolve(config(**lora, **changes)), jax.devices()[:1]).learner
    assert other.base is None and not other.scoring.columns and not other.scoring.reads(BASE)


def test_surprisal_is_that_of_the_current_policy():
  """With one optimizer batch the loss needs no pass for its anchor, but this advantage does."""
  cfg = config(advantage={"signal": "surprisal"}, updates={"optimizer_batches": 1, "staleness": 1},
               rollout={"max_new_tokens": LENGTH - 3, "window": LENGTH - 3})
  learner = setup.build(setup.resolve(cfg), jax.devices()[:1]).learner
  params, rollout = learner.model.init(jax.random.key(0)), given()[2]
  rollout = rollout.replace(group_id=jnp.arange(ROWS) // 2)
  scores = score_rollout(learner.scoring, {"current": params, "base": None}, rollout)
  assert scores.anchor_log_probs is None
  rewards, keep = jnp.arange(ROWS) % 2.0, jnp.ones(ROWS, bool)
  magnitudes = [np.abs(learner.batches(rollout, rewards, keep, one)[0][0].advantages)
                for one in (scores, Scores())]
  surprisal = -np.asarray(scores.current_log_probs)
  for row in (0, 3):
    kept = np.asarray(rollout.mask[row])
    np.testing.assert_allclose((magnitudes[0] / magnitudes[1].max())[row, kept],
                               surprisal[row, kept] / surprisal[row, kept].mean(), rtol=1e-3)
  # What the check rejects: the sampler's log-probs, which are 0 here, so that weights are equal.
  assert np.ptp(magnitudes[1][np.asarray(rollout.mask)]) < 1e-6


def test_what_is_not_computed_is_refused():
  with pytest.raises(ConfigError, match=r"parameters\.train = 'all': .*parameters\.train=lora"):
    setup.resolve(config())
  with pytest.raises(ConfigError, match=r"kl\.coef = 0\.0: .*reference's log-probs"):
    setup.resolve(config(advantage={"signal": "reference_gap"}))
  setup.resolve(config(advantage={"signal": "reference_gap"}, kl={"coef": 0.1}))
  with pytest.raises(ConfigError, match="hidden_state"):
    setup.resolve(config(advantage={"signal": "surprisal", "hidden_state": "stream"}))
