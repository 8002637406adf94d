"""Generalised advantage estimation from a critic's values."""

import dataclasses

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxrl_llm.config import AdvantageConfig
from jaxrl_llm.fields import option
from jaxrl_llm.objective.advantages import returns
from jaxrl_llm.objective.advantages.registry import register
from jaxrl_llm.ops import masked, prefix
from jaxrl_llm.types import AdvantageInputs


@dataclasses.dataclass(frozen=True)
class Gae:
  """Hyperparameters of `gae`."""

  gamma: float = option(1.0, "discount per policy token", low=0.0, high=1.0)
  lam: float = option(1.0, "lambda, decay of the temporal-difference errors", low=0.0, high=1.0)
  whiten: bool = option(True, "gives the batch's policy tokens mean 0 and variance 1")
  length_alpha: float | None = option(None, "lambda of a row of T policy tokens is 1 - 1 / "
                                      "(length_alpha T), at least 0; none: lam", low=1e-6)
  target_lam: float | None = option(None, "lambda of the critic's targets, 1 is Monte Carlo; none: "
                                    "the advantage's", low=0.0, high=1.0)
  upgo: float = option(0.0, "share of the upgoing advantage U - V", low=0.0, high=1.0)


@register("gae", Gae, needs={"values"}, group=False)
def gae(inputs: AdvantageInputs, cfg: Gae) -> Float[Array, "B L"]:
  """A_t = delta_t + gamma lam A_next with delta_t = r_t + gamma V_next - V_t, then whitened.

  r is the token reward, plus the outcome on the row's last policy token. `next` is the row's next
  policy token: tool text in between changes neither value nor advantage. After the last policy
  token V and A are 0, also in truncated rows.

    lam 1: G - V, with G the discounted return      lam 0: the one-step temporal difference

  With `upgo` w, A is w (U - V) + (1 - w) A, where U follows a row's luck only while it is good:

    U_t = r_t + gamma (U_next if r_next + gamma V_next2 >= V_next else V_next)

  Rows with keep False get 0 and enter neither the mean nor the variance. `whiten` False returns A.

  Source: arXiv 1506.02438, eqs. 11-16. BPCO, arXiv 2608.23566, has `length_alpha`, in its code
  without the bound below, `target_lam` 1, and in that code `upgo`, which is AlphaStar's (Vinyals et
  al., Nature 575, 2019).
  """
  live = inputs.mask & returns.keep_mask(inputs)[:, None]
  lam = _lambda(live, cfg.lam, cfg.length_alpha)
  advantages = _unwhitened(inputs, cfg.gamma, lam, live)
  if cfg.upgo:
    advantages = cfg.upgo * _upgoing(inputs, cfg.gamma, live) + (1 - cfg.upgo) * advantages
  result = masked.whiten(advantages, live) if cfg.whiten else masked.masked(advantages, live)
  return returns.constants(result, inputs)


def value_targets(inputs: AdvantageInputs, cfg: AdvantageConfig) -> Float[Array, "B L"]:
  """Returns what the critic is trained towards: V plus the unwhitened A of `gae`, without gradient.

  Entries where mask or keep is False are 0.

  Args:
    inputs: with `values`.
    cfg: its `gamma`, `lam`, `length_alpha` and `target_lam` are read. The first two count as 1 for
      an advantage that does not declare them, which is the undiscounted Monte-Carlo return.

  Raises:
    ValueError: the inputs have no values.

  Source: arXiv 1506.02438, eq. 16.
  """
  if inputs.values is None:
    raise ValueError("value_targets needs ['values'] in its inputs: the critic's estimates, [B, L]")
  live = inputs.mask & returns.keep_mask(inputs)[:, None]
  gamma, lam = getattr(cfg, "gamma", 1.0), getattr(cfg, "target_lam", None)
  if lam is None:
    lam = _lambda(live, getattr(cfg, "lam", 1.0), getattr(cfg, "length_alpha", None))
  advantages = _unwhitened(inputs, gamma, lam, live)
  return lax.stop_gradient(masked.masked(advantages + masked.masked(inputs.values, live), live))


def _lambda(live: Bool[Array, "B L"], lam: float,
            alpha: float | None) -> float | Float[Array, "B 1"]:
  """Returns lambda, of each row where it depends on the length."""
  if alpha is None:
    return lam
  return jnp.maximum(1 - 1 / (alpha * jnp.maximum(jnp.sum(live, -1, keepdims=True), 1)), 0.0)


def _rewards(inputs: AdvantageInputs) -> Float[Array, "B L"]:
  """Returns the token rewards, with the outcome on the last policy token."""
  return returns.with_outcome(returns.outcomes(inputs), returns.token_rewards(inputs), inputs.mask)


def _upgoing(inputs: AdvantageInputs, gamma: float,
             live: Bool[Array, "B L"]) -> Float[Array, "B L"]:
  """Returns U - V of `gae`, with U_t = r_t + gamma (V_next + rises_next (U_next - V_next))."""
  values, reward = masked.masked(inputs.values, live), masked.masked(_rewards(inputs), live)
  following = returns.next_value(values, live)
  rises = (reward + gamma * following >= values).astype(values.dtype)
  decay = gamma * returns.next_value(rises, live)
  step = reward + gamma * following - decay * following
  total = prefix.linear_suffix(jnp.where(live, decay, 1.0), masked.masked(step, live))
  return masked.masked(total - values, live)


def _unwhitened(inputs: AdvantageInputs, gamma: float, lam: float | Float[Array, "B 1"],
                live: Bool[Array, "B L"]) -> Float[Array, "B L"]:
  """Returns A of `gae` before whitening; `live` marks the policy tokens of kept rows."""
  values, reward = masked.masked(inputs.values, live), _rewards(inputs)
  delta = reward + gamma * returns.next_value(values, live) - values
  return returns.discounted_sum(delta, live, gamma * lam)
