"""Losses of preference pairs with token weights, and contrastive scores for such weights."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from jaxrl_llm.fields import ConfigError
from jaxrl_llm.ops import masked


@struct.dataclass
class Side:
  """The chosen or the rejected responses of a batch of pairs.

  Attributes:
    log_probs: [B, L] f32, nats, under the policy.
    ref_log_probs: [B, L] f32, nats, under the reference.
    mask: [B, L], True on the response.
  """

  log_probs: Float[Array, "B L"]
  ref_log_probs: Float[Array, "B L"]
  mask: Bool[Array, "B L"]


@dataclasses.dataclass(frozen=True)
class DpoConfig:
  """Hyperparameters of `dpo_loss`.

  Attributes:
    gamma: multiplies the log-ratios. cDPO's paper has 1.0, its public code 0.1; DPO calls it beta.
    nll_coef: weight of the chosen response's negative log-likelihood per token (RPO); 0: DPO.
    code_compat: the form of cDPO's public code, see `dpo_loss`.
  """

  gamma: float = 1.0
  nll_coef: float = 0.0
  code_compat: bool = False

  def __post_init__(self):
    if self.gamma <= 0 or self.nll_coef < 0:
      raise ConfigError(f"gamma = {self.gamma}, nll_coef = {self.nll_coef}: allowed are gamma > 0 "
                        "and nll_coef >= 0. Fix: DpoConfig(gamma=1.0, nll_coef=0.0).")


def dpo_loss(chosen: Side, rejected: Side, cfg: DpoConfig = DpoConfig(), *,
             chosen_w: Float[Array, "B L"] | None = None,
             rejected_w: Float[Array, "B L"] | None = None) -> Float[Array, " B"]:
  """Returns the loss of each pair.

    phi(y, w) = gamma sum_t w_t log(pi(y_t) / pi_ref(y_t))
    loss      = -log sigmoid(phi(chosen, chosen_w) - phi(rejected, rejected_w))
                + nll_coef * mean_t -log pi(chosen_t)

    weights None: DPO         nll_coef > 0: RPO         rejected_w = 1 - s: cDPO

  With `code_compat` nothing is summed inside the sigmoid: column t of the chosen row is paired with
  column t of the rejected one, and the loss is the mean of -log sigmoid over all columns but the
  first, which nothing predicts. A column without a token on one side counts as a log-ratio of 0
  there; prompt and padding, without one on both, add log 2 and no gradient. So the gradient falls
  with the width of the batch. Both rows must have their prompt in the same columns.

  Args:
    chosen, rejected: rows of the same prompts.
    cfg: numbers.
    chosen_w, rejected_w: weight of each token, a constant; None: 1.

  Source: DPO, arXiv 2305.18290, eq. 7; RPO's extra term, arXiv 2404.19733; cDPO, arXiv 2411.19943,
  and its public code (train_cdpo.py) for `code_compat`.
  """
  margin = (_weighted_log_ratio(chosen, chosen_w) - _weighted_log_ratio(rejected, rejected_w)
            if cfg.code_compat else
            jnp.sum(_weighted_log_ratio(chosen, chosen_w), -1)
            - jnp.sum(_weighted_log_ratio(rejected, rejected_w), -1))
  loss = -jax.nn.log_sigmoid(cfg.gamma * margin)
  if cfg.code_compat:
    loss = jnp.mean(loss[:, 1:], -1)
  if cfg.nll_coef:
    loss -= cfg.nll_coef * masked.row_mean(chosen.log_probs, chosen.mask)[:, 0]
  return loss


def _weighted_log_ratio(side: Side, weights) -> Float[Array, "B L"]:
  """Returns w_t log(pi / pi_ref), 0 where mask is False; no gradient reaches the weights."""
  log_ratio = (masked.masked(side.log_probs, side.mask)
               - masked.masked(side.ref_log_probs, side.mask))
  if weights is None:
    return log_ratio
  return jax.lax.stop_gradient(masked.masked(weights, side.mask)) * log_ratio


def contrastive_scores(pos: Float[Array, "*B V"], neg: Float[Array, "*B V"],
                       tokens: Int[Array, "*B"], beta: float = 1.0) -> Float[Array, "*B"]:
  """Returns s of each token: how much rather the positive model says it than the negative one.

    s = softmax((1 + beta) log P_pos - beta log P_neg)[token]

  Low: the token is typical of wrong responses. With beta 0 it is the positive model's probability.

  Args:
    pos, neg: [..., V] logits or log-probabilities of both models for the token's place.
    tokens: [...], ids.
    beta: strength of the contrast with the negative model; the paper has 1.

  Source: cDPO, arXiv 2411.19943.
  """
  pos, neg = (jax.nn.log_softmax(x.astype(jnp.float32)) for x in (pos, neg))
  scores = jax.nn.softmax((1 + beta) * pos - beta * neg)
  return jnp.take_along_axis(scores, tokens[..., None], -1)[..., 0]
