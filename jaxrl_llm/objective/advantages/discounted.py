"""REINFORCE++: discounted returns of tokens, whitened over the batch."""

import dataclasses

from jaxtyping import Array, Bool, Float

from jaxrl_llm.fields import option
from jaxrl_llm.objective.advantages import group, returns
from jaxrl_llm.objective.advantages.registry import register
from jaxrl_llm.ops import masked
from jaxrl_llm.types import AdvantageInputs


@dataclasses.dataclass(frozen=True)
class ReinforcePP:
  """Hyperparameters of `reinforce_pp` and `reinforce_pp_baseline`."""

  gamma: float = option(1.0, "discount per policy token", low=0.0, high=1.0)
  whiten: bool = option(True, "gives the batch's policy tokens mean 0 and variance 1")


@register("reinforce_pp", ReinforcePP, group=False)
def reinforce_pp(inputs: AdvantageInputs, cfg: ReinforcePP) -> Float[Array, "B L"]:
  """A = whiten(G) with G_t = r_t + gamma G_next, over the kept policy tokens of the given batch.

  r is the token reward, plus the outcome on the row's last policy token. `next` is the next policy
  token: tool text in between is not discounted. `whiten` False returns G.

  Source: arXiv 2501.03262.
  """
  return _advantages(returns.outcomes(inputs), returns.keep_mask(inputs), inputs, cfg)


@register("reinforce_pp_baseline", ReinforcePP)
def reinforce_pp_baseline(inputs: AdvantageInputs, cfg: ReinforcePP) -> Float[Array, "B L"]:
  """`reinforce_pp` after subtracting the group's mean R from each outcome.

  R includes the row's token rewards. Without token rewards and with gamma 1, this is the whitened
  R - group mean. Rows of a group with fewer than two kept rows get 0 and enter neither the mean nor
  the variance.

  Source: arXiv 2501.03262.
  """
  outcome = group.centred(inputs)[0] - (returns.totals(inputs) - returns.outcomes(inputs))
  return _advantages(outcome, returns.usable(inputs), inputs, cfg)


def _advantages(outcome: Float[Array, " B"], keep: Bool[Array, " B"], inputs: AdvantageInputs,
                cfg: ReinforcePP) -> Float[Array, "B L"]:
  """Returns the discounted, and with `whiten` whitened, returns of the rows in `keep`."""
  live = inputs.mask & keep[:, None]
  per_token = returns.with_outcome(outcome, returns.token_rewards(inputs), inputs.mask)
  to_go = returns.discounted_sum(per_token, live, cfg.gamma)
  result = masked.whiten(to_go, live) if cfg.whiten else masked.masked(to_go, live)
  return returns.constants(result, inputs)
