"""Vocabulary pruning: which tokens a sampling rule keeps, for the sampler and the scorer alike.

The rules are applied as in common sampling libraries: top-k, then top-p on the distribution
renormalised over the top k, then min-p. Renormalising does not change ratios of probabilities, so
min-p does not depend on the other two. Each rule keeps the logits at or above a threshold, and a
token is kept if it passes all three. Hence equal logits are kept or removed together, and the order
of the vocabulary does not matter. The most likely token is always kept.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float


def support(logits: Float[Array, "*B V"], *, top_k=None, top_p=None,
            min_p=None) -> Bool[Array, "*B V"]:
  """Returns True on the kept tokens; a constant for gradients.

    top_k   keep z >= the k-th largest logit, ties included                        0 keeps all
    top_p   keep the fewest most likely tokens (of the top k) whose probabilities
            sum to top_p, and ties with the last of them                           1 keeps all
    min_p   keep z >= z_max + log(min_p), that is p >= min_p * p_max               0 keeps all

  Args:
    logits: [..., V], divided by the temperature.
    top_k, top_p, min_p: scalars, traced or not; None leaves a rule out of the program. The
      vocabulary is sorted only where top_k or top_p is given, and, under `lax.cond`, only if its
      value prunes.

  Returns:
    [..., V] bool.

  Source: dynamic vocabulary pruning, arXiv 2512.23087. That its rule is min-p is our reading.
  """
  logits = lax.stop_gradient(logits)
  keep = jnp.ones(logits.shape, bool)
  if min_p is not None:
    # Clipping to 1 keeps the most likely token for any min_p; log(0) = -inf keeps every token.
    log_min_p = jnp.log(jnp.clip(jnp.asarray(min_p, logits.dtype), 0, 1))
    keep &= logits >= jnp.max(logits, -1, keepdims=True) + log_min_p
  if top_k is not None or top_p is not None:
    top_k = 0 if top_k is None else top_k
    top_p = 1.0 if top_p is None else top_p
    keep &= logits >= _sorted_threshold(logits, top_k, top_p)
  return keep


def prune(logits: Float[Array, "*B V"], keep: Bool[Array, "*B V"]) -> Float[Array, "*B V"]:
  """Returns logits [..., V] of the distribution renormalised over `keep`.

  Tokens outside get the lowest finite number. Their probability is exactly 0 and has no gradient,
  and p * log p is 0 there rather than NaN, as it would be with -inf.
  """
  return jnp.where(keep, logits, jnp.finfo(logits.dtype).min)


def active(*, top_k=None, top_p=None, min_p=None) -> Bool[Array, ""]:
  """Returns whether these values can prune anything."""
  prunes = [jnp.asarray(False)]
  if top_k is not None:
    prunes.append(jnp.asarray(top_k) > 0)
  if top_p is not None:
    prunes.append(jnp.asarray(top_p) < 1)
  if min_p is not None:
    prunes.append(jnp.asarray(min_p) > 0)
  return jnp.any(jnp.stack(prunes))


def _sorted_threshold(logits, top_k, top_p) -> Array:
  """Returns the lowest logit [..., 1] that top-k and top-p keep; -inf where neither prunes."""
  width = logits.shape[-1]
  top_k, top_p = jnp.asarray(top_k, jnp.int32), jnp.asarray(top_p, logits.dtype)

  def cut(logits):
    by_logit = -jnp.sort(-logits, -1)
    last = jnp.where(top_k > 0, jnp.minimum(top_k, width), width) - 1
    by_rank = jnp.take_along_axis(by_logit, jnp.broadcast_to(last, (*by_logit.shape[:-1], 1)), -1)
    mass = jnp.where(by_logit >= by_rank, jax.nn.softmax(by_logit, -1), 0)
    mass_before = jnp.cumsum(mass, -1) - mass
    in_nucleus = mass_before < top_p * jnp.sum(mass, -1, keepdims=True)
    count = jnp.clip(jnp.sum(in_nucleus, -1, keepdims=True), 1, width)
    by_mass = jnp.where(top_p < 1, jnp.take_along_axis(by_logit, count - 1, -1), -jnp.inf)
    return jnp.maximum(by_rank, by_mass)

  def no_cut(logits):
    return jnp.full((*logits.shape[:-1], 1), -jnp.inf, logits.dtype)

  return lax.cond((top_k > 0) | (top_p < 1), cut, no_cut, logits)
