"""One token per row from its hidden state: the one definition that all samplers share.

The noise of a token is a function of (key, row_id, position) alone.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxrl_llm.ops import vocabulary
from jaxrl_llm.ops.token_stats import scaled_logits
from jaxrl_llm.types import Sampling


def row_keys(key: Array, row_id: Int[Array, " B"]) -> Array:
  """[B] keys: fold_in(key, row_id)."""
  return jax.vmap(jax.random.fold_in, (None, 0))(key, row_id)


def draw(hidden, head, keys, position, sampling: Sampling,
         forbidden: Bool[Array, "B V"] | None = None) -> tuple[Array, Array]:
  """(token [B], its log-probability [B]) by the Gumbel maximum; the arg max itself at temperature
  0.

  Args:
    hidden: [B, D], of the token before.
    head: [D, V].
    keys: [B], of `row_keys`; the noise is that of fold_in(keys, position).
    position: [B] int32, which the token will have.
    sampling: traced.
    forbidden: tokens that have probability 0; the others are renormalised before the rules apply.
      None: all may come.
  """
  greedy = sampling.temperature == 0
  logits = scaled_logits(hidden, head, jnp.where(greedy, 1.0, sampling.temperature))
  if forbidden is not None:
    logits = vocabulary.prune(logits, ~forbidden)
  logits = _truncate(logits, sampling)
  noise = jax.vmap(lambda k: jax.random.gumbel(k, logits.shape[-1:], jnp.float32))(
      jax.vmap(jax.random.fold_in)(keys, position))
  token = first_arg_max(logits + jnp.where(greedy, 0.0, noise))
  log_prob = jnp.take_along_axis(logits, token[:, None], -1)[:, 0] - jax.nn.logsumexp(logits, -1)
  return token, jnp.where(greedy, 0.0, log_prob)


def first_arg_max(x: Float[Array, "B V"]) -> Int[Array, " B"]:
  """As jnp.argmax where nothing is NaN: two plain reductions, which a CPU runs faster than one over
  pairs.

  A row with a NaN gives the last index, a legal token, and its log-probability tells.
  """
  last = x.shape[-1] - 1
  best = x == jnp.max(x, -1, keepdims=True)
  return jnp.min(jnp.where(best, jnp.arange(last + 1, dtype=jnp.int32), last), -1)


def _truncate(logits: Float[Array, "B V"], sampling: Sampling) -> Float[Array, "B V"]:
  """Logits of the kept tokens; the very same logits where no rule is on."""
  rules = {"top_k": sampling.top_k, "top_p": sampling.top_p, "min_p": sampling.min_p}
  prune = lambda x: vocabulary.prune(x, vocabulary.support(x, **rules))
  return lax.cond(vocabulary.active(**rules), prune, lambda x: x, logits)
