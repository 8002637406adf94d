"""Vocabulary pruning: which tokens a sampling rule keeps, for the sampler and the scorer alike.

A rule is one entry of a table: the key of its number, the value that keeps every token, and which
logits it keeps. The config, the sampler and the scorer read it there. The rules are applied one
after the other, as in common sampling libraries: top-k, then top-p on the distribution renormalised
over the top k, then min-p. Each of these keeps the logits at or above a threshold. Hence equal
logits are kept or removed together, and the order of the vocabulary does not matter. The most
likely token is always kept.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxrl_llm.fields import option
from jaxrl_llm.registry import VOCABULARY, Entry


@dataclasses.dataclass(frozen=True)
class RuleEntry(Entry):
  """A rule in the table.

  Attributes:
    function: `keep(logits, value) -> bool [..., V]`, True on the kept tokens. The logits [..., V]
      are divided by the temperature; those that earlier rules removed are the lowest finite number.
      `value` is a scalar, traced or not.
    numbers: dataclass of one option, which has the rule's name.
  """

  @property
  def keeps_all(self):
    """Returns the value with which every token is kept: the option's default."""
    return next(iter(self.defaults.values()))


def register(name: str, keeps_all: int | float, doc: str = "", *, low=None, high=None,
             replace: bool = False):
  """Returns a decorator that enters a rule: `keep(logits, value)`, see `RuleEntry`.

  Args:
    name: of the key, `vocabulary.<name>`.
    keeps_all: the value with which every token is kept, the key's default and of its type; the rule
      is left out of programs then.
    doc, low, high: of the key, see `fields.option`.
    replace: overwrites an entry on purpose, for notebooks that run a cell again.

  Raises:
    ValueError: the name is taken.
  """
  field = option(keeps_all, doc or f"number of the rule {name!r}", low=low, high=high)
  numbers = dataclasses.make_dataclass(f"Numbers_{name}", [(name, type(keeps_all), field)],
                                       frozen=True)
  return VOCABULARY.register(name, numbers, replace=replace, make=RuleEntry)


def support(logits: Float[Array, "*B V"], **rules) -> Bool[Array, "*B V"]:
  """Returns True on the tokens that all rules keep; a constant for gradients.

  Args:
    logits: [..., V], divided by the temperature.
    **rules: values by name, scalars, traced or not; None leaves a rule out of the program, and so
      does its absence. They are applied in the order in which they were registered.

  Returns:
    [..., V] bool.

  Raises:
    ConfigError: an unknown rule, or a plugin's that fails or returns something else.
  """
  logits = lax.stop_gradient(logits)
  keep = jnp.ones(logits.shape, bool)
  for name, entry in _ordered(rules):
    remaining = prune(logits, keep)
    with VOCABULARY.blamed(name):
      kept = entry.function(remaining, rules[name])
      keep &= _checked(kept, remaining) if entry.of_plugin else kept
  return keep


def _checked(kept, logits) -> Bool[Array, "*B V"]:
  """Returns the tokens that a plugin's rule keeps, and the most likely one in any case."""
  shape, dtype = getattr(kept, "shape", None), getattr(kept, "dtype", None)
  if (shape, dtype) != (logits.shape, bool):
    described = f"{dtype}{list(shape)}" if shape is not None else type(kept).__name__
    raise TypeError(f"it returned {described} for logits {list(logits.shape)}; bool of their shape "
                    "was expected")
  return kept | (logits == jnp.max(logits, -1, keepdims=True))


def _ordered(rules: dict) -> list[tuple[str, RuleEntry]]:
  """Returns (name, entry) of the rules that have a value, in the table's order."""
  entries = {name: VOCABULARY[name] for name in rules}
  return [(name, entries[name]) for name in VOCABULARY.entries if rules.get(name) is not None]


def prune(logits: Float[Array, "*B V"], keep: Bool[Array, "*B V"]) -> Float[Array, "*B V"]:
  """Returns logits [..., V] of the distribution renormalised over `keep`.

  Tokens outside get the lowest finite number. Their probability is exactly 0 and has no gradient,
  and p * log p is 0 there rather than NaN, as it would be with -inf.
  """
  return jnp.where(keep, logits, jnp.finfo(logits.dtype).min)


def active(**rules) -> Bool[Array, ""]:
  """Returns whether these values of rules can prune anything; None prunes nothing."""
  prunes = [jnp.asarray(rules[name]) != entry.keeps_all for name, entry in _ordered(rules)]
  return jnp.any(jnp.stack([jnp.asarray(False), *prunes]))


def _at_least(logits, prunes, threshold) -> Array:
  """Returns where a logit reaches threshold(logits in descending order) [..., 1]; True everywhere
  unless `prunes`, without sorting.
  """
  def cut(logits):
    return threshold(-jnp.sort(-logits, -1))

  def no_cut(logits):
    return jnp.full((*logits.shape[:-1], 1), -jnp.inf, logits.dtype)

  return logits >= lax.cond(prunes, cut, no_cut, logits)


def _entry_at(by_logit, index) -> Array:
  return jnp.take_along_axis(by_logit, jnp.broadcast_to(index, (*by_logit.shape[:-1], 1)), -1)


@register("top_k", 0, "keeps the k most likely tokens; 0: all", low=0)
def _top_k(logits, value):
  """Keeps z >= the k-th largest logit, ties included."""
  value = jnp.asarray(value, jnp.int32)
  last = jnp.minimum(value, logits.shape[-1]) - 1
  return _at_least(logits, value > 0, lambda by_logit: _entry_at(by_logit, last))


@register("top_p", 1.0, "keeps the most likely tokens that reach this mass; 1: all", low=1e-6,
          high=1.0)
def _top_p(logits, value):
  """Keeps the fewest most likely tokens whose probabilities sum to top_p, and ties with the last
  of them.
  """
  value = jnp.asarray(value, logits.dtype)

  def threshold(by_logit):
    mass = jax.nn.softmax(by_logit, -1)
    mass_before = jnp.cumsum(mass, -1) - mass
    in_nucleus = mass_before < value * jnp.sum(mass, -1, keepdims=True)
    count = jnp.clip(jnp.sum(in_nucleus, -1, keepdims=True), 1, by_logit.shape[-1])
    return _entry_at(by_logit, count - 1)

  return _at_least(logits, value < 1, threshold)


@register("min_p", 0.0, "keeps tokens with at least this share of the top probability; 0: all",
          low=0.0, high=1.0)
def _min_p(logits, value):
  """Keeps z >= z_max + log(min_p), that is p >= min_p * p_max.

  Source: dynamic vocabulary pruning, arXiv 2512.23087. That its rule is min-p is our reading.
  """
  # Clipping to 1 keeps the most likely token for any value; log(0) = -inf keeps every token.
  log_value = jnp.log(jnp.clip(jnp.asarray(value, logits.dtype), 0, 1))
  return logits >= jnp.max(logits, -1, keepdims=True) + log_value
