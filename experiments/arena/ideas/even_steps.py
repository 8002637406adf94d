"""A step by effective sample size, on top of any method: `cispo?transform=even_steps`."""

import dataclasses

import jax.numpy as jnp

from jaxrl_llm import register
from jaxrl_llm.fields import option
from jaxrl_llm.objective.step_size import ess_step_scale
from jaxrl_llm.training.transforms import Transform


@dataclasses.dataclass(frozen=True)
class EvenSteps:
  power: float = option(0.5, "power of the effective share; 1 with SGD", low=0.0)


@register.update_transform("even_steps", EvenSteps)
@dataclasses.dataclass(frozen=True)
class Scaled(Transform):
  """updates x ess_step_scale(sum over the row of log(iteration's start / sampler))."""

  cfg: EvenSteps

  def after(self, updates, batch, carried, parts):
    ratio = batch.columns["recomputed_log_probs"] - batch.rollout.behavior_log_probs
    log_weights = jnp.where(batch.rollout.mask, ratio, 0.0).sum(-1)
    return updates * ess_step_scale(log_weights, power=self.cfg.power), carried, {}
