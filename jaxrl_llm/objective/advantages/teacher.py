"""On-policy distillation: credit for each token by how likely a teacher finds it."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl_llm.fields import option
from jaxrl_llm.objective.advantages import group, returns
from jaxrl_llm.objective.advantages.registry import register
from jaxrl_llm.ops import masked
from jaxrl_llm.types import AdvantageInputs


@dataclasses.dataclass(frozen=True)
class ReverseKL:
  """Hyperparameters of `reverse_kl`."""

  coef: float = option(1.0, "weight of the teacher's log-ratio", low=0.0)
  reward: float = option(0.0, "weight of the reward's lead over its group mean, beside it", low=0.0)
  bound: float | None = option(None, "largest size of a token's log-ratio, nats; none: unbounded",
                               low=0.0)


@register("reverse_kl", ReverseKL, needs={"teacher_log_probs", "anchor_log_probs"}, group=False)
def reverse_kl(inputs: AdvantageInputs, cfg: ReverseKL) -> Float[Array, "B L"]:
  """A_t = coef clip(log q_t - log pi_old_t, +-bound) + reward (R - group mean).

  q is the teacher, pi_old the policy before the updates. Its expectation over a token of the policy
  is -KL(pi_old || q) there: with discount 0, each token gets only its own term, and the gradient is
  the gradient of the reverse KL at the prefixes of the student. An unscored completion has no
  reward part. `reward` 0 needs no verdicts; in a group of one the reward has no part.

  Source: generalised knowledge distillation, arXiv 2306.13649 (reverse KL on the student's own
  completions); as a per-token advantage: unconfirmed, own derivation.
  """
  difference = inputs.columns["teacher_log_probs"] - inputs.anchor_log_probs
  if cfg.bound is not None:
    difference = jnp.clip(difference, -cfg.bound, cfg.bound)
  live = inputs.mask & returns.keep_mask(inputs)[:, None]
  advantages = cfg.coef * masked.masked(difference, live)
  if cfg.reward:
    lead, _ = group.centred(inputs)
    advantages = advantages + cfg.reward * lead[:, None]
  return returns.constants(advantages, inputs)
