"""ARCA: the group's advantage, shared out over a row's tokens by how far adapters move each one.

Other signals of a token than the adapter's residual can share it out in the same way.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from experiments.papers.arca import residual  # enters the column
from jaxrl_llm import register
from jaxrl_llm.fields import option, when
from jaxrl_llm.objective.advantages import returns
from jaxrl_llm.objective.advantages.group import Grpo, grpo
from jaxrl_llm.ops import masked
from jaxrl_llm.types import AdvantageInputs, Mean

_EPSILON = 1e-8  # added to the sum of the signal
_OPTIONS = {
    ("signal", "adapter_residual"): {residual.COLUMN},
    ("signal", "surprisal"): {"anchor_log_probs"},
    ("signal", "entropy_drop"): {"entropy"},
    ("signal", "reference_gap"): {"anchor_log_probs", "ref_log_probs"},
}


@dataclasses.dataclass(frozen=True)
class Arca(Grpo):
  """Hyperparameters of `arca`."""

  signal: str = option("adapter_residual", "what weighs the tokens of a row",
                       choices=("adapter_residual", "surprisal", "entropy_drop", "reference_gap"))
  hidden_state: str = option(
      "normed", "state whose residual is taken: after the final norm, or before it; which one the "
      "paper takes is unconfirmed", choices=("normed", "stream"),
      when=when(".signal", "adapter_residual"))
  smallest: float = option(1e-6, "a row whose signal sums to no more gets equal weights", low=0.0)


def token_signal(inputs: AdvantageInputs, signal: str) -> Float[Array, "B L"]:
  """Returns the signal of each policy token, at least 0; 0 where mask or keep is False.

    adapter_residual  || h - h_base ||, the hidden states with and without adapters
    surprisal         -log pi of the token
    entropy_drop      max(0, H_before - H), with H_before of the row's policy token before; 0
                      at the first one
    reference_gap     | log pi - log pi_reference |
  """
  live = inputs.mask & returns.keep_mask(inputs)[:, None]
  if signal == "adapter_residual":
    signal_values = inputs.columns[residual.COLUMN]
  elif signal == "entropy_drop":
    backwards = returns.next_value(jnp.flip(inputs.entropy, -1), jnp.flip(live, -1))
    signal_values = jnp.flip(backwards, -1) - inputs.entropy
  else:
    signal_values = inputs.anchor_log_probs
    signal_values = jnp.abs(signal_values - inputs.ref_log_probs if signal == "reference_gap"
                            else signal_values)
  return jnp.maximum(masked.masked(signal_values, live), 0)


def token_weights(inputs: AdvantageInputs, cfg: Arca) -> Float[Array, "B L"]:
  """Returns n u / (sum u + 1e-8) over the n policy tokens of each row: their mean is 1.

  Where the signal u sums to no more than `cfg.smallest`, as with adapters that are still 0, each
  policy token has weight 1.
  """
  signal = token_signal(inputs, cfg.signal)
  total = jnp.sum(signal, -1, keepdims=True)
  count = jnp.sum(inputs.mask, -1, keepdims=True).astype(signal.dtype)
  weights = jnp.where(total <= cfg.smallest, 1, count * signal / (total + _EPSILON))
  return masked.masked(weights, inputs.mask)


def row_gini(weights: Float[Array, "B L"], mask: Bool[Array, "B L"]) -> Float[Array, " B"]:
  """Returns the Gini coefficient sum_{a,b} |w_a - w_b| / (2 n sum w) of each row's masked weights.

  Args:
    weights: at least 0.

  Returns:
    0 for equal weights, 1 - 1/n for a single one that is not 0, and 0 for a row without any.
  """
  ascending = jnp.sort(masked.masked(weights, mask), -1)  # excluded entries are 0 and come first
  count = jnp.sum(mask, -1).astype(ascending.dtype)
  rank = jnp.arange(1, weights.shape[-1] + 1) - (weights.shape[-1] - count)[:, None]
  total = jnp.sum(ascending, -1)
  return masked.safe_divide(jnp.sum((2 * rank - count[:, None] - 1) * ascending, -1), count * total)


def row_share(weights: Float[Array, "B L"], mask: Bool[Array, "B L"]) -> Float[Array, " B"]:
  """Returns (sum w)^2 / (n sum w^2) of each row's masked weights: the share of tokens that count.

  It is 1 for equal weights, 1/n for a single one that is not 0, and 0 for a row without any.
  """
  weights, count = masked.masked(weights, mask), jnp.sum(mask, -1)
  squares = jnp.sum(jnp.square(weights), -1)
  return masked.safe_divide(jnp.square(jnp.sum(weights, -1)), count * squares)


def weight_metrics(inputs: AdvantageInputs, cfg: Arca) -> dict[str, Mean]:
  """Returns how unequal the weights of a row's tokens are, over the kept rows with a policy token.

    credit/gini              sum_{a,b} |w_a - w_b| / (2 n sum w): 0 for equal weights, 1 - 1/n if
                             one token has all
    credit/effective_tokens  (sum w)^2 / (n sum w^2): 1, and 1/n. The paper's own definition is
                             unconfirmed; this is the form of the effective sample size
  """
  weights = token_weights(inputs, cfg)
  rows = returns.keep_mask(inputs) & jnp.any(inputs.mask, -1)
  gini, effective = row_gini(weights, inputs.mask), row_share(weights, inputs.mask)
  return {"credit/gini": masked.mean(gini, rows),
          "credit/effective_tokens": masked.mean(effective, rows)}


@register.advantage("arca", Arca, options=_OPTIONS, metrics=weight_metrics)
def arca(inputs: AdvantageInputs, cfg: Arca) -> Float[Array, "B L"]:
  """A_t = w_t A with the A of `grpo` and the weights of `token_weights`, whose mean in a row is 1.

  The sum of a row's advantages is therefore the same as in `grpo`. With `adapter_residual` this
  needs low-rank adapters (`parameters.train=lora`), and equals `grpo` while these are 0. The other
  signals are the paper's comparisons; they need none.

  Source: arXiv 2606.00257. The normaliser, the hidden state and what happens without a signal are
  unconfirmed there.
  """
  return returns.constants(grpo(inputs, cfg) * token_weights(inputs, cfg), inputs)
