"""GDPO: each part of the reward is normalised in its group before the parts are added."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl_llm.fields import ConfigError, option
from jaxrl_llm.objective.advantages import group, returns
from jaxrl_llm.objective.advantages.registry import register
from jaxrl_llm.ops import masked
from jaxrl_llm.types import AdvantageInputs


@dataclasses.dataclass(frozen=True)
class Gdpo:
  """Hyperparameters of `gdpo`."""

  weights: tuple = option((), "weight of each part of the reward; empty: all 1", of=float)
  epsilon: float = option(1e-6, "added to the group's standard deviation of a part", low=0.0)
  whiten: str = option("tokens", "what the sum is whitened over: policy tokens, or rows",
                       choices=("tokens", "rows"))


@register("gdpo", Gdpo, needs={"reward_parts"})
def gdpo(inputs: AdvantageInputs, cfg: Gdpo) -> Float[Array, "B L"]:
  """z_i = sum_k w_k (R_ki - mean R_k) / (std R_k + epsilon) over the group;  A = whiten(z).

  R_k is the k-th part of the row's reward; standard deviations are Bessel's. So one large part does
  not hide the others: a part times 100 changes nothing. A part that is constant in a group adds 0
  there. With one part it is `grpo`, whitened.

  `whiten` tokens: over the policy tokens of the batch's usable rows, where long rows count more,
  with the variance + 1e-8. rows: over these rows, divided by the standard deviation + 1e-4, as in
  TRL, whose epsilon is 1e-4. Rows of a group of one get 0 and enter neither.

  Raises:
    ConfigError: another number of weights than of parts.

  Source: arXiv 2601.05242, from the code of verl and TRL.
  """
  parts = inputs.reward_parts
  weights = cfg.weights or (1.0,) * parts.shape[1]
  if len(weights) != parts.shape[1]:
    raise ConfigError(f"advantage.weights = {weights}: {len(weights)} weights for "
                     f"{parts.shape[1]} parts of the reward. Fix: one for each part.")

  def normalised(part):
    rows = inputs.replace(rewards=part, token_rewards=None)
    difference, count = group.centred(rows)
    return group.divided(difference, group.standard_deviation(difference, count, rows, 1),
                         cfg.epsilon)

  total = jnp.asarray(weights) @ jax.vmap(normalised)(parts.T)
  usable = returns.usable(inputs)
  if cfg.whiten == "tokens":
    live = inputs.mask & usable[:, None]
    z_scores = masked.whiten(jnp.broadcast_to(total[:, None], live.shape), live)
  else:
    z_scores = _whitened_rows(total, usable)[:, None]
  return returns.constants(z_scores, inputs)


def _whitened_rows(total, usable):
  """Returns (z - mean) / (std + 1e-4) over the usable rows, 0 elsewhere; Bessel's deviation."""
  count = jnp.sum(usable).astype(total.dtype)
  deviation = masked.masked(total - masked.safe_divide(jnp.sum(total * usable), count), usable)
  variance = masked.safe_divide(jnp.sum(jnp.square(deviation)), count - 1)
  return deviation / (jnp.sqrt(variance) + 1e-4)
