"""One token per row from its hidden state: the one definition that all samplers share.

The noise of a token is a function of (key, row_id, position) only.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxrl_llm.ops import vocabulary
from jaxrl_llm.ops.token_stats import scaled_logits
from jaxrl_llm.types import Sampling


def row_keys(key: Array, row_id: Int[Array, " B"]) -> Array:
  """Returns [B] keys, fold_in(key, row_id)."""
  return jax.vmap(jax.random.fold_in, (None, 0))(key, row_id)


def sample_token(hidden, head, keys, position, sampling: Sampling,
                 forbidden: Bool[Array, "B V"] | None = None) -> tuple[Array, Array]:
  """Samples the next token of each row by the Gumbel maximum, or by arg max at temperature 0.

  Args:
    hidden: [B, D], state that predicts the token.
    head: [D, V].
    keys: [B], from `row_keys`; the noise of a token comes from fold_in(keys, position).
    position: [B] int32, position of the sampled token in its row.
    sampling: traced.
    forbidden: tokens of probability 0; the others are renormalised before the rules of `sampling`
      apply. None allows every token.

  Returns:
    (token [B] int32, its log-probability [B] f32 in nats, which is 0 at temperature 0).
  """
  greedy = sampling.temperature == 0
  logits = scaled_logits(hidden, head, jnp.where(greedy, 1.0, sampling.temperature))
  if forbidden is not None:
    logits = vocabulary.prune(logits, ~forbidden)
  keys = jax.vmap(jax.random.fold_in)(keys, position)
  logits = _truncate(logits, sampling, keys)
  noise = _gumbel(keys, logits.shape[-1])
  token = first_arg_max(logits + jnp.where(greedy, 0.0, noise))
  log_prob = jnp.take_along_axis(logits, token[:, None], -1)[:, 0] - jax.nn.logsumexp(logits, -1)
  return token, jnp.where(greedy, 0.0, log_prob)


def first_arg_max(x: Float[Array, "B V"]) -> Int[Array, " B"]:
  """Returns the first index of each row's maximum, as jnp.argmax does for rows without NaN.

  Two plain reductions, because a CPU runs them faster than one reduction over pairs. A row with a
  NaN gives the last index: a legal token, whose log-probability is NaN.
  """
  last = x.shape[-1] - 1
  best = x == jnp.max(x, -1, keepdims=True)
  return jnp.min(jnp.where(best, jnp.arange(last + 1, dtype=jnp.int32), last), -1)


def _gumbel(keys, size: int) -> Float[Array, "B V"]:
  """Returns Gumbel noise, each row from its own key."""

  def row_noise(key):
    return jax.random.gumbel(key, (size,), jnp.float32)

  return jax.vmap(row_noise)(keys)


def _truncate(logits: Float[Array, "B V"], sampling: Sampling, keys) -> Float[Array, "B V"]:
  """Adds the sampler's own noise, and prunes tokens outside the rules' support; returns the same
  logits if neither is on.

  Args:
    keys: [B]; the noise comes from fold_in(key, 1), so that it is independent of the Gumbel noise.
  """
  rules = {"top_k": sampling.top_k, "top_p": sampling.top_p, "min_p": sampling.min_p}

  def normal(key):
    return jax.random.normal(jax.random.fold_in(key, 1), logits.shape[-1:], jnp.float32)

  def disturb(x):
    scale = sampling.logit_noise / jnp.where(sampling.temperature == 0, 1.0, sampling.temperature)
    return x + scale * jax.vmap(normal)(keys)

  def change(x):
    x = lax.cond(sampling.logit_noise > 0, disturb, keep, x)
    return vocabulary.prune(x, vocabulary.support(x, **rules))

  def keep(x):
    return x

  changes = vocabulary.active(**rules) | (sampling.logit_noise > 0)
  return lax.cond(changes, change, keep, logits)
