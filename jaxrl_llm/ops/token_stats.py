"""Statistics of the next-token distribution at given tokens, without the logits of a full batch.

Hidden states are cut into chunks along the length, and a chunk's logits live only inside one step
of a scan. A backward pass of our own computes them a second time instead of storing them.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxrl_llm.ops import vocabulary
from jaxrl_llm.types import TokenStats

CHUNK = 1024  # tokens per chunk; at V = 151,936 a chunk of f32 logits takes 0.6 GB
# Chunks at least where columns are not read, so that most cost nothing, but each moves the head:
SKIPPED, FEW = 4, 512  # so FEW tokens are one chunk
TILE = 128  # columns; a TPU's compiler takes minutes for a wide chunk of another length
# Allowed names of `stats`; log_probs is returned in any case.
STATS = frozenset({"log_probs", "entropy", "sum_pi_squared", "kept_mass", "in_support"})


class _Requested(NamedTuple):
  """The static choices of `token_stats`, which change the compiled program."""

  stats: frozenset[str]
  entropy_gradient: bool


class _Softmax(NamedTuple):
  """The distribution of a token: its head, temperature, rules by name, and banned tokens."""

  head: Array
  temperature: Array
  rules: dict[str, Array]
  banned: tuple[Array, Array] | None


def scaled_logits(hidden: Float[Array, "... D"], head: Float[Array, "D V"],
                  temperature) -> Float[Array, "... V"]:
  """Returns logits divided by the temperature, in f32 (f64 for f64 input), for sampler and scorer
  alike.
  """
  logits = jnp.einsum("...d,dv->...v", hidden, head.astype(hidden.dtype),
                      preferred_element_type=_accumulator(hidden))
  return logits / temperature


def token_stats(hidden: Float[Array, "*B L D"], head: Float[Array, "D V"],
                targets: Int[Array, "*B L"], *, temperature,
                banned: tuple[Bool[Array, " V"], Bool[Array, "*B L"]] | None = None,
                stats: frozenset[str] = frozenset(), entropy_gradient: bool = False,
                read: Bool[Array, "*B L"] | None = None, **rules) -> TokenStats:
  """Returns log-probabilities of `targets`, and further statistics of softmax(hidden @ head /
  temperature).

  With rules or banned, the distribution is p_S, renormalised over the kept tokens S:

    log p_S(a) = z_a - lse_S(z)         d log p_S(a) / dz_k = 1[k = a] - p_S(k), exactly 0 outside S
    entropy, sum_pi_squared             of p_S
    kept_mass = exp(lse_S(z) - lse(z))  1 without pruning

  The set S is a constant for gradients. A target outside S has in_support False, and its log-prob
  z_a - lse_S(z) is finite and a constant.

  Args:
    hidden: [..., L, D] float.
    head: [D, V] float.
    targets: [..., L] int, ids below V.
    temperature: positive scalar, traced or not; without gradient.
    banned: (tokens [V] bool, positions [..., L] bool): these tokens are never in S at these
      positions, and the other rules see the distribution without them. None bans nothing.
    stats: subset of STATS.
    entropy_gradient: lets gradients flow through `entropy`; leave it off where entropy is only
      logged. sum_pi_squared and kept_mass never carry a gradient.
    read: [..., L] bool, False where the statistics are not read. A chunk in which nothing is read
      is not computed and gets 0 (False). None: all are read.
    **rules: values by name, such as top_p, traced or not, see ops/vocabulary.py; None leaves a rule
      out.

  Returns:
    TokenStats shaped as `targets`, in f32 (f64 for f64 input); in_support is bool.

  Raises:
    ValueError: a name in `stats` that does not exist.

  Source: arXiv 2512.23087 (vocabulary pruning), arXiv 2602.07078 (use of sum_pi_squared).
  """
  unknown = stats - STATS
  if unknown:
    raise ValueError(f"stats = {sorted(unknown)}: allowed are {sorted(STATS)}")
  length = targets.shape[-1]
  width = _chunk_width(length, targets.size,
                       1 if read is None or targets.size <= FEW else SKIPPED)
  steps = -(-length // width)
  chunks = functools.partial(_split_length, axis=targets.ndim - 1, steps=steps, width=width)
  temperature = jnp.asarray(temperature, _accumulator(hidden))
  rules = {name: jnp.asarray(value) for name, value in rules.items() if value is not None}
  temperature, rules = lax.stop_gradient((temperature, rules))
  ids, positions = (None, None) if banned is None else (banned[0], chunks(banned[1]))
  read = None if read is None else chunks(read)

  def chunk(args):
    hidden, targets, positions, read_mask = args
    banned = None if positions is None else (ids, positions)
    softmax = _Softmax(head, temperature, rules, banned)
    return _chunk_stats(_Requested(stats, entropy_gradient), hidden, targets, softmax,
                        None if read_mask is None else jnp.any(read_mask))

  def join(x):
    return jnp.moveaxis(x, 0, -2).reshape(*targets.shape[:-1], steps * width)[..., :length]

  out = lax.map(chunk, (chunks(hidden), chunks(targets), positions, read))
  return TokenStats(**{name: join(value) for name, value in out.items()})


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _chunk_stats(request: _Requested, hidden, targets, softmax: _Softmax,
                 is_read) -> dict[str, Array]:
  """Returns the statistics of one chunk, by name; all 0 if `is_read` is False."""
  return _forward(request, hidden, targets, softmax, is_read)[0]


def _if_read(is_read, function, *arguments):
  """Returns function(*arguments), or zeros of its shapes if `is_read`, a scalar, is False; None is
  True.
  """
  if is_read is None:
    return function(*arguments)

  def zeros(*arguments):
    return jax.tree.map(jnp.zeros_like, jax.eval_shape(function, *arguments))

  return lax.cond(is_read, function, zeros, *arguments)


def _forward(request, hidden, targets, softmax: _Softmax, is_read):
  inputs = (hidden, targets, softmax)
  out, normaliser = _if_read(is_read, functools.partial(_stats_and_normaliser, request), *inputs)
  return out, (*inputs, is_read, normaliser, out.get("entropy"))


def _stats_and_normaliser(request, hidden, targets, softmax: _Softmax):
  """log p = z_a - lse(z);  H = lse(z) - sum p z;  sum p^2 = sum exp(2 (z - lse(z)))."""
  full_logits = scaled_logits(hidden, softmax.head, softmax.temperature)
  logits, in_support = _pruned(full_logits, targets, softmax.rules, softmax.banned)
  normaliser = jax.nn.logsumexp(logits, -1)
  out = {"log_probs": _gather_targets(full_logits, targets) - normaliser}
  if "entropy" in request.stats:
    out["entropy"] = normaliser - jnp.sum(jnp.exp(logits - normaliser[..., None]) * logits, -1)
  if "sum_pi_squared" in request.stats:
    out["sum_pi_squared"] = jnp.sum(jnp.exp(2 * (logits - normaliser[..., None])), -1)
  if "kept_mass" in request.stats:
    if in_support is None:
      neg_log_mass = jnp.zeros_like(normaliser)
    else:
      neg_log_mass = jax.nn.logsumexp(full_logits, -1) - normaliser
    out["kept_mass"] = jnp.exp(-jnp.maximum(neg_log_mass, 0))  # rounding could lift it above 1
  if "in_support" in request.stats:
    out["in_support"] = jnp.ones(targets.shape, bool) if in_support is None else in_support
  return out, normaliser


def _backward(request, residuals, cotangents):
  *inputs, is_read, normaliser, entropy = residuals
  cotangents = {name: cotangents[name] for name in ("log_probs", "entropy") if name in cotangents}
  d_hidden, d_head = _if_read(is_read, functools.partial(_gradients, request), inputs, normaliser,
                              entropy, cotangents)
  return d_hidden, None, _Softmax(d_head, None, None, None), None


def _gradients(request, inputs, normaliser, entropy, cotangents):
  """d log p / dz_k = 1[k = a] - p_k;  dH / dz_k = -p_k (log p_k + H). Outside S, p_k = 0."""
  hidden, targets, (head, temperature, rules, banned) = inputs
  logits, in_support = _pruned(scaled_logits(hidden, head, temperature), targets, rules, banned)
  log_p = logits - normaliser[..., None]
  p = jnp.exp(log_p)
  one_hot = jnp.arange(head.shape[1]) == targets[..., None]
  d_log_probs = cotangents["log_probs"]
  if in_support is not None:
    d_log_probs = jnp.where(in_support, d_log_probs, 0)
  d_logits = d_log_probs[..., None] * (one_hot - p)
  if "entropy" in request.stats and request.entropy_gradient:
    d_logits -= cotangents["entropy"][..., None] * p * (log_p + entropy[..., None])
  d_logits = (d_logits / temperature).astype(hidden.dtype)
  d_hidden = jnp.einsum("...v,dv->...d", d_logits, head.astype(hidden.dtype))
  d_head = jnp.einsum("...d,...v->dv", hidden, d_logits,
                      preferred_element_type=_accumulator(hidden))
  return d_hidden, d_head.astype(head.dtype)


_chunk_stats.defvjp(_forward, _backward)


def _pruned(logits, targets, rules: dict[str, Any], banned) -> tuple[Array, Array | None]:
  """Returns (logits of the kept tokens, whether each target is kept); without a rule, (logits,
  None).
  """
  if not rules and banned is None:
    return logits, None
  if banned is None:
    keep = vocabulary.support(logits, **rules)
  else:
    ids, positions = banned
    keep = candidates = ~(positions[..., None] & ids)
    if rules:
      # `allowed &` because a threshold below every allowed token would keep banned ones as well.
      keep = candidates & vocabulary.support(vocabulary.prune(logits, candidates), **rules)
  return vocabulary.prune(logits, keep), _gather_targets(keep, targets)


def _gather_targets(x: Array, targets: Array) -> Array:
  """Returns the entries of x [..., V] at `targets`."""
  return jnp.take_along_axis(x, targets[..., None], -1)[..., 0]


def _accumulator(x: Array):
  return jnp.promote_types(x.dtype, jnp.float32)


def _chunk_width(length: int, tokens: int, least: int) -> int:
  """Returns the columns of a chunk: `least` equal chunks, or as many as CHUNK tokens need."""
  steps = min(length, max(least, -(-tokens // CHUNK)))
  width = -(-length // steps)
  return -(-width // TILE) * TILE if steps > 1 and width > TILE else width


def _split_length(x: Array, axis: int, steps: int, width: int) -> Array:
  """Converts [.., L, ..] to [steps, .., width, ..] along `axis`, zero-padded.

  The split is along the length, so that no row moves to another device.
  """
  padding = [(0, 0)] * x.ndim
  padding[axis] = (0, steps * width - x.shape[axis])
  x = jnp.pad(x, padding).reshape(*x.shape[:axis], steps, width, *x.shape[axis + 1:])
  return jnp.moveaxis(x, axis, 0)
