"""Step size by the effective sample size of the completions' weights (VCPO)."""

import jax.numpy as jnp
from jax import lax
from jax.scipy.special import logsumexp
from jaxtyping import Array, Bool, Float


def effective_share(log_weights: Float[Array, " B"],
                    rows: Bool[Array, " B"] | None = None) -> Float[Array, ""]:
  """Returns the effective sample size as a share of the completions, in [1 / B, 1].

    ess = (sum W)^2 / (sum W^2) / B

  It is computed in log space, so that no sum of log-ratios is too large. Equal weights, a single
  completion, and none at all have the share 1.

  Args:
    log_weights: [B], nats; not read where `rows` is False.
    rows: [B], the completions that count, which B is the number of; None: all.

  Source: VCPO, arXiv 2602.17616.
  """
  if rows is None:
    rows = jnp.ones(log_weights.shape, bool)
  masked_weights = jnp.where(rows, log_weights, -jnp.inf)
  count = jnp.sum(rows)
  total = 2 * logsumexp(masked_weights) - logsumexp(2 *
                                                    masked_weights) - jnp.log(jnp.maximum(count, 1))
  return lax.stop_gradient(jnp.where(count > 0, jnp.exp(jnp.minimum(total, 0.0)), 1.0))


def ess_step_scale(log_weights: Float[Array, " B"], *, power: float = 0.5,
                   reference: float = 1.0,
                   rows: Bool[Array, " B"] | None = None) -> Float[Array, ""]:
  """Returns the factor min(1, ess / reference)^power of a step; ess is `effective_share`.

  It belongs to the update: Adam would undo a factor of the loss.

  Args:
    log_weights: [B], nats, sum over the completion of log(anchor / behavior), not clipped; 0 for a
      completion without policy tokens, which counts.
    power: 0.5 with AdamW, 1 with SGD.
    reference: share at and above which the step is unscaled.
    rows: see `effective_share`.

  Source: VCPO, arXiv 2602.17616, and its code, whose reference is 1.0 for mathematics and 0.55 for
  several turns.
  """
  return jnp.minimum(effective_share(log_weights, rows) / reference, 1.0) ** power
