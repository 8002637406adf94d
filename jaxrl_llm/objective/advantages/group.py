"""Baselines from the other completions of the same prompt.

A row with keep False enters no statistic and gets 0; so does every row of a group with fewer than two kept rows.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxrl_llm.config import AdvantageConfig
from jaxrl_llm.objective.advantages.registry import register
from jaxrl_llm.ops import masked
from jaxrl_llm.types import AdvantageInputs


def _kept(inputs: AdvantageInputs) -> tuple[Array, Array]:
  """(rewards, 0 on rows that are not kept; keep), both [B] f32."""
  keep = jnp.ones_like(inputs.group_id, bool) if inputs.keep is None else inputs.keep
  return masked.masked(inputs.rewards, keep), keep.astype(jnp.float32)


def _centred(inputs: AdvantageInputs) -> tuple[Array, Array, Array]:
  """(R - group mean, kept rows of the group, keep and group usable), all [B] f32."""
  rewards, keep = _kept(inputs)
  count = masked.group_sum(keep, inputs.group_id)
  mean = masked.safe_divide(masked.group_sum(rewards, inputs.group_id), count)
  usable = keep * (count >= 2)
  return (rewards - mean) * usable, count, usable


def _broadcast(per_row: Float[Array, " B"], inputs: AdvantageInputs) -> Float[Array, "B L"]:
  return lax.stop_gradient(masked.masked(jnp.broadcast_to(per_row[:, None], inputs.mask.shape), inputs.mask))


@register("none", group=False)
def none(inputs: AdvantageInputs, cfg: AdvantageConfig) -> Float[Array, "B L"]:
  """A = R: no baseline."""
  del cfg
  return _broadcast(_kept(inputs)[0], inputs)


@register("grpo")
def grpo(inputs: AdvantageInputs, cfg: AdvantageConfig) -> Float[Array, "B L"]:
  """A = (R - mean) / (std + epsilon) over the group.

  `ddof` 1 is Bessel's standard deviation, as in verl and TRL; 0 the population's.

  Source: arXiv 2402.03300, section 4.1.2; methods A11.1.
  """
  centred, count, _ = _centred(inputs)
  squares = masked.group_sum(jnp.square(centred), inputs.group_id)
  std = jnp.sqrt(masked.safe_divide(squares, count - cfg.ddof))
  return _broadcast(centred / (std + cfg.epsilon) if cfg.epsilon else masked.safe_divide(centred, std), inputs)


@register("dr_grpo")
def dr_grpo(inputs: AdvantageInputs, cfg: AdvantageConfig) -> Float[Array, "B L"]:
  """A = R - group mean, without the standard deviation.

  Source: arXiv 2503.20783; methods A11.4.
  """
  del cfg
  return _broadcast(_centred(inputs)[0], inputs)


@register("rloo")
def rloo(inputs: AdvantageInputs, cfg: AdvantageConfig) -> Float[Array, "B L"]:
  """A = R - mean of the other kept rows of the group = n / (n - 1) (R - mean).

  Source: arXiv 2402.14740; methods A11.2.
  """
  del cfg
  centred, count, _ = _centred(inputs)
  return _broadcast(centred * masked.safe_divide(count, count - 1), inputs)
