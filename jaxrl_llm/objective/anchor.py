"""An anchor between the sampler and the current policy, without a separate forward pass (A-3PO)."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxrl_llm.ops import masked

SHARE = "anchor_share"  # column of a batch whose anchor is interpolated: a_t


def interpolated(log_probs: Float[Array, "B L"], behavior_log_probs: Float[Array, "B L"],
                 behavior_version: Int[Array, "B L"],
                 version: int | Int[Array, ""]) -> Float[Array, "B L"]:
  """Returns the log-probs of an anchor that approximates the policy before this update phase.

    log anchor_t = log mu_t + a_t (log pi_t - log mu_t)
    a_t          = clip((version - 1 - v_t) / (version - v_t), 0, 1);  0 where v_t >= version or
                   v_t < 0

  v_t is the version of the weights that sampled the token; they differ within a row after a partial
  rollout. For a token one version old the anchor is the behavior policy; for one d versions old, a
  is (d - 1)/d. The ratio pi / anchor is then (pi / mu)^(1 - a), and the correction anchor / mu is
  (pi / mu)^a.

  Args:
    log_probs: [B, L], of the current policy; a constant here, or the gradient of the ratio would be
      1 - a times the gradient of pi.
    behavior_log_probs: [B, L].
    behavior_version: [B, L], updates that the sampling weights had seen; below 0: unknown.
    version: updates that the current weights have seen.

  Returns:
    [B, L], without gradient. Entries of masked tokens mean nothing.

  Source: arXiv 2512.06547, log-linear form, from AReaL's code.
  """
  share = share_of_policy(behavior_version, version)
  return interpolated_anchor(log_probs, behavior_log_probs, share)


def share_of_policy(behavior_version: Int[Array, "B L"],
                    version: int | Int[Array, ""]) -> Float[Array, "B L"]:
  """Returns a_t of `interpolated`, in 0 to 1; arguments as there."""
  lag = (jnp.asarray(version) - behavior_version).astype(jnp.float32)
  share = jnp.clip(masked.safe_divide(lag - 1, lag), 0, 1)
  return jnp.where((lag <= 0) | (behavior_version < 0), 0, share)


def interpolated_anchor(log_probs: Float[Array, "B L"], behavior_log_probs: Float[Array, "B L"],
                        share: Float[Array, "B L"]) -> Float[Array, "B L"]:
  """Returns log mu + share (log pi - log mu) [B, L], without gradient; see `interpolated`."""
  dtype = jnp.promote_types(jnp.result_type(log_probs), jnp.float32)
  shift = log_probs.astype(dtype) - behavior_log_probs
  return lax.stop_gradient(behavior_log_probs + share * shift)
