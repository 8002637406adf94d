"""An advantage of your own: the reward against a mix of the mean and the best of its group.

  python experiments/main.py --config=experiments/extend/config.py --workdir=runs/extend_advantage \
    --config.plugins=experiments/extend/advantage.py \
    --config.advantage.name=above_best --config.advantage.share=0.5
"""

import jax.numpy as jnp

from jaxrl_llm import register
from jaxrl_llm.ops import masked


@register.advantage("above_best", share=1.0)
def above_best(inputs, cfg):
  """A_t = R - ((1 - share) mean + share max): mean and largest reward of the row's group.

  `inputs` is a types.AdvantageInputs; returned is [B, L], 0 where the mask is False.
  """
  keep = jnp.ones_like(inputs.group_id, bool) if inputs.keep is None else inputs.keep
  rewards = jnp.where(keep, inputs.rewards, 0.0)
  same = (inputs.group_id[:, None] == inputs.group_id[None]) & keep[None]
  best = jnp.max(jnp.where(same, rewards[None], -jnp.inf), axis=1, initial=-jnp.inf)
  mean = masked.safe_divide(jnp.sum(same * rewards[None], 1), jnp.sum(same, 1))
  baseline = (1 - cfg.share) * mean + cfg.share * jnp.where(keep, best, 0.0)
  signal = jnp.where(keep, rewards - baseline, 0.0)
  return masked.masked(jnp.broadcast_to(signal[:, None], inputs.mask.shape), inputs.mask)
