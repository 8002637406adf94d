"""Losses of the head two tokens ahead, and what the calibrated coefficient measures."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suites import quick_of

from experiments.papers.occ import losses as mtp
from experiments.papers.occ.calibration import COEFFICIENT, cosine
from jaxrl_llm.config import (
  EstimatorConfig,
  LossConfig,
  ModelConfig,
  StepConfig,
  TermConfig,
)
from jaxrl_llm.models import Model
from jaxrl_llm.objective.loss import policy_loss, policy_stats, sft_loss
from jaxrl_llm.registry import LOSS_TERMS
from jaxrl_llm.training import transforms
from jaxrl_llm.training.packing import Packer
from jaxrl_llm.training.train_step import gradients
from jaxrl_llm.types import Bins, Rollout, SupervisedBatch, TrainBatch

ROWS, LENGTH = 16, 16
MODEL = Model(ModelConfig(vocab_size=16, width=16, num_layers=1, num_heads=2, num_kv_heads=2,
                          head_dim=8, mlp_width=24, mtp=True))
NAMES = ("mtp_detach", "mtp_ce", "mtp_policy", "occ")


def loss_config(name, **numbers):
  unbounded = {"lambda_min": None, "lambda_max": None}
  numbers = numbers or (unbounded if name == "occ" else {"coef": 0.5})
  return LossConfig(EstimatorConfig("ppo", clip_low=0.9, clip_high=9.0), temperature=0.9,
                    max_new_tokens=15, term=TermConfig(name, **numbers))


@functools.cache
def parameters():
  return jax.tree.map(lambda x: 4 * x if x.ndim > 1 else x, MODEL.init(jax.random.key(0)))


@functools.cache
def sampled(seed=0):
  """A batch of ragged rows: prompts from 1 token on, holes in the mask, a row without tokens and a
  dropped one. The anchors are near the policy's log-probs; where nothing is read they are NaN.
  """
  rng = np.random.default_rng(seed)
  shape = (ROWS, LENGTH)
  length = rng.integers(4, LENGTH + 1, ROWS).astype(np.int32)
  start = rng.integers(1, 4, ROWS).astype(np.int32)
  at = np.arange(LENGTH)
  mask = (at >= start[:, None]) & (at < length[:, None]) & (rng.random(shape) < 0.9)
  mask[3] = False
  ids = np.arange(ROWS, dtype=np.int32)
  tokens = np.where(at < length[:, None], rng.integers(0, 16, shape), 0).astype(np.int32)
  behavior = np.where(mask, -2.5, 0).astype(np.float32)
  rollout = Rollout(tokens, mask, length, start, behavior, ids < 0, 0 * ids, 0 * ids, ids, ids // 4)
  weights = np.where(mask & (ids != 7)[:, None], 0.1 * rng.random(shape), 0).astype(np.float32)
  advantages = rng.standard_normal(shape).astype(np.float32)
  batch = jax.tree.map(jnp.asarray, TrainBatch(rollout, advantages, weights, None,
                                               np.ones(shape, np.float32)))
  stats = policy_stats(parameters(), batch, model=MODEL, cfg=loss_config("mtp_policy"),
                       stats=frozenset({"mtp_log_probs"}))
  near = [jnp.where(mask, x + 0.2 * rng.standard_normal(shape), jnp.nan).astype(jnp.float32)
          for x in (stats.log_probs, stats.mtp_log_probs)]
  return batch.replace(anchor_log_probs=near[0], columns={mtp.ANCHOR: near[1]},
                       at_anchor=jnp.zeros(ROWS, bool))


def calibrated(params, batch, last, cfg, packing=None):
  """(batch with the coefficient, coefficient, metrics) as OCC's transform finds them."""
  return transforms.active(cfg)["occ"].before(params, batch, last,
                                              transforms.StepParts(MODEL, cfg, packing))


@functools.partial(jax.jit, static_argnames=("name", "micro_batches"))
def loss_of(batch, params, name, micro_batches=1, packing=None):
  """((loss, metrics), gradient) as `train_step` computes them, and the coefficient, or 0."""
  cfg, coefficient = StepConfig(loss_config(name), micro_batches), jnp.float32(0)
  if name == "occ":
    batch, coefficient, _ = calibrated(params, batch, coefficient, cfg, packing)
  return gradients(params, batch, loss=policy_loss, model=MODEL, cfg=cfg,
                   packing=packing), coefficient


def close(a, b, tolerance=2e-4):
  def leaf(x, y):
    largest = max(1.0, float(np.max(np.abs(y), initial=0, where=np.isfinite(y))))
    np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * largest)

  jax.tree.map(leaf, a, b)


# --- how a batch is computed changes nothing


