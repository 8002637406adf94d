"""Generalised advantage estimation from a critic's values."""

import dataclasses

from jax import lax
from jaxtyping import Array, Bool, Float

from jaxrl_llm.config import AdvantageConfig
from jaxrl_llm.fields import option
from jaxrl_llm.objective.advantages import returns
from jaxrl_llm.objective.advantages.registry import register
from jaxrl_llm.ops import masked
from jaxrl_llm.types import AdvantageInputs


@dataclasses.dataclass(frozen=True)
class Gae:
  """Hyperparameters of `gae`."""

  gamma: float = option(1.0, "discount per policy token", low=0.0, high=1.0)
  lam: float = option(1.0, "lambda, decay of the temporal-difference errors", low=0.0, high=1.0)
  whiten: bool = option(True, "gives the batch's policy tokens mean 0 and variance 1")


@register("gae", Gae, needs={"values"}, group=False)
def gae(inputs: AdvantageInputs, cfg: Gae) -> Float[Array, "B L"]:
  """A_t = delta_t + gamma lam A_next with delta_t = r_t + gamma V_next - V_t, then whitened.

  r is the token reward, plus the outcome on the row's last policy token. `next` is the row's next
  policy token: tool text in between changes neither value nor advantage. After the last policy
  token V and A are 0, also in truncated rows.

    lam 1: G - V, with G the discounted return      lam 0: the one-step temporal difference

  Rows with keep False get 0 and enter neither the mean nor the variance. `whiten` False returns A.

  Source: arXiv 1506.02438, eqs. 11-16.
  """
  live = inputs.mask & returns.keep_mask(inputs)[:, None]
  advantages = _unwhitened(inputs, cfg.gamma, cfg.lam, live)
  result = masked.whiten(advantages, live) if cfg.whiten else masked.masked(advantages, live)
  return returns.constants(result, inputs)


def value_targets(inputs: AdvantageInputs, cfg: AdvantageConfig) -> Float[Array, "B L"]:
  """Returns what the critic is trained towards: V plus the unwhitened A of `gae`, without gradient.

  Entries where mask or keep is False are 0.

  Args:
    inputs: with `values`.
    cfg: its `gamma` and `lam` are read. Each counts as 1 for an advantage that does not declare it;
      with both 1 the target is the undiscounted Monte-Carlo return.

  Raises:
    ValueError: the inputs have no values.

  Source: arXiv 1506.02438, eq. 16.
  """
  if inputs.values is None:
    raise ValueError("value_targets needs ['values'] in its inputs: the critic's estimates, [B, L]")
  live = inputs.mask & returns.keep_mask(inputs)[:, None]
  gamma, lam = getattr(cfg, "gamma", 1.0), getattr(cfg, "lam", 1.0)
  advantages = _unwhitened(inputs, gamma, lam, live)
  return lax.stop_gradient(masked.masked(advantages + masked.masked(inputs.values, live), live))


def _unwhitened(inputs: AdvantageInputs, gamma: float, lam: float,
                live: Bool[Array, "B L"]) -> Float[Array, "B L"]:
  """Returns A of `gae` before whitening; `live` marks the policy tokens of kept rows."""
  values = masked.masked(inputs.values, live)
  outcome, per_token = returns.outcomes(inputs), returns.token_rewards(inputs)
  reward = returns.with_outcome(outcome, per_token, inputs.mask)
  delta = reward + gamma * returns.next_value(values, live) - values
  return returns.discounted_sum(delta, live, gamma * lam)
