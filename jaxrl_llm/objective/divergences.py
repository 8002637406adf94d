"""Per-token estimators of KL(policy || reference) from tokens that the policy sampled."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxrl_llm.config import ConfigError
from jaxrl_llm.objective.estimators.common import masked_log_ratio

_PLAIN = {"k1": lambda d: d, "k2": lambda d: jnp.square(d) / 2, "k3": lambda d: jnp.expm1(-d) + d}


def _straight_through(name: str):
  """Returns a divergence with the value of the named one and the gradient of k2."""

  def divergence(d):
    k2 = _PLAIN["k2"](d)
    return lax.stop_gradient(_PLAIN[name](d)) + (k2 - lax.stop_gradient(k2))

  return divergence


_TABLE = _PLAIN | {"k1+": _straight_through("k1"), "k3+": _straight_through("k3")}
NAMES = tuple(_TABLE)


def get_divergence(name: str):
  """Returns divergence(log_probs, ref_log_probs, mask) -> [B, L], f32 or wider; 0 where masked.

  With d = log_probs - ref_log_probs, clipped to +-20:

    name  value              estimate of KL(pi || ref)   expected gradient in the loss, on-policy
    k1    d                  unbiased                    0
    k2    d^2 / 2            biased                      grad KL(pi || ref)
    k3    exp(-d) - 1 + d    unbiased, never negative    grad KL(ref || pi): the other direction
    k1+   d                  unbiased                    grad KL(pi || ref), k2's
    k3+   exp(-d) - 1 + d    unbiased, never negative    grad KL(pi || ref), k2's

  Times the ratio current / behavior, and differentiated through it, k1 and k3 also estimate
  KL(pi || ref) from tokens of the behavior policy, and both have its gradient. As a constant in the
  reward, k1 has that gradient through the policy gradient. Beyond |d| = 20 there is no gradient. k3
  has no further bound: it reaches exp(20). verl bounds it by 10, slime does not.

  Raises:
    ConfigError: for an unknown name, with the allowed ones.

  Source: k1, k2, k3: J. Schulman, Approximating KL Divergence, 2020; the gradients: own derivation;
  the ratio: DeepSeek-V3.2, arXiv 2512.02556.
  """
  if name not in _TABLE:
    raise ConfigError(f"kl.name = {name!r}: allowed are {', '.join(_TABLE)}.")

  def divergence(log_probs: Float[Array, "B L"], ref_log_probs: Float[Array, "B L"],
                 mask: Bool[Array, "B L"]):
    return _TABLE[name](masked_log_ratio(log_probs, ref_log_probs, mask))

  return divergence
