"""A plugin: REINFORCE whose loss is not a number in the tenth optimizer step."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from jaxrl_llm.objective import estimators
from jaxrl_llm.types import EstimatorOutput

FAILING_STEP = 10
_STEPS = itertools.count(1)


@estimators.register("failing")
def failing(log_probs, anchor_log_probs, advantages, mask, cfg):
  step = io_callback(lambda: np.int32(next(_STEPS)), jax.ShapeDtypeStruct((), jnp.int32))
  return EstimatorOutput(jnp.where(step == FAILING_STEP, jnp.nan, -advantages * log_probs), {})