def padded(batch, width=5):
  """The batch with further columns, of which nothing may be read."""
  def wider(x):
    if x.ndim < 2:
      return x
    fill = jnp.nan if jnp.issubdtype(x.dtype, jnp.floating) else 0
    fill = 0 if x is batch.loss_weights else fill
    return jnp.pad(x, ((0, 0), (0, width)), constant_values=fill)

  return jax.tree.map(wider, batch)


def without_nan(batch):
  """Log-probs and advantages that a sampler would give at padding."""
  return batch.replace(advantages=jnp.nan_to_num(batch.advantages),
                       correction_weights=jnp.nan_to_num(batch.correction_weights, nan=1.0))


def reordered(batch):
  order = np.random.default_rng(1).permutation(ROWS)
  return jax.tree.map(lambda x: x[order], batch)


@pytest.mark.parametrize("name", quick_of((), {name: (name,) for name in NAMES}, slow={"occ"}))
def test_padding_order_micro_batches_and_bins_change_nothing(name):
  batch, params = sampled(), parameters()
  expected = loss_of(batch, params, name)
  assert np.isfinite(expected[0][0][0]) and (name != "occ" or abs(float(expected[1])) > 1e-3)
  assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(expected[0][1]))
  close(loss_of(reordered(without_nan(padded(batch))), params, name, micro_batches=4), expected)
  packing = Packer(Bins(40, 4), 2, 1)(np.asarray(batch.rollout.length))
  assert packing.count > 1
  close(loss_of(batch, params, name, packing=packing), expected)
  if name == "occ":  # what this rejects: a coefficient of each micro-batch
    half = jax.tree.map(lambda x: x[:ROWS // 2], batch)
    with pytest.raises(AssertionError):
      close(loss_of(half, params, name)[1], expected[1])


# --- what the losses are


def by_hand(name, batch, params):
  """(loss of the head, coefficient) in numpy, from the log-probs."""
  cfg = loss_config(name)
  stats = policy_stats(params, batch, model=MODEL, cfg=cfg, stats=frozenset({"mtp_log_probs"}))
  weights = np.asarray(batch.loss_weights, np.float64)
  counted = np.asarray(batch.rollout.mask) & (np.arange(LENGTH) >= 2)
  log_probs, anchor, advantage = (np.asarray(x, np.float64)[counted] for x in (
      stats.mtp_log_probs, batch.columns[mtp.ANCHOR], batch.advantages))
  if name in ("mtp_detach", "mtp_ce"):
    return 0.5 * np.sum(weights[counted] * -log_probs), 0.5
  ratio = np.exp(log_probs - anchor)
  loss = -np.minimum(ratio * advantage, np.clip(ratio, 0.1, 10) * advantage)
  live = counted & (weights > 0)
  d_main = (stats.log_probs - batch.anchor_log_probs)[live]
  d_own = (stats.mtp_log_probs - batch.columns[mtp.ANCHOR])[live]
  coefficient = 0.5 if name == "mtp_policy" else np.sum(d_main * d_own) / np.sum(d_own**2)
  return coefficient * np.sum(weights[counted] * loss), coefficient


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_loss_is_that_of_the_formula(name):
  batch, params = sampled(), parameters()
  (loss, metrics), _ = loss_of(batch, params, name)[0]
  plain = dataclasses.replace(loss_config(name), term=None)
  without, _ = policy_loss(params, batch, model=MODEL, cfg=plain)
  expected, coefficient = by_hand(name, batch, params)
  np.testing.assert_allclose(loss - without, expected, rtol=1e-3, atol=1e-5)
  if name == "occ":
    np.testing.assert_allclose(loss_of(batch, params, name)[1], coefficient, rtol=1e-3)
  else:
    mean = metrics["mtp/coefficient"]
    assert mean.total / mean.count == 0.5


@pytest.mark.nightly
def test_a_cross_entropy_ignores_weights_that_know_advantages():
  batch, params = sampled(), parameters()
  plain = batch.replace(regularizer_weights=jnp.where(batch.loss_weights > 0, 0.05, 0.0))
  changed = plain.replace(loss_weights=3 * plain.loss_weights)
  losses = {name: [float(loss_of(b, params, name)[0][0][0]
                         - policy_loss(params, b, model=MODEL,
                                       cfg=dataclasses.replace(loss_config(name), term=None))[0])
                   for b in (plain, changed)] for name in ("mtp_ce", "mtp_policy")}
  assert losses["mtp_ce"][0] == pytest.approx(losses["mtp_ce"][1], rel=1e-4)
  assert losses["mtp_policy"][1] == pytest.approx(3 * losses["mtp_policy"][0], rel=1e-3)


@pytest.mark.slow
def test_the_warm_start_trains_the_head():
  batch, params = sampled(), parameters()
  rows = SupervisedBatch(batch.rollout.tokens, batch.rollout.length, batch.loss_weights)
  plain, metrics = sft_loss(params, rows, model=MODEL, cfg=None)
  assert set(metrics) == {"loss/sft"}
  cfg = LossConfig(mtp_coef=0.3)
  loss, metrics = sft_loss(params, rows, model=MODEL, cfg=cfg)
  log_probs = policy_stats(params, batch, model=MODEL, cfg=LossConfig(),
                           stats=frozenset({"mtp_log_probs"})).mtp_log_probs
  counted = np.asarray(batch.loss_weights) * (np.arange(LENGTH) >= 2)
  assert float(loss - plain) == pytest.approx(-0.3 * float(np.sum(counted * log_probs)), rel=1e-4)
  assert float(metrics["loss/mtp"].count) == np.sum(counted > 0)


# --- the coefficient


def coefficient(change, mtp_change, last=0.3, **numbers):
  change, mtp_change = (jnp.asarray(x, jnp.float32)[None] for x in (change, mtp_change))
  entry, cfg = LOSS_TERMS["occ"], LOSS_TERMS.numbers(TermConfig("occ", **numbers))
  return float(entry.transform(cfg).coefficient(change, mtp_change, jnp.ones_like(change, bool),
                                                jnp.float32(last)))


@pytest.mark.slow
def test_clamp_and_carry():
  assert coefficient([1, 0], [2, 0]) == pytest.approx(0.5)
  assert coefficient([1, 0], [2, 0], lambda_plus=0.5) == pytest.approx(0.25)
  assert coefficient([3, 0], [1, 0]) == 1 and coefficient([3, 0], [1, 0], lambda_max=2.0) == 2
  assert coefficient([3, 0], [1, 0], lambda_max=None) == pytest.approx(3)
  assert coefficient([-1, 0], [2, 0]) == 0
  assert coefficient([-1, 0], [2, 0], lambda_min=None) == pytest.approx(-0.5)
  assert coefficient([1, 0], [0, 0]) == pytest.approx(0.3)
  assert coefficient([1, 0], [0, 0], carry=False) == 0


@pytest.mark.slow
def test_the_first_optimizer_batch_keeps_the_last_coefficient():
  """What differs from the anchor there is rounding, of which no coefficient is made."""
  batch, params, cfg = sampled(), parameters(), StepConfig(loss_config("occ"))
  first = batch.replace(at_anchor=jnp.ones(ROWS, bool))

  def run(batch):
    return calibrated(params, batch, jnp.float32(0.7), cfg)

  first_batch, scalar, metrics = run(first)
  assert float(scalar) == np.float32(0.7) and metrics["mtp/cosine"].count == 0
  assert set(np.asarray(first_batch.columns[COEFFICIENT]).tolist()) == {np.float32(0.7)}
  _, scalar, metrics = run(batch)
  assert float(scalar) != np.float32(0.7) and metrics["mtp/cosine"].count == 1
  with pytest.raises(ValueError, match="without the column 'mtp_coefficient'"):
    policy_loss(params, batch, model=MODEL, cfg=cfg.loss)


# --- the form of the public code


# Log-probs of policy, head and old policy in two completions of three columns, the last padding.
NOW, AHEAD, OLD = np.array([[[-1., -.6, -2.], [-.4, -1.5, 0]], [[-.5, -1., -1.], [-2., -.9, 0]],
                            [[-1.2, -.8, -1.5], [-.7, -1.1, 0]]])
CODE_SCALE = 0.5 * (.2 / .7 + .2 / -.2 + -.5 / .5 + .3 / -1.3 + -.4 / .2 + 0) / 6


def code_form(change, mtp_change, mask):
  cfg = mtp.Occ(lambda_plus=0.5, code_compat=True)
  return mtp.calibrate(change, mtp_change, mask, jnp.float32(9), cfg)


def test_the_form_of_the_code_worked_out_by_hand():
  """The mean of quotients over padding, too: negative here, and not clamped."""
  def scale(form):
    change, mtp_change = (jnp.asarray(x - OLD, jnp.float32) for x in (NOW, AHEAD))
    return float(form(change, mtp_change, jnp.asarray(OLD != 0)))

  assert scale(code_form) == pytest.approx(CODE_SCALE, rel=1e-5)
  ratio_of_sums = lambda main, ahead, mask: 0.5 * jnp.sum(main * ahead) / jnp.sum(ahead**2)
  without_padding = lambda main, ahead, mask: (
      0.5 * jnp.sum(main / jnp.where(mask, ahead, 1)) / jnp.sum(mask))
  clamped = lambda *given: jnp.clip(code_form(*given), 0, 1)
  for wrong in (ratio_of_sums, without_padding, clamped):
    assert scale(wrong) != pytest.approx(CODE_SCALE, rel=1e-2)


# --- what the coefficient measures: a toy of two heads on one trunk


def two_heads(alignment, seed=0, tokens=6, size=8):
  """(log-probs of policy and head [2, T] as a function of the trunk [T, size], advantages [T]).

  Each token has its own row of the trunk. The head's matrix is `alignment` times the policy's plus
  the rest of the other, orthogonal one, so that all tokens have gradients of one size.
  """
  rng = np.random.default_rng(seed)
  basis = np.linalg.qr(rng.standard_normal((size, size)))[0]
  policy, other = basis[:4], basis[4:]
  head = alignment * policy + np.sqrt(1 - alignment**2) * other
  chosen, advantages = rng.integers(0, 4, tokens), rng.standard_normal(tokens)

  def log_probs(states):
    logits = jnp.einsum("td,hvd->htv", states, jnp.stack([policy, head]))
    return jnp.take_along_axis(jax.nn.log_softmax(logits), chosen[None, :, None], 2)[..., 0]

  return log_probs, jnp.asarray(advantages), jnp.zeros((tokens, size))


def inner_products(log_probs, advantages, states):
  """(c, v^2, the head's gradient): of the true policy gradients of both heads in the trunk."""
  jacobian = jax.jacobian(log_probs)(states)
  policy, head = jnp.einsum("t,htij->hij", advantages, jacobian)
  return float(jnp.sum(policy * head)), float(jnp.sum(head * head)), head


def calibrated_of(change, head_change):
  """The coefficient from what a step changes of both log-probs, by the quotient alone: the toy's
  steps are so small that the constant beside it counts.
  """
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(mtp, "EPSILON", 0.0)
    return float(mtp.calibrate(change[None], head_change[None], jnp.ones((1, len(change)), bool),
                               jnp.float32(0), mtp.Occ(lambda_min=None, lambda_max=None)))


def after_a_step(quotient, log_probs, states, direction, step):
  return float(quotient(*(log_probs(states + step * direction) - log_probs(states))))


def tracks(quotient) -> bool:
  """Whether a quotient of the changes of a step along the head's gradient tends to c / v^2 linearly
  in the step; for token gradients of one size the limit is exact.
  """
  with jax.enable_x64(True):
    for seed, alignment in enumerate((-0.8, -0.3, 0.2, 0.5, 0.9)):
      log_probs, advantages, states = two_heads(alignment, seed)
      c, v_squared, head = inner_products(log_probs, advantages, states)
      assert c / v_squared == pytest.approx(alignment)
      errors = [abs(after_a_step(quotient, log_probs, states, head, step) - c / v_squared)
                for step in (1e-1, 1e-2, 1e-3)]
      if not (errors[0] < 0.3 and errors[1] < errors[0] / 5 and errors[2] < 1e-3):
        return False
  return True


@pytest.mark.slow
def test_the_coefficient_tracks_the_gradients_for_small_steps():
  assert tracks(calibrated_of)
  other_norm = lambda main, head: jnp.sum(main * head) / jnp.sum(main**2)
  no_norm = lambda main, head: jnp.sum(main * head)
  for wrong in (other_norm, no_norm, lambda main, head: cosine(main[None], head[None])):
    assert not tracks(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("alignment", [0.2, 0.5, 0.9])
def test_along_another_step_the_quotient_is_another_one(alignment):
  """The relation holds along the head's own gradient only: derivations.md says so.

  A step along the policy's gradient gives 1 / alignment, and one along both with the coefficient k
  gives (1 + k alignment) / (alignment + k), of which 1 is the fixed point whatever the alignment.
  """
  with jax.enable_x64(True):
    log_probs, advantages, states = two_heads(alignment)
    jacobian = jax.jacobian(log_probs)(states)
    policy, head = jnp.einsum("t,htij->hij", advantages, jacobian)
    run = functools.partial(after_a_step, calibrated_of, log_probs, states, step=1e-5)
    assert run(policy) == pytest.approx(1 / alignment, rel=1e-3)
    for k in (0.3, 1.0, 2.0):
      expected = (1 + k * alignment) / (alignment + k)
      assert run(policy + k * head) == pytest.approx(expected, rel=1e-3)


# --- the table


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "message"), [
    ({"needs": {"values"}, "coef": 0.1}, "allowed are"),
    ({"calibrate": mtp.calibrate}, "mtp_anchor_log_probs"),
    ({}, "no number coef"),
])
def test_the_table_refuses(arguments, message):
  with pytest.raises(ValueError, match=message):
    mtp.mtp("refused", **arguments)(lambda inputs, cfg: inputs.mtp_log_probs)
  assert "refused" not in LOSS_TERMS.names()
