"""Shared by the estimators: guarded ratios, the two forms of a surrogate loss, clip counts.

Both forms have the gradient -coefficient * grad log pi. A statistic of a prefix or a sequence is a
constant: differentiated, a running sum would credit every earlier token again for each later one.
"""

import math

import chex
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxrl_llm.ops import masked
from jaxrl_llm.types import EstimatorOutput, Mean

# Bound on |log ratio| of one token, and of a row's sum, before it is exponentiated.
LOG_RATIO_BOUND = 20.0
# Upper bound on the log of a prefix or mean ratio, as published for CTPO and GSPO.
LOG_WEIGHT_BOUND = 10.0
# What the options of these names say.
CLIP_LOW = "the weight is clipped below 1 - clip_low; none: unbounded"
CLIP_HIGH = "the weight is clipped above 1 + clip_high; none: unbounded"
DUAL_CLIP = "ratio above which a negative advantage has no gradient; none: no bound"

Tokens = Float[Array, "B L"]
Mask = Bool[Array, "B L"]


def masked_log_ratio(log_probs: Tokens, anchor_log_probs: Tokens, mask: Mask) -> Tokens:
  """Returns log_probs - anchor_log_probs in f32 or wider, clipped to +-LOG_RATIO_BOUND.

  Masked tokens have 0 and no gradient; the anchor has none anywhere.
  """
  chex.assert_rank([log_probs, anchor_log_probs, mask], 2)
  chex.assert_equal_shape([log_probs, anchor_log_probs, mask])
  policy, anchor = masked.masked(log_probs, mask), masked.masked(anchor_log_probs, mask)
  difference = policy - lax.stop_gradient(anchor)
  return jnp.clip(difference, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def window(low, high) -> tuple[float, float]:
  """Returns the bounds [1 - low, 1 + high] of a ratio; None leaves that side open."""
  return (0.0 if low is None else max(0.0, 1.0 - low)), (jnp.inf if high is None else 1.0 + high)


def with_gradient_of(weight: Tokens, log_probs: Tokens, mask: Mask) -> Tokens:
  """Returns the value `weight` with the gradient weight * grad log_probs."""
  score = masked.masked(log_probs, mask)
  return lax.stop_gradient(weight) * jnp.exp(score - lax.stop_gradient(score))


def gated_surrogate(weight: Tokens, bound: Tokens, dropped: Mask, log_probs: Tokens,
                    advantages: Tokens, mask: Mask) -> Tokens:
  """Returns -A * weight with the gradient -A * weight * grad log pi.

  Where `dropped`, it is the constant -A * bound. With `dropped` chosen by the sign of the advantage
  this equals -min(w A, clip(w) A), without comparing two exponentials that ought to be equal.
  """
  live = with_gradient_of(weight, log_probs, mask)
  loss = -lax.stop_gradient(advantages) * jnp.where(dropped, lax.stop_gradient(bound), live)
  return masked.masked(loss, mask)


def score_function_surrogate(weight: Tokens, log_probs: Tokens, advantages: Tokens,
                             mask: Mask) -> Tokens:
  """Returns -stop_gradient(weight) * A * log pi: every token keeps a gradient."""
  loss = -lax.stop_gradient(weight * advantages) * masked.masked(log_probs, mask)
  return masked.masked(loss, mask)


def with_coefficient(loss: Tokens, coefficient: Tokens, log_probs: Tokens, mask: Mask) -> Tokens:
  """Returns the value `loss` with the gradient -coefficient * grad log_probs; 0 where masked."""
  score = masked.masked(log_probs, mask)
  live = lax.stop_gradient(coefficient) * (score - lax.stop_gradient(score))
  return masked.masked(lax.stop_gradient(loss) - live, mask)


def row_log_ratio(log_ratio: Tokens) -> Float[Array, "B 1"]:
  """Returns the row's sum of log-ratios (0 where masked), clipped to +-LOG_RATIO_BOUND."""
  return jnp.clip(jnp.sum(log_ratio, -1, keepdims=True), -LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def saturated(log_ratio: Tokens) -> Mask:
  """Returns where a clipped log-ratio has reached its bound: a loss of the ratio is flat there."""
  return jnp.abs(log_ratio) >= LOG_RATIO_BOUND


def binary_divergence(log_p: Tokens, log_q: Tokens, smallest: float) -> Tokens:
  """Returns the larger KL, nats, of the two directions over two outcomes: this token, or another.

    max(D(p, q), D(q, p)),   D(p, q) = p log(p / q) + (1 - p) log((1 - p) / (1 - q))

  Args:
    log_p, log_q: log-probs of the token.
    smallest: both probabilities are clamped to [smallest, 1 - smallest].
  """
  low, high = math.log(smallest), math.log1p(-smallest)
  log_p, log_q = jnp.clip(log_p, low, high), jnp.clip(log_q, low, high)
  complement_p, complement_q = -jnp.expm1(log_p), -jnp.expm1(log_q)  # exact also where p is near 1
  token = log_p - log_q
  complement = jnp.log(complement_p) - jnp.log(complement_q)
  forward = jnp.exp(log_p) * token + complement_p * complement
  backward = -jnp.exp(log_q) * token - complement_q * complement
  return jnp.maximum(forward, backward)


def clip_counts(mask: Mask, *, high: Mask | None = None, low: Mask | None = None,
                dropped: Mask | None = None, dual: Mask | None = None) -> dict[str, Mean]:
  """Returns the shares of policy tokens beyond a bound (`high`, `low`, `dual`), or `dropped`.

  A dropped token has no gradient. None: no token.
  """
  shares = {}
  for name, clip_mask in (("high", high), ("low", low), ("dual", dual), ("dropped", dropped)):
    in_group = jnp.broadcast_to(False if clip_mask is None else clip_mask, mask.shape)
    shares[f"clip/{name}"] = masked.mean(in_group.astype(jnp.float32), mask)
  return shares


def clipped(per_token_loss: Tokens, mask: Mask, **beyond: Mask | None) -> EstimatorOutput:
  """Returns the EstimatorOutput of a [B, L] loss with `clip_counts`, whose arguments these are."""
  return output(per_token_loss, clip_counts(mask, **beyond))


def output(per_token_loss: Tokens, metrics: dict[str, Mean]) -> EstimatorOutput:
  """Returns the EstimatorOutput of a [B, L] loss and its metrics."""
  chex.assert_rank(per_token_loss, 2)
  return EstimatorOutput(per_token_loss, metrics)
