"""Per-token estimators of KL(policy || reference) from tokens that the policy sampled."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrl_llm.objective.estimators.common import masked_log_ratio


def _k1(d):
  return d


def _k2(d):
  return jnp.square(d) / 2


def _k3(d):
  return jnp.expm1(-d) + d


_TABLE = {"k1": _k1, "k2": _k2, "k3": _k3}


def get_divergence(name: str):
  """divergence(log_probs, ref_log_probs, mask) -> [B, L] f32, 0 where mask is False.

  With d = log_probs - ref_log_probs, kept within +-20:

    name  value              estimate of KL(pi || ref)   expected gradient in the loss, on-policy
    k1    d                  unbiased                    0
    k2    d^2 / 2            biased                      grad KL(pi || ref)
    k3    exp(-d) - 1 + d    unbiased, never negative    grad KL(ref || pi): the other direction

  Source: methods A13.
  """
  if name not in _TABLE:
    raise ValueError(f"divergence {name!r}: allowed are {', '.join(_TABLE)}")

  def divergence(log_probs: Float[Array, "B L"], ref_log_probs: Float[Array, "B L"], mask: Bool[Array, "B L"]):
    return _TABLE[name](masked_log_ratio(log_probs, ref_log_probs, mask))

  return divergence
