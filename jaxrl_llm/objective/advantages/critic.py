"""Generalised advantage estimation from a critic's values."""

import dataclasses

from jax import lax
from jaxtyping import Array, Float

from jaxrl_llm.config import AdvantageConfig
from jaxrl_llm.fields import option
from jaxrl_llm.objective.advantages import rewards
from jaxrl_llm.objective.advantages.registry import register
from jaxrl_llm.ops import masked
from jaxrl_llm.types import AdvantageInputs


@dataclasses.dataclass(frozen=True)
class Gae:
  """Numbers of `gae`."""

  gamma: float = option(1.0, "discount per policy token", low=0.0, high=1.0)
  lam: float = option(1.0, "lambda, decay of the temporal-difference errors", low=0.0, high=1.0)
  whiten: bool = option(True, "gives the batch's policy tokens mean 0 and variance 1")


@register("gae", Gae, needs={"values"}, group=False)
def gae(inputs: AdvantageInputs, cfg: Gae) -> Float[Array, "B L"]:
  """A_t = delta_t + gamma lam A_next, delta_t = r_t + gamma V_next - V_t, then whitened.

  `next` is the row's next policy token: over tool text, value and advantage are carried unchanged.
  After the last policy token both are 0, for truncated rows too. r is the token reward, plus the
  outcome on the last policy token.

    lam 1: G - V, with G the discounted return      lam 0: the one-step temporal difference

  Rows with keep False get 0 and enter neither the mean nor the variance; `whiten` False leaves A.

  Source: arXiv 1506.02438, equations 11-16; methods A11.6.
  """
  live = inputs.mask & rewards.kept(inputs)[:, None]
  advantages = _unwhitened(inputs, cfg.gamma, cfg.lam, live)
  return rewards.constants(
      masked.whiten(advantages, live) if cfg.whiten else masked.masked(advantages, live), inputs)


def value_targets(inputs: AdvantageInputs, cfg: AdvantageConfig) -> Float[Array, "B L"]:
  """The returns that the critic is trained towards: unwhitened A + V of `gae`, as constants.

  0 where mask or keep is False.

  Args:
    inputs: with `values`.
    cfg: `gamma` and `lam` are read. An advantage of the user's own that declares neither trains its
      critic towards the undiscounted return, which is gamma 1 and lambda 1.

  Raises:
    ValueError: the inputs have no values.

  Source: arXiv 1506.02438, equation 16.
  """
  if inputs.values is None:
    raise ValueError("value_targets needs ['values'] in its inputs: the critic's estimates, [B, L]")
  live = inputs.mask & rewards.kept(inputs)[:, None]
  gamma, lam = getattr(cfg, "gamma", 1.0), getattr(cfg, "lam", 1.0)
  advantages = _unwhitened(inputs, gamma, lam, live)
  return lax.stop_gradient(masked.masked(advantages + masked.masked(inputs.values, live), live))


def _unwhitened(inputs: AdvantageInputs, gamma: float, lam: float,
                live: Array) -> Float[Array, "B L"]:
  values = masked.masked(inputs.values, live)
  outcome, per_token = rewards.outcomes(inputs), rewards.token_rewards(inputs)
  reward = rewards.with_outcome(outcome, per_token, inputs.mask)
  delta = reward + gamma * rewards.next_value(values, live) - values
  return rewards.discounted_sum(delta, live, gamma * lam)
