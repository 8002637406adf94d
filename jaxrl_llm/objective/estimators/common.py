"""What the estimators share: guarded ratios, the two surrogate forms, clip counts.

Both forms have the gradient -coefficient * grad log pi. A statistic that reaches back over a prefix
or a sequence is
a constant: differentiated, a running sum would credit every earlier token again for each later one
  (methods E2).
"""

import chex
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxrl_llm.ops import masked
from jaxrl_llm.types import EstimatorOutput, Mean

# |log ratio| of one token, and of a sequence sum, before anything is exponentiated
LOG_RATIO_BOUND = 20.0
# upper bound on the log of a prefix or mean ratio, as published for CTPO and GSPO
LOG_WEIGHT_BOUND = 10.0

Tokens = Float[Array, "B L"]
Mask = Bool[Array, "B L"]


def masked_log_ratio(log_probs: Tokens, anchor_log_probs: Tokens, mask: Mask) -> Tokens:
  """log_probs - anchor_log_probs in f32, within +-LOG_RATIO_BOUND, and 0 (without gradient) where
  mask is False.
  """
  chex.assert_rank([log_probs, anchor_log_probs, mask], 2)
  chex.assert_equal_shape([log_probs, anchor_log_probs, mask])
  difference = masked.masked(log_probs, mask) - masked.masked(anchor_log_probs, mask)
  return jnp.clip(difference, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def window(low, high) -> tuple[float, float]:
  """Bounds [1 - low, 1 + high] of a ratio; None leaves that side open."""
  return (0.0 if low is None else max(0.0, 1.0 - low)), (jnp.inf if high is None else 1.0 + high)


def with_gradient_of(weight: Tokens, log_probs: Tokens, mask: Mask) -> Tokens:
  """Value `weight`, gradient weight * grad log_probs; `weight` itself is a constant."""
  score = masked.masked(log_probs, mask)
  return lax.stop_gradient(weight) * jnp.exp(score - lax.stop_gradient(score))


def gated_surrogate(weight: Tokens, bound: Tokens, dropped: Mask, log_probs: Tokens,
                    advantages: Tokens, mask: Mask) -> Tokens:
  """-A * weight with the gradient -A * weight * grad log pi; where `dropped`, the constant -A *
  bound.

  A gate on the sign of the advantage is the same as min(w A, clip(w) A), without comparing two
  exponentials that ought to be equal (methods, "where implementations part ways" 8).
  """
  live = with_gradient_of(weight, log_probs, mask)
  loss = -lax.stop_gradient(advantages) * jnp.where(dropped, lax.stop_gradient(bound), live)
  return masked.masked(loss, mask)


def score_function_surrogate(weight: Tokens, log_probs: Tokens, advantages: Tokens,
                             mask: Mask) -> Tokens:
  """-stop_gradient(weight) * A * log pi: every token keeps a gradient."""
  loss = -lax.stop_gradient(weight * advantages) * masked.masked(log_probs, mask)
  return masked.masked(loss, mask)


def clip_counts(mask: Mask, *, high: Mask, low: Mask, dropped: Mask,
                dual: Mask | None = None) -> dict[str, Mean]:
  """Shares of policy tokens: beyond a bound (`high`, `low`, `dual`), and without gradient
  (`dropped`).
  """
  dual = jnp.zeros_like(mask) if dual is None else dual
  return {f"clip/{name}": masked.mean(jnp.broadcast_to(where, mask.shape).astype(jnp.float32), mask)
          for name, where in (("high", high), ("low", low), ("dual", dual), ("dropped", dropped))}


def output(per_token_loss: Tokens, metrics: dict[str, Mean]) -> EstimatorOutput:
  chex.assert_rank(per_token_loss, 2)
  return EstimatorOutput(per_token_loss, metrics)
