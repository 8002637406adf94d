"""Preference losses and contrastive scores, worked out by hand and at their limits."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.papers.critical_tokens.dpo import DpoConfig, Side, contrastive_scores, dpo_loss

POS, NEG = [.6, .3, .1], [.2, .5, .3]
# (1 + beta) log P_pos - beta log P_neg, as powers of probabilities, normalised. For beta 1:
# .36 / .2 = 1.8, .09 / .5 = .18, .01 / .3 = .0333; their sum is 2.01333.
SCORES = {0.0: [.6, .3, .1], 0.5: [.78176, .17481, .04343], 1.0: [.89404, .08940, .01656]}


@pytest.mark.parametrize("beta", SCORES)
def test_scores_worked_out_by_hand(beta):
  scores = scores_of_all(contrastive_scores, beta)
  np.testing.assert_allclose(scores, SCORES[beta], atol=1e-5)
  assert not np.allclose(scores_of_all(not_normalised, beta), SCORES[beta], atol=1e-3) or beta == 0


def scores_of_all(score, beta):
  pos, neg = (jnp.log(jnp.asarray([p] * 3)) + shift for p, shift in ((POS, 3.0), (NEG, -1.0)))
  return score(pos, neg, jnp.arange(3), beta)


def not_normalised(pos, neg, tokens, beta):
  """The ratio of probabilities, without Z."""
  pos, neg = jax.nn.log_softmax(pos), jax.nn.log_softmax(neg)
  return jnp.take_along_axis(jnp.exp((1 + beta) * pos - beta * neg), tokens[:, None], 1)[:, 0]


# A pair in rows of five columns: a prompt of two, then two chosen and three rejected tokens.
# Columns outside the mask hold NaN. log(pi / pi_ref) of the chosen tokens: 0.3, -0.1; of the
# rejected ones: 0.2, 0.5, -0.4. s = 0.9, 0.1, 0.5, so 1 - s = 0.1, 0.9, 0.5.
X = np.nan
CHOSEN = Side(jnp.asarray([[X, X, -.7, -1.1, X]]), jnp.asarray([[X, X, -1., -1., X]]),
              jnp.asarray([[False, False, True, True, False]]))
REJECTED = Side(jnp.asarray([[X, X, -.8, -.5, -1.4]]), jnp.asarray([[X, X, -1., -1., -1.]]),
                jnp.asarray([[False, False, True, True, True]]))
S = jnp.asarray([[X, X, .9, .1, .5]])
# phi = 0.2; plain: phi = 0.3, margin -0.1; weighted: phi_s = .02 + .45 - .2 = .27, margin -.07.
PLAIN, WEIGHTED = np.log1p(np.exp(0.1)), np.log1p(np.exp(0.07))


def test_losses_worked_out_by_hand():
  np.testing.assert_allclose(dpo_loss(CHOSEN, REJECTED), [PLAIN], rtol=1e-6)
  np.testing.assert_allclose(dpo_loss(CHOSEN, REJECTED, rejected_w=1 - S), [WEIGHTED], rtol=1e-6)
  assert abs(PLAIN - WEIGHTED) > 0.01
  half = dpo_loss(CHOSEN, REJECTED, DpoConfig(gamma=0.5), rejected_w=1 - S)
  np.testing.assert_allclose(half, [np.log1p(np.exp(0.035))], rtol=1e-6)
  # RPO adds the mean of 0.7 and 1.1.
  rpo = dpo_loss(CHOSEN, REJECTED, DpoConfig(nll_coef=2.0))
  np.testing.assert_allclose(rpo, [PLAIN + 1.8], rtol=1e-6)
  # Weighted on the chosen side: 0.5 * 0.3 + 2 * -0.1 = -0.05, margin -0.35.
  weights = jnp.asarray([[X, X, 0.5, 2.0, X]])
  np.testing.assert_allclose(dpo_loss(CHOSEN, REJECTED, chosen_w=weights),
                             [np.log1p(np.exp(0.35))], rtol=1e-6)


def per_position(columns: int) -> float:
  """Columns 2 to 4: margins 0.3 - 0.02, -0.1 - 0.45 and 0 + 0.2. The prompt's second column, and
  what pads the row to further `columns`, have the margin 0; nothing predicts the first one.
  """
  margins = [0.0] * (1 + columns) + [0.28, -0.55, 0.2]
  return float(np.mean(np.log1p(np.exp(-np.asarray(margins)))))


def is_the_form_of_the_code(loss) -> bool:
  wide = [jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, 3))), side) for side in (CHOSEN, REJECTED)]
  weights = jnp.pad(1 - S, ((0, 0), (0, 3)))
  got = (loss(CHOSEN, REJECTED, rejected_w=1 - S), loss(*wide, rejected_w=weights))
  return np.allclose(np.ravel(got), [per_position(0), per_position(3)], rtol=1e-6)


def averages_covered_columns(chosen, rejected, rejected_w):
  """The mean over the columns where either side has a token."""
  covered = chosen.mask | rejected.mask
  parts = [w * jnp.where(side.mask, side.log_probs - side.ref_log_probs, 0)
           for side, w in ((chosen, 1), (rejected, jnp.where(rejected.mask, rejected_w, 0)))]
  losses = -jax.nn.log_sigmoid(parts[0] - parts[1])
  return jnp.sum(jnp.where(covered, losses, 0), -1) / jnp.sum(covered, -1)


def test_the_form_of_the_code_worked_out_by_hand():
  compat = functools.partial(dpo_loss, cfg=DpoConfig(code_compat=True))
  assert is_the_form_of_the_code(compat)
  assert not is_the_form_of_the_code(averages_covered_columns)
  assert not is_the_form_of_the_code(dpo_loss)


def random_pair(seed=0):
  rng = np.random.default_rng(seed)
  sides = []
  for _ in range(2):
    mask = np.arange(9) < rng.integers(3, 10, (4, 1))
    log_probs, ref = (jnp.asarray(-rng.random((4, 9)), jnp.float32) for _ in range(2))
    sides.append(Side(log_probs, ref, jnp.asarray(mask)))
  return (*sides, jnp.asarray(rng.random((4, 9)), jnp.float32))


def of_rejected(loss, weights, cfg=DpoConfig()):
  """The gradient [4, 9] of the loss for the rejected log-probs."""
  chosen, rejected, _ = random_pair()

  def total(log_probs):
    return jnp.sum(loss(chosen, dataclasses.replace(rejected, log_probs=log_probs), cfg,
                        rejected_w=weights))

  return np.asarray(jax.grad(total)(rejected.log_probs)), np.asarray(rejected.mask)


def weighs_tokens(loss) -> bool:
  """s = 0 is DPO, s = 1 has no gradient, and in between it is (1 - s) times a row's number."""
  chosen, rejected, s = random_pair()
  same = np.allclose(loss(chosen, rejected, DpoConfig(), rejected_w=jnp.ones((4, 9))),
                     loss(chosen, rejected, DpoConfig()), atol=1e-6)
  none, mask = of_rejected(loss, jnp.zeros((4, 9)))
  some, _ = of_rejected(loss, 1 - s)
  per_weight = np.where(mask, some / (1 - s), np.nan)
  constant = np.nanstd(per_weight, 1) < 1e-5 * np.nanmean(per_weight, 1)
  outside = (some[~mask] == 0).all()
  return bool(same and not none.any() and constant.all() and outside)


