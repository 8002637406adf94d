"""Controls of the prefix methods: their prefix is taken over shuffled positions.

  --config.plugins=experiments/staleness/shuffled.py --config.estimator.name=minpro_shuffled

If the order of the tokens matters to a method, its control does worse; if only the number of
factors matters, it does as well. The order is drawn once and is the same for all rows.
"""

import jax.numpy as jnp
import numpy as np

from jaxrl_llm import register
from jaxrl_llm.objective.estimators.common import output
from jaxrl_llm.objective.estimators.cumulative import Ctpo, MinPro, ctpo, minpro

LONGEST = 4096  # positions
KEYS = np.random.default_rng(0).permutation(LONGEST)


def _shuffled(estimator, log_probs, anchor_log_probs, advantages, mask, cfg):
  """Returns the estimator's output on rows whose counted positions stand in another order.

  All arrays are [B, T]; what is not counted stands behind.
  """
  keys = jnp.where(mask, KEYS[:mask.shape[1]], LONGEST)
  order = jnp.argsort(keys, axis=1)
  back = jnp.argsort(order, axis=1)
  arrays = (log_probs, anchor_log_probs, advantages, mask)
  out = estimator(*(jnp.take_along_axis(array, order, 1) for array in arrays), cfg)
  return output(jnp.take_along_axis(out.per_token_loss, back, 1), out.metrics)


@register.estimator("minpro_shuffled", MinPro, anchor="behavior")
def minpro_shuffled(log_probs, anchor_log_probs, advantages, mask, cfg):
  """`minpro`, with the minimum over a random subset of the row instead of over its prefix."""
  return _shuffled(minpro, log_probs, anchor_log_probs, advantages, mask, cfg)


@register.estimator("ctpo_shuffled", Ctpo)
def ctpo_shuffled(log_probs, anchor_log_probs, advantages, mask, cfg):
  """`ctpo`, with the product over a random subset of the row instead of over its prefix."""
  return _shuffled(ctpo, log_probs, anchor_log_probs, advantages, mask, cfg)
