"""Generalised advantage estimation from a critic's values."""

from jax import lax
from jaxtyping import Array, Float

from jaxrl_llm.config import AdvantageConfig
from jaxrl_llm.objective.advantages import rewards
from jaxrl_llm.objective.advantages.registry import register
from jaxrl_llm.ops import masked
from jaxrl_llm.types import AdvantageInputs


@register("gae", needs={"values"}, group=False, reads={"gamma", "lam", "whiten"})
def gae(inputs: AdvantageInputs, cfg: AdvantageConfig) -> Float[Array, "B L"]:
  """A_t = delta_t + gamma lam A_next, delta_t = r_t + gamma V_next - V_t, then whitened.

  `next` is the row's next policy token: over tool text, value and advantage are carried unchanged.
  After the last policy token both are 0, for truncated rows too. r is the token reward, plus the
  outcome on the last policy token.

    lam 1: G - V, with G the discounted return      lam 0: the one-step temporal difference

  Rows with keep False get 0 and enter neither the mean nor the variance; `whiten` False leaves A.

  Source: arXiv 1506.02438, equations 11-16; methods A11.6.
  """
  live = inputs.mask & rewards.kept(inputs)[:, None]
  advantages = _unwhitened(inputs, cfg, live)
  return rewards.constants(
      masked.whiten(advantages, live) if cfg.whiten else masked.masked(advantages, live), inputs)


def value_targets(inputs: AdvantageInputs, cfg: AdvantageConfig) -> Float[Array, "B L"]:
  """Returns that the critic is trained towards: unwhitened A + V, constants; 0 where mask or keep
  is False.

  Args:
    inputs: with `values`.
    cfg: gamma and lam are read.

  Raises:
    ValueError: the inputs have no values.

  Source: methods A11.6.
  """
  if inputs.values is None:
    raise ValueError("value_targets needs ['values'] in its inputs: the critic's estimates, [B, L]")
  live = inputs.mask & rewards.kept(inputs)[:, None]
  return lax.stop_gradient(
      masked.masked(_unwhitened(inputs, cfg, live) + masked.masked(inputs.values, live), live))


def _unwhitened(inputs: AdvantageInputs, cfg: AdvantageConfig, live: Array) -> Float[Array, "B L"]:
  values = masked.masked(inputs.values, live)
  reward = rewards.with_outcome(rewards.outcomes(inputs), rewards.token_rewards(inputs),
                                inputs.mask)
  delta = reward + cfg.gamma * rewards.next_value(values, live) - values
  return rewards.discounted_sum(delta, live, cfg.gamma * cfg.lam)