def weighs_the_whole_response(chosen, rejected, cfg, rejected_w=None):
  if rejected_w is not None:
    mean = jnp.sum(jnp.where(rejected.mask, rejected_w, 0), 1) / jnp.sum(rejected.mask, 1)
    rejected_w = jnp.broadcast_to(mean[:, None], rejected_w.shape)
  return dpo_loss(chosen, rejected, cfg, rejected_w=rejected_w)


def weighs_by_s(chosen, rejected, cfg, rejected_w=None):
  """Takes s where 1 - s is meant."""
  return dpo_loss(chosen, rejected, cfg,
                  rejected_w=None if rejected_w is None else 1 - rejected_w)


def weighs_the_policy_only(chosen, rejected, cfg, rejected_w=None):
  """Leaves the reference without weights."""
  if rejected_w is not None:
    log_probs = rejected_w * rejected.log_probs + (1 - rejected_w) * rejected.mask
    rejected = dataclasses.replace(rejected, log_probs=log_probs**2)
  return dpo_loss(chosen, rejected, cfg)


def test_weights_of_rejected_tokens():
  assert weighs_tokens(dpo_loss)
  for wrong in (weighs_the_whole_response, weighs_by_s, weighs_the_policy_only):
    assert not weighs_tokens(wrong), wrong


def finite_with_nan_in_front(loss) -> bool:
  def total(log_probs):
    return jnp.sum(loss(dataclasses.replace(CHOSEN, log_probs=log_probs), REJECTED))

  value, grad = jax.value_and_grad(total)(CHOSEN.log_probs)
  return bool(np.isfinite(value) and np.isfinite(grad).all())


def test_masked_columns_give_neither_nan_nor_gradient():
  for cfg in (DpoConfig(), DpoConfig(nll_coef=1.0), DpoConfig(code_compat=True)):
    assert finite_with_nan_in_front(
        lambda chosen, rejected, cfg=cfg: dpo_loss(chosen, rejected, cfg, rejected_w=1 - S))

  def multiplied(chosen, rejected):
    weights = np.asarray(chosen.mask, np.float32)
    return jnp.sum(weights * (chosen.log_probs - chosen.ref_log_probs))

  assert not finite_with_nan_in_front(multiplied)


def test_no_gradient_reaches_the_weights():
  chosen, rejected, s = random_pair()
  grad = jax.grad(lambda w: jnp.sum(dpo_loss(chosen, rejected, rejected_w=w, chosen_w=w)))(s)
  assert not np.asarray(grad).any()
