"""An estimator of your own, with a number of its own.

  python experiments/main.py --config=experiments/extend/config.py --workdir=runs/extend_estimator \
    --config.plugins=experiments/extend/estimator.py \
    --config.estimator.name=tempered --config.estimator.power=0.5
"""

import jax.numpy as jnp

from jaxrl_llm import register
from jaxrl_llm.objective.estimators import common


@register.estimator("tempered", power=1.0)
def tempered(log_probs, anchor_log_probs, advantages, mask, cfg):
  """loss_t = -r_t^power A_t log pi(a_t): power 0 is REINFORCE, power 1 importance sampling.

  Arrays are [B, L]: rows and tokens. Where `mask` is False, any values may stand.
  """
  log_ratio = common.masked_log_ratio(log_probs, anchor_log_probs, mask)
  weight = jnp.exp(cfg.power * log_ratio)
  loss = common.score_function_surrogate(weight, log_probs, advantages, mask)
  none = jnp.zeros_like(mask)  # no token is clipped
  return common.output(loss, common.clip_counts(mask, high=none, low=none, dropped=none))
