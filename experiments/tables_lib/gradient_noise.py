"""Signal and noise of the policy gradient under each baseline, on a policy that stays as it is.

Groups of rows of fresh prompts are sampled. The first G rows of a group give one estimate

    g = 1/G sum over rows and tokens of A_t grad log pi(a_t)

for each advantage. Estimates of different groups are independent, so products of different groups
estimate products of means without bias. Own derivation (U-statistics).
"""

import dataclasses
import functools
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from experiments.commands import saved
from jaxrl_llm.config import AdvantageConfig
from jaxrl_llm.objective.advantages import get_advantage
from jaxrl_llm.objective.row_stats import row_stats
from jaxrl_llm.runs.dynamic_sampling import sample_batch
from jaxrl_llm.types import AdvantageInputs, Rollout
from jaxrl_llm.wiring import setup
from jaxrl_llm.wiring.loop import RolloutSource, make_source

UNBIASED = AdvantageConfig("rloo")
FIRST_BATCH = 10**6  # index of the task's first batch, which no run of a table reaches


class Group(NamedTuple):
  """The rows of one prompt: a rollout of [G] rows, and their rewards [G] f32."""

  rollout: Rollout
  rewards: np.ndarray


@dataclasses.dataclass(frozen=True)
class Noise:
  """Signal and noise of the gradient estimates that an advantage gives.

  Attributes:
    signal: projection of their mean on the mean gradient r of RLOO with all rows, divided by |r|:
      1 for an unbiased estimate.
    noise: trace of the covariance of one estimate, divided by (signal |r|)^2.
  """

  signal: float
  noise: float


def gradients(params, group: Group, advantages: tuple[AdvantageConfig, ...], *,
              model) -> Float[Array, "K P"]:
  """Returns the estimate of each advantage from all rows of a group, over all P parameters."""
  rollout = group.rollout
  stats_names = {"sum_pi_squared"} | ({"values"} if model.config.value_head else set())

  def log_probs(params):
    stats = row_stats(params, rollout.tokens, rollout.length, model=model,
                      stats=frozenset(stats_names))
    return stats.log_probs, stats

  chosen_log_probs, backward, stats = jax.vjp(log_probs, params, has_aux=True)
  inputs = AdvantageInputs(
      rewards=group.rewards, mask=rollout.mask, tokens=rollout.tokens,
      group_id=jnp.zeros_like(rollout.group_id), anchor_log_probs=chosen_log_probs,
      ref_log_probs=chosen_log_probs,
      sum_pi_squared=stats.sum_pi_squared, values=stats.values,
      correction_weights=jnp.ones_like(chosen_log_probs), turn_id=rollout.mask.astype(jnp.int32))
  per_advantage = jnp.stack([get_advantage(cfg.name)(inputs, cfg) for cfg in advantages])
  weights = jnp.where(rollout.mask, per_advantage, 0) / len(group.rewards)
  return jax.lax.map(lambda cotangent: ravel_pytree(backward(cotangent)[0])[0], weights)


def measure(params, groups: Iterable[Group], advantages: dict[str, AdvantageConfig],
            sizes: tuple[int, ...], *, model) -> dict[str, dict[str, Noise]]:
  """Returns the Noise by advantage and by number of rows.

  Args:
    groups: at least two, of max(sizes) rows each.
    advantages: by name.
    sizes: numbers of rows of a group that are used.
  """
  compiled = jax.jit(functools.partial(gradients, advantages=(*advantages.values(), UNBIASED),
                                       model=model))
  sizes = tuple(sorted(sizes))
  count, sums, squares, products = 0, 0.0, 0.0, 0.0
  for group in groups:
    estimates = np.stack([compiled(params, jax.tree.map(lambda x, size=size: x[:size], group))
                          for size in sizes]).astype(np.float64)
    count += 1
    sums = sums + estimates
    squares = squares + np.square(estimates).sum(-1)
    products = products + estimates @ estimates[-1, -1]
  return _noise(count, sums, squares, products, tuple(advantages), sizes)


def _noise(count: int, sums, squares, products, names, sizes) -> dict[str, dict[str, Noise]]:
  """Returns the noise of each advantage and size, of sums over groups.

  Args:
    sums: [S, K + 1, P], of the estimates; the last advantage is UNBIASED.
    squares, products: [S, K + 1], of their squares, and of their products with the estimate of
      UNBIASED from all rows.
  """
  pairs = count * (count - 1)
  along = (sums @ sums[-1, -1] - products) / pairs
  variance = squares / count - (np.square(sums).sum(-1) - squares) / pairs
  reference = along[-1, -1]  # |r|^2
  signal = along / reference
  noise = variance / (signal**2 * reference)
  return {name: {str(size): Noise(float(signal[i, k]), float(noise[i, k]))
                 for i, size in enumerate(sizes)} for k, name in enumerate(names)}


def of_run(workdir: str | Path, advantages: dict[str, AdvantageConfig], sizes: tuple[int, ...],
           prompts: int) -> dict[str, dict[str, Noise]]:
  """Measures the newest checkpoint of a run on prompts that it was not trained on.

  Args:
    prompts: number of groups, a multiple of the run's `rollout.prompts`.
  """
  cfg, devices = saved.read_config(workdir, jax.devices()[:1])
  cfg = dataclasses.replace(cfg, rollout=dataclasses.replace(cfg.rollout, group_size=max(sizes)))
  cfg, task, learner, sampler = setup.build(cfg, devices, training=False)
  _, params = saved.restore_trained(cfg, learner, workdir)
  try:
    source = make_source(cfg, task, sampler)
    return measure(params, _groups(source, params, prompts), advantages, sizes,
                   model=learner.model)
  finally:
    sampler.close()


def _groups(source: RolloutSource, params, prompts: int) -> Iterable[Group]:
  size = source.rollout.group_size
  for index in range(prompts // source.rollout.prompts):
    batch = sample_batch(source, params, jnp.int32(0), FIRST_BATCH + index)
    rows = (batch.host, batch.verdicts.rewards.astype(np.float32))
    for begin in range(0, source.rollout.rows, size):
      members = slice(begin, begin + size)
      yield Group(*jax.tree.map(lambda x, members=members: x[members], rows))
