"""Statistics of the next-token distribution at chosen tokens, without ever holding logits of a whole batch.

Hidden states are cut into chunks along the length; each chunk's logits live only inside one step of a scan, in the
forward pass and, recomputed, in the backward pass.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxrl_llm.types import TokenStats

CHUNK = 1024  # tokens per chunk; at V = 151,936 a chunk of f32 logits takes 0.6 GB
STATS = frozenset({"log_probs", "entropy"})  # log_probs are always returned


def scaled_logits(hidden: Float[Array, "... D"], head: Float[Array, "D V"], temperature) -> Float[Array, "... V"]:
  """f32 logits divided by the temperature: the one definition that sampler and scorer share."""
  logits = jnp.einsum("...d,dv->...v", hidden, head.astype(hidden.dtype), preferred_element_type=jnp.float32)
  return logits / temperature


def token_stats(hidden: Float[Array, "*B L D"], head: Float[Array, "D V"], targets: Int[Array, "*B L"], *, temperature,
                stats: frozenset[str] = frozenset(), entropy_gradient: bool = False) -> TokenStats:
  """Log-probability of `targets` under softmax(hidden @ head / temperature), and further statistics asked for.

  Args:
    hidden: [..., L, D].
    head: [D, V].
    targets: [..., L] int, ids below V.
    temperature: positive scalar, traced or not.
    stats: subset of STATS.
    entropy_gradient: let gradients flow through `entropy`; off where it is only logged.

  Returns:
    TokenStats of f32 arrays shaped as `targets`.

  Raises:
    ValueError: a name in `stats` that does not exist.
  """
  unknown = stats - STATS
  if unknown:
    raise ValueError(f"stats = {sorted(unknown)}: allowed are {sorted(STATS)}")
  length = targets.shape[-1]
  steps = min(length, -(-targets.size // CHUNK))
  width = -(-length // steps)
  chunks = lambda x: _split_length(x, targets.ndim - 1, steps, width)

  @jax.checkpoint
  def chunk_stats(h, t):
    log_p = jax.nn.log_softmax(scaled_logits(h, head, temperature))
    out = {"log_probs": jnp.take_along_axis(log_p, t[..., None], -1)[..., 0]}
    if "entropy" in stats:
      log_p = log_p if entropy_gradient else lax.stop_gradient(log_p)
      out["entropy"] = -jnp.sum(jnp.exp(log_p) * log_p, -1)
    return out

  out = lax.map(lambda args: chunk_stats(*args), (chunks(hidden), chunks(targets)))
  join = lambda x: jnp.moveaxis(x, 0, -2).reshape(*targets.shape[:-1], steps * width)[..., :length]
  return TokenStats(**{name: join(x) for name, x in out.items()})


def _split_length(x: Array, axis: int, steps: int, width: int) -> Array:
  """[.., L, ..] -> [steps, .., width, ..] along `axis`, zero-padded. Rows stay whole, so that none changes device."""
  padding = [(0, 0)] * x.ndim
  padding[axis] = (0, steps * width - x.shape[axis])
  x = jnp.pad(x, padding).reshape(*x.shape[:axis], steps, width, *x.shape[axis + 1:])
  return jnp.moveaxis(x, axis, 0)
