"""Measures the gap between the sampler's and the trainer's log-probs on the sampled tokens."""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxrl_llm.ops import masked
from jaxrl_llm.types import Extreme, Mean

# Edges between the buckets of the sampler's probability: rare tokens have most of the gap. The
# values are an own choice; no source names any.
PROBABILITY_EDGES = (0.01, 0.1, 0.5, 0.9)
RATIO_WINDOW = (0.9, 1.1)


def mismatch_metrics(scored_log_probs: Float[Array, "B L"], behavior_log_probs: Float[Array, "B L"],
                     mask: Bool[Array, "B L"]) -> dict[str, Mean | Extreme]:
  """Returns mergeable statistics of d = scored - behavior, nats, over the tokens where `mask`.

    mismatch/absolute  mean |d|
    mismatch/k1        -mean d
    mismatch/k3        mean(exp(d) - 1 - d)
    mismatch/outside   share of tokens with exp(d) outside [0.9, 1.1]
    mismatch/row       mean over rows of |sum_t d_t|; rows without a token do not count
    mismatch/range     smallest and largest d

  k1 and k3 both estimate KL(behavior || scored) where both log-probs are of one vocabulary; k3 has
  less variance and no negative term.

  The first four come again as `<name>/by_probability`, with one entry per bucket of exp(behavior):
  the edges are 0, 0.01, 0.1, 0.5, 0.9 and 1, and a bucket includes its lower edge. A bucket without
  a token has count 0. Nothing is clipped.

  Args:
    scored_log_probs: [B, L], by the scorer under the parameters that sampled. Under other
      parameters, their drift is measured too.
    behavior_log_probs: [B, L], of the distribution that the tokens were sampled from.
    mask: [B, L]; False on tokens that the policy did not sample, or that are outside the scorer's
      pruned vocabulary. Rows without a valid reward belong in: the gap does not depend on it.

  Source: arXiv 2512.23087 for the dependence on probability; objective/mismatch.md, "Metrics of the
  ratio".
  """
  behavior = masked.masked(behavior_log_probs, mask)
  d = lax.stop_gradient(masked.masked(scored_log_probs, mask) - behavior)
  low, high = np.log(RATIO_WINDOW)
  tokens = {"absolute": jnp.abs(d), "k1": -d, "k3": jnp.expm1(d) - d,
            "outside": ((d < low) | (d > high)).astype(d.dtype)}
  edges = jnp.asarray(np.log(PROBABILITY_EDGES), behavior.dtype)
  bucket = jnp.searchsorted(edges, behavior, side="right")
  in_bucket = mask & (bucket == jnp.arange(len(PROBABILITY_EDGES) + 1)[:, None, None])
  metrics: dict[str, Mean | Extreme] = {}
  for name, values in tokens.items():
    metrics[f"mismatch/{name}"] = masked.mean(values, mask)
    metrics[f"mismatch/{name}/by_probability"] = Mean(
        jnp.sum(masked.masked(values, in_bucket), (1, 2)),
        jnp.sum(in_bucket, (1, 2)).astype(jnp.float32))
  metrics["mismatch/row"] = masked.mean(jnp.abs(jnp.sum(d, 1)), jnp.any(mask, 1))
  metrics["mismatch/range"] = masked.extreme(d, mask)
  return metrics
