"""Vocabulary pruning: which tokens a sampling rule keeps. One definition for the sampler and for
the scorer.

The rules follow one another as in common sampling libraries: top-k, then top-p on the distribution
renormalised over the top k, then min-p. Min-p compares with the largest probability, which no
renormalisation moves relative to the others, so the result is the intersection of three sets. Each
is {z >= a threshold}: equal logits share their fate, and the set does not depend on the order of
the vocabulary. The most likely token is always kept.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float


def support(logits: Float[Array, "*B V"], *, top_k=None, top_p=None,
            min_p=None) -> Bool[Array, "*B V"]:
  """True on the kept tokens; a constant, without gradient.

    min_p   z >= z_max + log(min_p), that is p >= min_p * max p                                       0 keeps all
    top_k   z >= the k-th largest logit; ties with it are kept                                        0 keeps all
    top_p   the fewest most likely tokens (of the top k) whose mass reaches top_p, and ties at the cut  1 keeps all

  Args:
    logits: [..., V], divided by the temperature.
    top_k, top_p, min_p: scalars, traced or not; None leaves a rule out of the program. The
      vocabulary is sorted only where top_k or top_p is given, and, under `lax.cond`, only if its
      value prunes.

  Source: min-p form of dynamic vocabulary pruning, arXiv 2512.23087, methods E23.2 (unconfirmed
  there).
  """
  logits = lax.stop_gradient(logits)
  keep = jnp.ones(logits.shape, bool)
  if min_p is not None:
    # The outer bound keeps the most likely token where min_p exceeds 1; log(0) = -inf keeps every
    # token.
    log_min_p = jnp.log(jnp.clip(jnp.asarray(min_p, logits.dtype), 0, 1))
    keep &= logits >= jnp.max(logits, -1, keepdims=True) + log_min_p
  if top_k is not None or top_p is not None:
    keep &= logits >= _sorted_threshold(logits, 0 if top_k is None else top_k,
                                        1.0 if top_p is None else top_p)
  return keep


def prune(logits: Float[Array, "*B V"], keep: Bool[Array, "*B V"]) -> Float[Array, "*B V"]:
  """Logits of the distribution renormalised over `keep`.

  Tokens outside get the least finite number: probability exactly 0 and no gradient, and 0 * log 0
  stays 0.
  """
  return jnp.where(keep, logits, jnp.finfo(logits.dtype).min)


def active(*, top_k=None, top_p=None, min_p=None) -> Bool[Array, ""]:
  """Whether these values can prune anything."""
  rules = ((top_k, lambda k: k > 0), (top_p, lambda p: p < 1), (min_p, lambda p: p > 0))
  return jnp.any(
      jnp.stack([jnp.asarray(False)] +
                [rule(jnp.asarray(x)) for x, rule in rules if x is not None]))


def _sorted_threshold(logits, top_k, top_p) -> Array:
  """[..., 1]: the least logit that top-k and top-p keep; -inf where neither prunes."""
  width = logits.shape[-1]
  top_k, top_p = jnp.asarray(top_k, jnp.int32), jnp.asarray(top_p, logits.dtype)

  def cut(logits):
    ordered = -jnp.sort(-logits, -1)
    last = jnp.where(top_k > 0, jnp.minimum(top_k, width), width) - 1
    by_rank = jnp.take_along_axis(ordered, jnp.broadcast_to(last, (*ordered.shape[:-1], 1)), -1)
    mass = jnp.where(ordered >= by_rank, jax.nn.softmax(ordered, -1), 0)
    before = jnp.cumsum(mass, -1) - mass
    needed = before < top_p * jnp.sum(mass, -1, keepdims=True)
    count = jnp.clip(jnp.sum(needed, -1, keepdims=True), 1, width)
    by_mass = jnp.where(top_p < 1, jnp.take_along_axis(ordered, count - 1, -1), -jnp.inf)
    return jnp.maximum(by_rank, by_mass)

  none = lambda logits: jnp.full((*logits.shape[:-1], 1), -jnp.inf, logits.dtype)
  return lax.cond((top_k > 0) | (top_p < 1), cut, none, logits)
