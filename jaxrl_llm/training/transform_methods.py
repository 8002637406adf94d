"""The update transforms of the package: a step by effective sample size, a gate by entropy."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_llm.fields import option
from jaxrl_llm.objective.gates import entropy_share
from jaxrl_llm.objective.step_size import effective_share, ess_step_scale
from jaxrl_llm.ops import masked
from jaxrl_llm.training.columns import RECOMPUTED_COLUMN
from jaxrl_llm.training.transforms import Transform, register
from jaxrl_llm.training.whole_batch import stats_before
from jaxrl_llm.types import Mean


@dataclasses.dataclass(frozen=True)
class Ess:
  """Hyperparameters of `ess`."""

  power: float = option(0.5, "of the factor: 0.5 with AdamW, 1 with SGD", low=0.0)
  reference: float = option(1.0, "effective share at and above which the step is unscaled",
                            low=1e-6, high=1.0)


@register("ess", Ess)
class EssStep(Transform):
  """Scales each update by how even the sequence weights of its optimizer batch are (VCPO).

    W_i = prod_t pi_old(a_t) / mu(a_t),   step = min(1, ess(W) / reference)^power step

  pi_old is the policy at the start of the update phase, mu the sampler's. A dropped completion does
  not count. One without policy tokens has W = 1 and counts.

  Source: arXiv 2602.17616, and its code.
  """

  columns = frozenset({RECOMPUTED_COLUMN})

  def __init__(self, cfg: Ess):
    self._cfg = cfg

  def after(self, updates, batch, carry, parts):
    del parts
    rollout = batch.rollout
    has_weight = jnp.any(batch.loss_weights != 0, axis=1)
    rows = has_weight | ~jnp.any(rollout.mask, axis=1)
    mask = rollout.mask if batch.in_support is None else rollout.mask & batch.in_support
    difference = batch.columns[RECOMPUTED_COLUMN] - rollout.behavior_log_probs
    log_weights = jnp.sum(masked.masked(difference, mask), axis=1)
    share = effective_share(log_weights, rows)
    factor = ess_step_scale(log_weights, power=self._cfg.power, reference=self._cfg.reference,
                            rows=rows)
    count = jnp.float32(1)
    metrics = {"ess/share": Mean(share, count), "ess/factor": Mean(factor, count)}
    return jax.tree.map(lambda x: (factor * x).astype(x.dtype), updates), carry, metrics


@dataclasses.dataclass(frozen=True)
class EntropyShare:
  """Hyperparameters of `entropy_share`."""

  share: float = option(0.2, "of the policy tokens that keep their gradient, those of highest "
                        "entropy", low=1e-6, high=1.0)


@register("entropy_share", EntropyShare)
class EntropyGate(Transform):
  """Only the policy tokens of highest entropy keep their gradient; see `gates.entropy_share`.

  The entropy is the current policy's, from a pass over the optimizer batch, and so is the quantile.
  Denominators, KL and other loss terms do not change.

  Source: arXiv 2506.01939.
  """

  passes = 1

  def __init__(self, cfg: EntropyShare):
    self._cfg = cfg

  def before(self, params, batch, carry, parts):
    stats, mask = stats_before(params, batch, model=parts.model, cfg=parts.cfg,
                               packing=parts.packing, stats=frozenset({"entropy"}))
    gate = entropy_share(stats.entropy, mask, self._cfg.share)
    metrics = {"entropy_share/kept": masked.mean(gate.astype(jnp.float32), mask)}
    return (batch.replace(correction_weights=batch.correction_weights * gate), carry, metrics)


__all__ = ["EntropyGate", "EssStep"]
