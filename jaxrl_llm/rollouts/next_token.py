"""One token per row from its hidden state: the one definition that all samplers share.

The noise of a token is a function of (key, row_id, position) only.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxrl_llm.ops import vocabulary
from jaxrl_llm.ops.token_stats import scaled_logits
from jaxrl_llm.registry import VOCABULARY
from jaxrl_llm.types import Sampling

NOISE = "logit_noise"  # what changes a distribution besides the temperature and `Sampling.rules`


def rules_on(sampling: Sampling) -> frozenset[str]:
  """Returns the names of rules, and NOISE, whose values, which must not be traced, change anything.
  """
  values = jax.device_get(sampling)
  on = {name: value != VOCABULARY[name].keeps_all for name, value in values.rules.items()}
  on[NOISE] = values.logit_noise > 0
  return frozenset(name for name, changes in on.items() if changes)


def row_keys(key: Array, row_id: Int[Array, " B"]) -> Array:
  """Returns [B] keys, fold_in(key, row_id)."""
  return jax.vmap(jax.random.fold_in, (None, 0))(key, row_id)


class Draw(NamedTuple):
  """The key and the sampling rules of sampled rows.

  Attributes:
    key: consumed; a row's noise comes from it and the row's id.
    sampling: temperature and vocabulary.
  """

  key: Array
  sampling: Sampling


def sample_token(hidden, head, noise: tuple[Array, Array], sampling: Sampling,
                 forbidden: Bool[Array, "B V"] | None = None, *,
                 rules: frozenset[str] | None = None) -> tuple[Array, Array]:
  """Samples the next token of each row by the Gumbel maximum, or by arg max at temperature 0.

  Args:
    hidden: [B, D], state that predicts the token.
    head: [D, V].
    noise: keys [B] from `row_keys`, and the position [B] int32 of the sampled token in its row; a
      token's noise comes from fold_in(keys, position).
    sampling: traced.
    forbidden: tokens of probability 0; the others are renormalised before the rules of `sampling`
      apply. None allows every token.
    rules: as `rules_on` returns them, those that may be on. The others are left out of the program,
      and their values are not read: a sort of the vocabulary takes a compiler longer than
      everything else in a step. None: all may.

  Returns:
    (token [B] int32, its log-probability [B] f32 in nats, which is 0 at temperature 0).
  """
  greedy = sampling.temperature == 0
  logits = scaled_logits(hidden, head, jnp.where(greedy, 1.0, sampling.temperature))
  if forbidden is not None:
    logits = vocabulary.prune(logits, ~forbidden)
  keys = jax.vmap(jax.random.fold_in)(*noise)
  rules = frozenset((*sampling.rules, NOISE)) if rules is None else rules
  logits = _truncate(logits, sampling, keys, rules) if rules else logits
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


def _truncate(logits: Float[Array, "B V"], sampling: Sampling, keys,
              rules: frozenset[str]) -> Float[Array, "B V"]:
  """Adds the sampler's own noise, and prunes tokens outside the rules' support; returns the same
  logits if neither is on.

  Args:
    keys: [B]; the noise comes from fold_in(key, 1), so that it is independent of the Gumbel noise.
    rules: as in `sample_token`; at least one.
  """
  pruning = {name: sampling.rules[name] for name in sorted(rules - {NOISE})}
  noisy = NOISE in rules

  def normal(key):
    return jax.random.normal(jax.random.fold_in(key, 1), logits.shape[-1:], jnp.float32)

  def disturb(x):
    scale = sampling.logit_noise / jnp.where(sampling.temperature == 0, 1.0, sampling.temperature)
    return x + scale * jax.vmap(normal)(keys)

  def change(x):
    if noisy:
      x = lax.cond(sampling.logit_noise > 0, disturb, keep, x)
    return vocabulary.prune(x, vocabulary.support(x, **pruning)) if pruning else x

  def keep(x):
    return x

  changes = vocabulary.active(**pruning)
  if noisy:
    changes |= sampling.logit_noise > 0
  return lax.cond(changes, change, keep, logits)
