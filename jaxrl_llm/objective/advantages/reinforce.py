"""REINFORCE++: discounted returns of tokens, whitened over the batch."""

import dataclasses

from jaxtyping import Array, Float

from jaxrl_llm.fields import option
from jaxrl_llm.objective.advantages import group, rewards
from jaxrl_llm.objective.advantages.registry import register
from jaxrl_llm.ops import masked
from jaxrl_llm.types import AdvantageInputs


@dataclasses.dataclass(frozen=True)
class ReinforcePP:
  """Numbers of `reinforce_pp` and `reinforce_pp_baseline`."""

  gamma: float = option(1.0, "discount per policy token", low=0.0, high=1.0)
  whiten: bool = option(True, "gives the batch's policy tokens mean 0 and variance 1")


@register("reinforce_pp", ReinforcePP, group=False)
def reinforce_pp(inputs: AdvantageInputs, cfg: ReinforcePP) -> Float[Array, "B L"]:
  """A = whiten(G), G_t = r_t + gamma G_next, over the kept policy tokens of the given batch.

  r is the token reward, plus the outcome on the row's last policy token. The discount counts policy
  tokens: the return is carried unchanged through tool text. `whiten` False leaves G.

  Source: arXiv 2501.03262; methods A11.3.
  """
  return _returns(rewards.outcomes(inputs), rewards.kept(inputs), inputs, cfg)


@register("reinforce_pp_baseline", ReinforcePP)
def reinforce_pp_baseline(inputs: AdvantageInputs, cfg: ReinforcePP) -> Float[Array, "B L"]:
  """`reinforce_pp` after subtracting the group's mean R from each outcome; R includes the row's
  token rewards.

  Without token rewards and with gamma 1, the whitened R - group mean. Rows of a group with fewer
  than two kept rows get 0 and enter neither the mean nor the variance.

  Source: arXiv 2501.03262; methods A11.3.
  """
  outcome = group.centred(inputs)[0] - (rewards.totals(inputs) - rewards.outcomes(inputs))
  return _returns(outcome, rewards.usable(inputs), inputs, cfg)


def _returns(outcome: Float[Array, " B"], keep: Array, inputs: AdvantageInputs, cfg: ReinforcePP
             ) -> Float[Array, "B L"]:
  live = inputs.mask & keep[:, None]
  per_token = rewards.with_outcome(outcome, rewards.token_rewards(inputs), inputs.mask)
  returns = rewards.discounted_sum(per_token, live, cfg.gamma)
  return rewards.constants(
      masked.whiten(returns, live) if cfg.whiten else masked.masked(returns, live), inputs)
