"""A loss of your own for the head that predicts two tokens ahead.

  python experiments/main.py --config=experiments/extend/config.py --workdir=runs/extend_mtp \
    --config.plugins=experiments/extend/mtp.py \
    --config.term.name=distilled --config.term.coef=0.2
"""

import jax.numpy as jnp

from experiments.papers.occ import mtp


@mtp("distilled", coef=0.1, detached=True)
def distilled(inputs, cfg):
  """loss_t = (log pi_mtp(a_t) - log pi(a_t))^2 / 2: the head learns to agree with the policy.

  Arrays are [B, L]: rows and tokens. Where `inputs.mask` is False, any values may stand. With
  `detached` the trunk gets no gradient. The mean of this loss is the metric mtp/loss.
  """
  return jnp.square(inputs.mtp_log_probs - inputs.log_probs) / 2
