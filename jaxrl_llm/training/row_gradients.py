"""The column `row_gradient`: how large the gradient of each row's log-probability is."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxrl_llm import parallel
from jaxrl_llm.config import StepConfig
from jaxrl_llm.ops import masked
from jaxrl_llm.training.columns import ColumnParts, register
from jaxrl_llm.training.score import in_pieces, score
from jaxrl_llm.types import Bins, Params, Rollout, Sampling


@register("row_gradient", program="score_row_gradient")
def row_gradient(parts: ColumnParts) -> Callable[..., Array]:
  """Log of W^2 g^2 of each row, the same at all its tokens, f32; -inf where g is 0.

    g = || d sum_t log pi(a_t) / d weights ||      W = prod_t pi(a_t) / mu(a_t), not clipped

  pi is the policy at the start of the updates, mu the sampler. The norm is over all weights of the
  network; with adapters, over those that they are merged into. The advantage's number `importance`
  "none" leaves W out.

  Each row has a backward pass, one after the other on every device. Packing changes nothing.
  """
  weighted = getattr(parts.numbers, "importance", "product") == "product"
  mesh = getattr(parts.model.constrain, "mesh", None)
  shards = 1 if mesh is None else parallel.row_shards(mesh)

  def column(params: Params, rollout: Rollout, sampling: Sampling, *, packing=None) -> Array:
    del packing

    def run(rows: Rollout, bins: Bins | None = None) -> Array:
      del bins

      def totals(params):
        stats = score(params, rows, sampling, model=parts.model, cfg=StepConfig(parts.cfg.loss),
                      rules=parts.rules)
        return jnp.sum(masked.masked(stats.log_probs, rows.mask), -1)

      def squared_norm(row):
        leaves = jax.tree.leaves(pull(row)[0])
        return sum(jnp.sum(jnp.square(x.astype(jnp.float32))) for x in leaves)

      total, pull = jax.vjp(totals, params)
      energy = jnp.log(lax.map(squared_norm, jnp.eye(len(total), dtype=total.dtype)))
      if weighted:
        energy += 2 * (total - jnp.sum(masked.masked(rows.behavior_log_probs, rows.mask), -1))
      return jnp.broadcast_to(energy[:, None], rows.mask.shape)

    pieces = StepConfig(parts.cfg.loss, rollout.length.shape[0] // shards)
    return in_pieces(run, rollout, None, parts.model, pieces)

  return column
