"""Optimal token baseline: each position of a group has its own baseline, weighted by energy.

The energy is the accumulated squared norm of the gradient. The baseline minimises
sum_i W_i (G_i - B)^2 at each position. That is a surrogate: in general it is not the baseline with
the smallest variance of the gradient estimator. Compare `weight` in {cumulative, step, uniform} by
measurement.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxrl_llm.fields import option
from jaxrl_llm.objective.advantages import returns
from jaxrl_llm.objective.advantages.registry import register
from jaxrl_llm.ops import masked, prefix
from jaxrl_llm.types import AdvantageInputs

_EPSILON = 1e-8  # added to the sum of energies (of order 1) in the published baseline
_OPTIONS = {
    ("importance", "inside_cumsum"): {"correction_weights"},
    ("importance", "outside"): {"correction_weights"},
    ("granularity", "turn"): {"turn_id"},
}


@dataclasses.dataclass(frozen=True)
class Otb:
  """Hyperparameters of `otb` and `tir_otb`."""

  weight: str = option("cumulative", "weight of a row at t: energy up to t, at t only, or 1",
                       choices=("cumulative", "step", "uniform"))
  granularity: str = option("step", "what shares a baseline: a position, a turn, or the sequence",
                            choices=("step", "turn", "sequence"))
  importance: str = option("auto", "where the squared correction weight enters the energy; auto: "
                           "as inside_cumsum where there are such weights",
                           choices=("auto", "none", "inside_cumsum", "outside"))
  zero_tail: bool = option(True, "uses no baseline where a single row of the group is left")
  leave_one_out: bool = option(False, "keeps a row's own reward out of its baseline")


def gradient_energy(anchor_log_probs: Float[Array, "*B"],
                    sum_pi_squared: Float[Array, "*B"]) -> Float[Array, "*B"]:
  """Returns w = max(0, 1 - 2 p(a) + sum_v p(v)^2), the squared norm of d log p(a) / d logits; in
  [0, 2).

  Args:
    anchor_log_probs: log p(a), nats.
    sum_pi_squared: sum_v p(v)^2 of the same distribution (same temperature, same support).

  Source: the gradient energy of arXiv 2602.07078; ||e_a - p||^2 = 1 - 2 p(a) + sum_v p(v)^2.
  """
  return jnp.maximum(1 - 2 * jnp.exp(anchor_log_probs) + sum_pi_squared, 0)


class Positions(NamedTuple):
  """The groups of tokens that share a baseline.

  Attributes:
    index: [B, L] int32, position of a token, counted from 1; 0 where the token is not live. Tokens
      of the same position are compared across the rows of a group.
    alive: [B, L] bool; entry p - 1 is True where the row has a live token at position p.
  """

  index: Int[Array, "B L"]
  alive: Bool[Array, "B L"]

  def total(self, values: Float[Array, "B L"]) -> Float[Array, "B L"]:
    """Returns the sum over the tokens at position p in entry p - 1."""
    rows, width = values.shape
    column = jnp.where(self.index > 0, self.index - 1, width)
    return jnp.zeros_like(values).at[jnp.arange(rows)[:, None], column].add(values, mode="drop")

  def spread(self, values: Float[Array, "B L"]) -> Float[Array, "B L"]:
    """Returns, for each token, the entry of its position; 0 where the token is not live."""
    column = jnp.maximum(self.index - 1, 0)
    return masked.masked(jnp.take_along_axis(values, column, 1), self.index > 0)


def positions(inputs: AdvantageInputs, live: Bool[Array, "B L"], granularity: str,
              compact: bool) -> Positions:
  """Returns the positions of the `live` tokens.

  With granularity `step` a position is the column, or with `compact` the count of policy tokens.
  With `turn` it is the turn; with `sequence` all tokens of a row are at position 1.
  """
  if granularity == "step":
    index = prefix.token_index(live) if compact else jnp.arange(1, live.shape[1] + 1)
  else:
    index = inputs.turn_id if granularity == "turn" else 1
  index = jnp.where(live, index, 0).astype(jnp.int32)
  count = Positions(index, live).total(live.astype(jnp.float32))
  return Positions(index, count > 0)


def _energy(inputs: AdvantageInputs, cfg: Otb, live: Bool[Array, "B L"],
            positions: Positions) -> Float[Array, "B L"]:
  """Returns W per position, squared correction weights included; 0 where the row is not alive."""
  if cfg.weight == "uniform":
    energy = live.astype(masked.masked(inputs.anchor_log_probs, live).dtype)
  else:
    log_probs = masked.masked(inputs.anchor_log_probs, live)
    sum_pi_squared = masked.masked(inputs.sum_pi_squared, live)
    energy = masked.masked(gradient_energy(log_probs, sum_pi_squared), live)
  importance = cfg.importance
  if importance == "auto":
    importance = "none" if inputs.correction_weights is None else "inside_cumsum"
  if importance != "none":
    square = jnp.square(masked.masked(inputs.correction_weights, live))
  if importance == "inside_cumsum":
    energy = energy * square
  energy = positions.total(energy)
  if cfg.weight == "cumulative":
    energy = jnp.cumsum(energy, -1)
  if importance == "outside":
    energy = energy * masked.safe_divide(positions.total(square),
                                         positions.total(live.astype(square.dtype)))
  return masked.masked(energy, positions.alive)


def _second_longest(positions: Positions, usable: Bool[Array, " B"],
                    group_id: Int[Array, " B"]) -> Int[Array, " B"]:
  """Returns the last position that at least two usable rows of the group reach."""
  last = jnp.where(usable, jnp.max(positions.index, -1, initial=0), 0)
  longest = masked.group_max(last, group_id)
  unique = masked.group_sum(((last == longest) & usable).astype(jnp.int32), group_id) == 1
  second = masked.group_max(jnp.where(last == longest, 0, last), group_id)
  return jnp.where(unique, second, longest)


def _advantages(inputs: AdvantageInputs, cfg: Otb, *, compact: bool) -> Float[Array, "B L"]:
  """Returns G - B at each token; `compact` as in `positions`."""
  usable = returns.usable(inputs)
  live = inputs.mask & usable[:, None]
  token_positions = positions(inputs, live, cfg.granularity, compact)
  per_token = token_positions.total(masked.masked(returns.token_rewards(inputs), live))
  target = masked.masked(returns.rewards_to_go(returns.outcomes(inputs), per_token),
                         token_positions.alive)
  energy = _energy(inputs, cfg, live, token_positions)
  add = masked.group_others if cfg.leave_one_out else masked.group_sum
  baseline = add(energy * target, inputs.group_id) / (add(energy, inputs.group_id) + _EPSILON)
  if cfg.zero_tail:
    second_longest = _second_longest(token_positions, usable, inputs.group_id)
    shared = jnp.arange(1, live.shape[1] + 1) <= second_longest[:, None]
    baseline = jnp.where(shared, baseline, 0)
  return returns.constants(token_positions.spread(target - baseline), inputs)


@register("otb", Otb, needs={"sum_pi_squared", "anchor_log_probs"}, options=_OPTIONS)
def otb(inputs: AdvantageInputs, cfg: Otb) -> Float[Array, "B L"]:
  """A_{i,t} = G_{i,t} - B_t with B_t = sum_i W_{i,t} G_{i,t} / (sum_i W_{i,t} + 1e-8).

  The sums run over the group's rows that are alive at t. G is the undiscounted reward to go. `t` is
  the column of the row: tool text in only some of the rows shifts their columns and changes the
  result, unlike in `tir_otb`. With w = `gradient_energy`:

    weight
      cumulative     W_t = sum of w over the row's policy tokens up to t (the paper)
      step           W_t = w_t
      uniform        W_t = 1: B is the mean over the rows alive
    granularity
      step           as above
      turn           tokens of a turn share B; the turn's energy is the sum over its tokens, and its
                     G is the first token's
      sequence       all tokens of a row share B, and G = R; with `uniform` this is the
                     length-weighted mean of `opo`
    importance       with rho = correction_weights
      auto           inside_cumsum where they are given, as verl has it; without a correction all
                     are 1
      none           w, whatever the correction: the energy of the uncorrected gradient
      inside_cumsum  w rho^2 instead of w (verl's code)
      outside        W_t rho_t^2; over a turn or sequence, the mean of rho^2 over its tokens. Both
                     agree where rho is constant over a row
    zero_tail        B = 0 and A = G beyond the second-longest row of the group, where only the
                     longest is left; otherwise B would be the row's own G there, and A about 0
    leave_one_out    the sums of B leave out row i (own extension); B = 0 if no other row reaches t

  Where W = 0 in all rows, their prefixes were deterministic: B = 0 and A = G, and there is no
  gradient to weigh. Rows with keep False enter no sum and get 0. The only kept row of a group gets
  0, too, as under every advantage here that compares a group; verl's code has B = 0 and A = G
  there.

  turn_id must be at most L, which holds where every turn has a policy token.

  Published fully on-policy (second-hand), one optimizer batch per rollout.

  Source: arXiv 2602.07078. Whether `inside_cumsum` or `outside` is the paper's is unconfirmed.
  """
  return _advantages(inputs, cfg, compact=False)


@register("tir_otb", Otb, needs={"sum_pi_squared", "anchor_log_probs"}, options=_OPTIONS)
def tir_otb(inputs: AdvantageInputs, cfg: Otb) -> Float[Array, "B L"]:
  """`otb` with `t` the count of policy tokens, so that inserted tool text changes nothing.

  Source: arXiv 2602.07078.
  """
  return _advantages(inputs, cfg, compact=True)
