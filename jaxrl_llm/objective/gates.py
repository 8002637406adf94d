"""Gates: which tokens keep their gradient. Denominators do not change."""

from jax import lax
from jaxtyping import Array, Bool, Float

from jaxrl_llm.ops import masked


def entropy_share(entropy: Float[Array, "B L"], mask: Bool[Array, "B L"],
                  share: float) -> Bool[Array, "B L"]:
  """Returns where a policy token is among the given share of highest entropy.

    keep_t = H_t >= quantile_(1 - share)(H over the policy tokens), interpolated linearly

  Tokens equal to the quantile stay, so with equal entropies all do. As the divisor of the loss does
  not change, the step shrinks by about the share.

  Args:
    entropy: [B, L], nats, of the full optimizer batch: a part of it would have another quantile.
    mask: [B, L] bool, True on policy tokens.
    share: above 0, at most 1; 1 keeps all.

  Returns:
    [B, L] bool, False where mask is False.

  Source: arXiv 2506.01939 (share 0.2), as in TRL.
  """
  if not 0 < share <= 1:
    raise ValueError(f"entropy_share: share = {share}; above 0 and at most 1 is allowed")
  flat = lax.stop_gradient(masked.masked(entropy, mask)).reshape(1, -1)
  threshold = masked.row_quantile(flat, mask.reshape(1, -1), 1 - share)
  return mask & (flat.reshape(mask.shape) >= threshold)
