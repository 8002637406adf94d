"""Terms of the loss beside the estimator: KL, critic, support, gate."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.config import CorrectionConfig, CriticConfig, EstimatorConfig, KLConfig, LossConfig
from jaxrl_llm.objective import loss as loss_lib
from jaxrl_llm.types import Rollout, TrainBatch

V, D = 6, 8


@dataclasses.dataclass(frozen=True)
class TableModel:
  """Hidden states are a look-up of the last token: enough for every path of the loss."""

  def hidden(self, params, tokens, positions, segments, cache=None):
    return params["hidden"][tokens], None

  def head(self, params):
    return params["head"]

  def values(self, params, hidden):
    return hidden @ params["value"]


def setting(seed=0, rows=4, length=7):
  rng = np.random.default_rng(seed)
  normal = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)
  params = {"hidden": normal(V, D), "head": normal(D, V), "value": normal(D)}
  mask = (rng.random((rows, length)) < 0.7) & (np.arange(length) > 0)
  zeros = jnp.zeros(rows, jnp.int32)
  tokens = jnp.asarray(rng.integers(0, V, (rows, length)), jnp.int32)
  rollout = Rollout(tokens, jnp.asarray(mask), zeros + length, zeros + 1,
                    -1 + 0.1 * normal(rows, length), zeros > 0, zeros, 0 * mask, zeros, zeros)
  weights = jnp.asarray(mask / mask.sum(), jnp.float32)
  batch = TrainBatch(rollout, normal(rows, length), weights, -1.5 + 0.3 * normal(rows, length),
                     jnp.ones(mask.shape), ref_log_probs=-1.5 + 0.3 * normal(rows, length),
                     values=normal(rows, length), returns=normal(rows, length))
  return params, batch


def run(params, batch, cfg):
  return jax.value_and_grad(loss_lib.policy_loss, has_aux=True)(params, batch, model=TableModel(),
                                                                cfg=cfg)


PLAIN = LossConfig(EstimatorConfig("reinforce"))


def test_value_terms_by_hand():
  mask = jnp.asarray([[True, True, True, False]])
  values, old, returns = jnp.asarray([
      [[1.0, 3.0, 0.0, jnp.nan]], [[0.0, 0.0, 0.0, jnp.nan]], [[2.0, 1.0, 0.0, jnp.nan]]])
  got = loss_lib.value_terms(values, old, returns, mask, CriticConfig(clip=None))
  np.testing.assert_allclose(got, [[0.5, 2.0, 0.0, 0.0]])
  clipped = loss_lib.value_terms(values, old, returns, mask, CriticConfig(clip=0.5))
  # max(1, 1.5^2) / 2, max(4, 0.5^2) / 2
  np.testing.assert_allclose(clipped, [[1.125, 2.0, 0.0, 0.0]])


@pytest.mark.slow
def test_the_critic_adds_its_loss_and_leaves_the_policy_term_alone():
  params, batch = setting()
  (plain, _), _ = run(params, batch, PLAIN)
  (value, metrics), gradient = run(params, batch,
                                   dataclasses.replace(PLAIN, critic=CriticConfig(coef=0.3)))
  hidden = params["hidden"][batch.rollout.tokens]
  values = jnp.pad((hidden @ params["value"])[:, :-1], ((0, 0), (1, 0)))
  terms = jnp.square(values - batch.returns) / 2
  np.testing.assert_allclose(value - plain, 0.3 * jnp.sum(batch.loss_weights * terms), rtol=1e-5)
  assert float(jnp.abs(gradient["value"]).max()) > 0 and "critic/loss" in metrics


@pytest.mark.parametrize("importance", [False, True])
def test_kl_importance_has_the_gradient_of_the_exact_divergence(importance):
  """Tokens of mu, enumerated: only with the ratio has k3 the gradient of KL(pi || ref)."""
  rng = np.random.default_rng(0)
  logits, ref, mu = (
      jax.nn.log_softmax(jnp.asarray(rng.standard_normal(5), jnp.float32)) for _ in range(3))
  log_p = jax.nn.log_softmax

  def expected(z):
    terms = loss_lib.kl_terms(log_p(z)[None], ref[None], mu[None], jnp.ones((1, 5), bool),
                              KLConfig("k3", 1.0, importance=importance))
    return jnp.sum(jnp.exp(mu) * terms[0])

  exact = jax.grad(lambda z: jnp.sum(jnp.exp(log_p(z)) * (log_p(z) - ref)))(logits)
  agrees = np.allclose(jax.grad(expected)(logits), exact, rtol=1e-4, atol=1e-5)
  assert agrees == importance


@pytest.mark.slow
def test_tokens_outside_the_support_have_no_loss_and_stay_in_the_denominator():
  params, batch = setting()
  log_probs = loss_lib.policy_stats(params, batch, model=TableModel(), cfg=PLAIN).log_probs
  batch = batch.replace(advantages=jnp.ones_like(batch.advantages),
                        anchor_log_probs=log_probs - 0.1 * batch.advantages)
  mask = np.asarray(batch.rollout.mask)
  outside = np.zeros(mask.shape, bool)
  outside[tuple(np.argwhere(mask)[1])] = True
  cfg = LossConfig(EstimatorConfig("ctpo", log_low=None, log_high=None, log_dual=None))
  (value, _), gradient = run(params, batch.replace(in_support=jnp.asarray(~outside)), cfg)
  # The same as a batch in which that token is tool output, with the weights of the whole batch.
  hole = batch.replace(rollout=batch.rollout.replace(mask=jnp.asarray(mask & ~outside)))
  (expected, _), expected_gradient = run(params, hole, cfg)
  np.testing.assert_allclose(value, expected, rtol=1e-6)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), gradient,
               expected_gradient)
  (full, _), _ = run(params, batch, cfg)
  assert abs(float(full - value)) > 1e-4


@pytest.mark.parametrize("rules", [
    {"pruning": (("top_k", 2),)}, {"pruning": (("top_p", 0.5),)}, {"pruning": (("min_p", 0.3),)},
    {"pruning": (("top_k", 3), ("top_p", 0.7), ("min_p", 0.2))},
    {"min_new_tokens": 3, "stop_ids": (0, 4)}], ids=str)
def test_every_rule_reaches_the_loss(rules):
  params, batch = setting()
  (plain, metrics), _ = run(params, batch, PLAIN)
  assert not any(name.startswith("vocabulary") for name in metrics)
  (value, metrics), gradient = run(params, batch, dataclasses.replace(PLAIN, **rules))
  kept, outside = metrics["vocabulary/kept_mass"], metrics["vocabulary/out_of_set"]
  assert 0 < float(kept.total / kept.count) < 1 and 0 < float(outside.total) < float(outside.count)
  assert abs(float(value - plain)) > 1e-3 and all(
      np.isfinite(g).all() for g in jax.tree.leaves(gradient))


def test_the_sequence_gate_multiplies_any_estimator():
  """A row with negative advantage whose anchor is far above the policy is dropped, others stay."""
  params, batch = setting()
  sign = jnp.asarray([-1.0, 1.0, -1.0, 1.0])[:, None]
  far = jnp.asarray([3.0, 3.0, -3.0, -3.0])[:, None]
  log_probs = loss_lib.policy_stats(params, batch, model=TableModel(), cfg=PLAIN).log_probs
  batch = batch.replace(advantages=sign * jnp.ones_like(batch.advantages),
                        anchor_log_probs=log_probs + far)
  gated = dataclasses.replace(PLAIN, correction=CorrectionConfig(sequence_delta=0.5))
  (value, _), _ = run(params, batch, gated)
  rest = batch.replace(loss_weights=batch.loss_weights.at[0].set(0.0))
  (expected, _), _ = run(params, rest, PLAIN)
  np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_regularizers_use_their_own_weights():
  params, batch = setting()
  cfg = dataclasses.replace(PLAIN, kl=KLConfig("k2", 0.5))
  (plain, _), _ = run(params, batch, PLAIN)
  (same, _), _ = run(params, batch, cfg)
  (doubled, _), _ = run(params, batch.replace(regularizer_weights=2 * batch.loss_weights), cfg)
  np.testing.assert_allclose(doubled - plain, 2 * (same - plain), rtol=1e-5)
  assert float(same - plain) > 1e-3


def bounded(rows=4, length=9, new=4):
  """Rows with prompts of 1 to 7 tokens; the last one leaves no room for all of `new`."""
  params, batch = setting(3, rows, length)
  prompt = jnp.asarray([1, 3, 5, 7])
  columns = jnp.arange(length)
  place = columns - prompt[:, None]
  mask = batch.rollout.mask & (place >= 0) & (place < new)
  rollout = batch.rollout.replace(prompt_length=prompt, mask=mask,
                                  length=jnp.minimum(prompt + new, length))
  return params, batch.replace(rollout=rollout, loss_weights=batch.loss_weights * mask)


FULL = LossConfig(EstimatorConfig("reinforce"), kl=KLConfig("k3", 0.1), critic=CriticConfig(),
                  pruning=(("top_k", 4),), min_new_tokens=2, stop_ids=(1,))


@pytest.mark.slow
@pytest.mark.parametrize("cfg", [PLAIN, FULL], ids=["plain", "everything"])
def test_columns_outside_of_completions_are_not_gone_through(cfg, monkeypatch):
  params, batch = bounded()
  (expected, metrics), gradient = run(params, batch, cfg)
  few = dataclasses.replace(cfg, max_new_tokens=4)
  (got, others), change = run(params, batch, few)
  np.testing.assert_allclose(got, expected, rtol=1e-6)
  close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
  jax.tree.map(close, (change, others), (gradient, metrics))
  stats = loss_lib.policy_stats(params, batch, model=TableModel(), cfg=few)
  inside = (jnp.arange(9) >= batch.rollout.prompt_length[:, None]) & (
      jnp.arange(9) < batch.rollout.length[:, None])
  assert not np.any(np.where(inside, 0, stats.log_probs)) and np.all(
      np.where(inside, stats.log_probs, -1) < 0)
  shapes = lambda cfg: str(jax.make_jaxpr(lambda p: run(p, batch, cfg)[0][0])(params))
  assert "4,9,6" in shapes(cfg) and "4,9,6" not in shapes(few) and "4,4,6" in shapes(
      few), "logits of 4 of 9 columns"
  real = loss_lib.completion_of
  monkeypatch.setattr(loss_lib, "completion_of", lambda rollout, cfg:
                      (real(rollout, cfg)[0] + 1, 4))
  assert abs(run(params, batch, few)[0][0] - expected) > 1e-3, "a column late"


def test_a_dropped_row_enters_no_metric():
  """As if its mask were empty; a row whose advantages alone are 0 stays."""
  params, batch = setting()
  keep = jnp.asarray([True, True, False, True])[:, None]
  batch = batch.replace(advantages=batch.advantages.at[0].set(0.0),
                        loss_weights=batch.loss_weights * keep)
  without = batch.replace(rollout=batch.rollout.replace(mask=batch.rollout.mask & keep))
  cfg = LossConfig(EstimatorConfig("ppo"), KLConfig("k3", 0.1), critic=CriticConfig())
  (value, metrics), gradient = run(params, batch, cfg)
  (expected, expected_metrics), expected_gradient = run(params, without, cfg)
  jax.tree.map(np.testing.assert_array_equal, (value, gradient), (expected, expected_gradient))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), metrics, expected_metrics)
  assert float(metrics["ratio/mean"].count) == float((batch.rollout.mask & keep).sum())
  everything, _ = run(params, batch.replace(regularizer_weights=jnp.ones_like(batch.loss_weights)),
                      cfg)
  assert float(everything[1]["ratio/mean"].count) == float(batch.rollout.mask.sum())
