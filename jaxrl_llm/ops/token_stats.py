"""Statistics of the next-token distribution at chosen tokens, without ever holding the logits of a whole batch.

Hidden states are cut into chunks along the length; a chunk's logits live only inside one step of a scan. The backward
pass is our own: it makes them once more, and from them the gradient of everything asked for.
"""

import functools

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
    temperature: positive scalar, traced or not; without gradient.
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
  temperature = lax.stop_gradient(jnp.asarray(temperature, jnp.float32))
  one = functools.partial(_chunk_stats, "entropy" in stats, entropy_gradient)
  out = lax.map(lambda args: one(args[0], head, args[1], temperature), (chunks(hidden), chunks(targets)))
  join = lambda x: jnp.moveaxis(x, 0, -2).reshape(*targets.shape[:-1], steps * width)[..., :length]
  return TokenStats(join(out[0]), join(out[1]) if "entropy" in stats else None)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _chunk_stats(with_entropy: bool, entropy_gradient: bool, hidden, head, targets, temperature):
  """(log_probs, entropy or None) of one chunk."""
  return _forward(with_entropy, entropy_gradient, hidden, head, targets, temperature)[0]


def _forward(with_entropy, entropy_gradient, hidden, head, targets, temperature):
  """log p = z_a - lse(z);  H = lse(z) - sum p z."""
  logits = scaled_logits(hidden, head, temperature)
  normaliser = jax.nn.logsumexp(logits, -1)
  log_probs = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0] - normaliser
  entropy = None
  if with_entropy:
    entropy = normaliser - jnp.sum(jnp.exp(logits - normaliser[..., None]) * logits, -1)
  return (log_probs, entropy), (hidden, head, targets, temperature, normaliser, entropy)


def _backward(with_entropy, entropy_gradient, saved, cotangents):
  """d log p / dz = 1[k = a] - p;  dH / dz = -p (log p + H)."""
  hidden, head, targets, temperature, normaliser, entropy = saved
  log_p = scaled_logits(hidden, head, temperature) - normaliser[..., None]
  p = jnp.exp(log_p)
  chosen = jnp.arange(head.shape[1]) == targets[..., None]
  d_logits = cotangents[0][..., None] * (chosen - p)
  if with_entropy and entropy_gradient:
    d_logits -= cotangents[1][..., None] * p * (log_p + entropy[..., None])
  d_logits = (d_logits / temperature).astype(hidden.dtype)
  d_hidden = jnp.einsum("...v,dv->...d", d_logits, head.astype(hidden.dtype))
  d_head = jnp.einsum("...d,...v->dv", hidden, d_logits, preferred_element_type=jnp.float32)
  return d_hidden, d_head.astype(head.dtype), None, None


_chunk_stats.defvjp(_forward, _backward)


def _split_length(x: Array, axis: int, steps: int, width: int) -> Array:
  """[.., L, ..] -> [steps, .., width, ..] along `axis`, zero-padded. Rows stay whole, so that none changes device."""
  padding = [(0, 0)] * x.ndim
  padding[axis] = (0, steps * width - x.shape[axis])
  x = jnp.pad(x, padding).reshape(*x.shape[:axis], steps, width, *x.shape[axis + 1:])
  return jnp.moveaxis(x, axis, 0)
