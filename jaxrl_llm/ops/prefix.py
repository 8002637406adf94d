"""Prefix scans over the policy tokens of a row: `jax.lax.associative_scan` along the last axis.

Tokens whose mask is False are skipped: they add nothing to a sum, are never a minimum, and do not
advance a position. With `axis_name`, inside a `shard_map` that shards the length axis, each shard
scans its own part, and one all-gather of the shards' totals supplies what precedes it.

Do not differentiate these functions: estimators put every prefix statistic under `stop_gradient`
(objective/README.md). The minimum in particular has ties on-policy, and the shape of the scan tree
would decide how they share the gradient.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int


def cumulative_log_ratio(log_ratio: Float[Array, "*B L"], mask: Bool[Array, "*B L"], *,
                         axis_name: str | None = None) -> Float[Array, "*B L"]:
  """Returns the sum of the log-ratios up to and including each token.

    c_t = sum of log_ratio_i over i <= t with mask_i

  Args:
    log_ratio: [..., L] float, nats; ignored where mask is False. Sums run in f32 (f64 for f64
      input).
    mask: [..., L] bool.
    axis_name: mapped axis over which L is sharded, or None.

  Returns:
    [..., L]. Where mask is False: the value of the last policy token before it, 0 if there is none.

  Source: CTPO, arXiv 2605.07331.
  """
  values = jnp.where(mask, log_ratio, 0).astype(_accumulator(log_ratio))
  local = lax.associative_scan(jnp.add, values, axis=-1)
  if axis_name is None:
    return local
  return local + _before(local[..., -1], jnp.sum, 0.0, axis_name)[..., None]


def prefix_min(log_ratio: Float[Array, "*B L"], mask: Bool[Array, "*B L"], *,
               axis_name: str | None = None) -> Float[Array, "*B L"]:
  """Returns the smallest log-ratio before each token; arguments as `cumulative_log_ratio`.

    m_t = min of log_ratio_i over i < t with mask_i, 0 where there is no such i

  Source: MinPRO, arXiv 2601.22718. The value 0 (ratio 1) of an empty prefix is our convention.
  """
  values = jnp.where(mask, log_ratio, jnp.inf).astype(_accumulator(log_ratio))
  inclusive = lax.associative_scan(jnp.minimum, values, axis=-1)
  exclusive = jnp.concatenate([jnp.full_like(inclusive[..., :1], jnp.inf), inclusive[..., :-1]], -1)
  if axis_name is not None:
    earlier = _before(inclusive[..., -1], jnp.min, jnp.inf, axis_name)
    exclusive = jnp.minimum(exclusive, earlier[..., None])
  return jnp.where(jnp.isposinf(exclusive), 0.0, exclusive)


def discounted_suffix(values: Float[Array, "*B L"], mask: Bool[Array, "*B L"],
                      decay: float | Float[Array, "*B 1"]) -> Float[Array, "*B L"]:
  """Returns the sum of the values from each token on, discounted: s_t = values_t + decay * s_next.

  `next` is the row's next policy token: masked tokens neither add nor decay. The scan runs
  backwards.

  Args:
    values: [..., L] float; ignored where mask is False. Sums run in f32 (f64 for f64 input).
    mask: [..., L] bool.
    decay: per policy token, 0 to 1; one number, or one for each row.

  Returns:
    [..., L]. Where mask is False: the entry of the next policy token, 0 if there is none.

  Source: GAE, arXiv 1506.02438; FIPO, arXiv 2603.19835, has it for log-ratios.
  """
  values = jnp.where(mask, values, 0).astype(_accumulator(values))
  return linear_suffix(jnp.where(mask, decay, 1.0).astype(values.dtype), values)


def linear_suffix(decay: Float[Array, "*B L"], values: Float[Array, "*B L"]
                  ) -> Float[Array, "*B L"]:
  """Returns x_t = values_t + decay_t x_(t+1) along the last axis."""

  def join(later, earlier):
    return later[0] * earlier[0], earlier[1] + earlier[0] * later[1]

  return lax.associative_scan(join, (decay, values), reverse=True, axis=values.ndim - 1)[1]


def token_index(mask: Bool[Array, "*B L"], *, axis_name: str | None = None) -> Int[Array, "*B L"]:
  """Returns the 1-based count of policy tokens up to and including t; int32, and 0 before the
  first.
  """
  local = lax.associative_scan(jnp.add, mask.astype(jnp.int32), axis=-1)
  if axis_name is None:
    return local
  return local + _before(local[..., -1], jnp.sum, 0, axis_name)[..., None]


def _accumulator(x: Array):
  return jnp.promote_types(x.dtype, jnp.float32)


def _before(total: Array, reduce, identity, axis_name: str) -> Array:
  """Returns `reduce` of the totals of all shards that precede this one, `identity` for the first.
  """
  totals = lax.all_gather(total, axis_name)
  earlier = jnp.arange(totals.shape[0]) < lax.axis_index(axis_name)
  earlier = earlier.reshape((-1,) + (1,) * (totals.ndim - 1))
  return reduce(jnp.where(earlier, totals, identity), axis=0)
