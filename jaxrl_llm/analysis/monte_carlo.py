"""What is too large to enumerate: sampled groups with jackknife errors, and long random walks of
log-ratios.
"""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.analysis import exact, exact_group
from jaxrl_llm.analysis.exact_gradient import Report, coefficient_function, in_chunks, report
from jaxrl_llm.config import AggregationConfig, EstimatorConfig

BLOCKS = 20  # of the jackknife
ROWS_PER_CALL = 250


def group_report(problem: exact.Problem, advantage: Callable, coefficient: Callable,
                 target: np.ndarray, *, group_size: int, samples: int,
                 seed: int) -> tuple[Report, Report]:
  """Sampled groups in place of all multisets.

  The squared bias has the squared standard error of the mean gradient taken off, else noise would
  count as bias; it is at least 0.

  Args:
    problem: without leading axes.
    advantage, coefficient: from `exact_group`.
    target: [num_nodes, V].
    group_size: G.
    samples: groups drawn from the behavior policy, a multiple of BLOCKS.
    seed: of the draw.

  Returns:
    (estimates, standard errors by a delete-one-block jackknife).

  Raises:
    ValueError: `samples` is no multiple of BLOCKS.
  """
  if samples % BLOCKS:
    raise ValueError(f"samples = {samples}: a multiple of {BLOCKS} is needed.")
  probs = exact.sequence_probs(problem.tree, problem.behavior_logits)
  draw = np.random.default_rng(seed).choice(len(probs), (samples, group_size),
                                            p=probs / probs.sum())
  groups = np.sort(draw, -1).astype(np.int32)
  sampled = exact_group.group_samples(problem, groups, advantage, coefficient)
  block = np.arange(samples) % BLOCKS

  def without(left_out: int) -> Report:
    kept = block != left_out
    moments = sampled.moments(kept / kept.sum())
    return _less_noise(report(moments, target), target, kept.sum())

  estimate, parts = without(-1), [without(b) for b in range(BLOCKS)]
  errors = [_jackknife([getattr(p, f.name) for p in parts]) for f in dataclasses.fields(Report)]
  return estimate, Report(*errors)


def _less_noise(measured: Report, target: np.ndarray, samples: int) -> Report:
  """Bias and variance with the noise of the mean taken into account."""
  variance = measured.variance * samples / (samples - 1)
  squared = np.square(measured.bias) - variance / samples / np.sum(np.square(target))
  return dataclasses.replace(measured, bias=np.sqrt(np.maximum(squared, 0.0)), variance=variance)


def _jackknife(parts) -> np.ndarray:
  parts = np.asarray(parts)
  return np.sqrt((len(parts) - 1) * np.mean(np.square(parts - parts.mean())))


@dataclasses.dataclass(frozen=True, eq=False)
class Window:
  """Share of tokens outside a window of the cumulative log-ratio, by position.

  Attributes:
    closed_form, simulated, error: [T]; the error is the standard error of `simulated`.
    slope: of log std(L_t) against log t, simulated; 0.5 for independent ratios.
    drift: mean of L_T / T, simulated; -sigma^2 / 2 for normal log-ratios.
  """

  closed_form: np.ndarray
  simulated: np.ndarray
  error: np.ndarray
  slope: float
  drift: float


def window_study(estimator: EstimatorConfig, *, sigmas, length: int, rows: int,
                 seed: int) -> dict[float, Window]:
  """Independent token log-ratios N(-sigma^2 / 2, sigma^2), whose ratios have mean 1, put through
  `ctpo` itself.

    L_t ~ N(-t sigma^2 / 2, t sigma^2);   outside: L_t > log_high t^power or L_t < -log_low t^power

  The simulated share is that of tokens without a gradient at A = -1, which with log_dual = log_high
  is the share outside on either side.

  Args:
    estimator: a `ctpo` config with log_low, log_high, log_dual and power given as numbers, log_dual
      = log_high.
    sigmas: standard deviations of a token's log-ratio, nats.
    length, rows: of the simulation.
    seed: of the draw.

  Returns:
    sigma -> Window.

  Raises:
    ValueError: log_dual differs from log_high.

  Source: methods E26.1.
  """
  if estimator.log_dual != estimator.log_high:
    raise ValueError(
        f"log_dual = {estimator.log_dual} and log_high = {estimator.log_high}: equal ones are "
        "needed."
    )
  batch = jax.jit(coefficient_function(estimator, AggregationConfig("token_sum")))
  run = lambda x: batch(x, jnp.zeros_like(x), -jnp.ones_like(x), jnp.ones(x.shape, bool),
                        jnp.arange(len(x)))[:1]
  position, out = np.arange(1, length + 1), {}
  for sigma in sigmas:
    draws = np.random.default_rng(seed).normal(-sigma ** 2 / 2, sigma, (rows, length))
    outside = np.mean(in_chunks(run, [draws], ROWS_PER_CALL)[0] == 0, 0)
    walk = np.cumsum(draws, -1)
    slope = np.polyfit(np.log(position), np.log(walk.std(0)), 1)[0]
    out[sigma] = Window(closed_form_outside(estimator, sigma, position), outside,
                        np.sqrt(outside * (1 - outside) / rows), float(slope),
                        float(walk[:, -1].mean() / length))
  return out


def closed_form_outside(estimator: EstimatorConfig, sigma: float,
                        position: np.ndarray) -> np.ndarray:
  """P(L_t outside the window) for L_t ~ N(-t sigma^2 / 2, t sigma^2), at positions [T]."""
  mean, deviation, scale = -position * sigma**2 / 2, sigma * np.sqrt(
      position), position**estimator.power
  below = lambda x: np.array([0.5 * math.erfc(-z / math.sqrt(2)) for z in (x - mean) / deviation])
  return below(-estimator.log_low * scale) + 1 - below(estimator.log_high * scale)
