"""Studies that are too large to enumerate: sampled groups, and long random walks of log-ratios."""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from experiments.tables_lib.exact import exact, exact_group
from experiments.tables_lib.exact.exact_gradient import coefficient_function, in_chunks
from experiments.tables_lib.exact.moments import Report, report
from jaxrl_llm.config import AggregationConfig, EstimatorConfig

BLOCKS = 20  # of the jackknife
ROWS_PER_CALL = 250


def group_report(case: exact.Case, functions: tuple[Callable, Callable], target: np.ndarray, *,
                 group_size: int, samples: int, seed: int) -> tuple[Report, Report]:
  """Compares the gradient of sampled groups with `target`.

  The squared standard error of the mean gradient is subtracted from the squared bias, else noise
  would count as bias; the result is at least 0.

  Args:
    case: without leading axes.
    functions: from `exact_group.advantage_function` and `group_coefficient_function`.
    target: [num_nodes, V].
    group_size: G.
    samples: groups that the behavior policy samples, a multiple of BLOCKS.
    seed: seed of the sampling.

  Returns:
    (estimates, standard errors by a delete-one-block jackknife).

  Raises:
    ValueError: `samples` is no multiple of BLOCKS.
  """
  if samples % BLOCKS:
    raise ValueError(f"samples = {samples}: a multiple of {BLOCKS} is needed.")
  probs = exact.sequence_probs(case.tree, case.behavior_logits)
  rng = np.random.default_rng(seed)
  sequences = rng.choice(len(probs), (samples, group_size), p=probs / probs.sum())
  groups = np.sort(sequences, -1).astype(np.int32)
  sampled = exact_group.group_samples(case, groups, *functions)
  block = np.arange(samples) % BLOCKS

  def without(left_out: int) -> Report:
    retained = block != left_out
    moments = sampled.moments(retained / retained.sum())
    return _less_noise(report(moments, target), target, retained.sum())

  estimate, leave_one_out = without(-1), [without(b) for b in range(BLOCKS)]
  errors = {field.name: _jackknife([getattr(r, field.name) for r in leave_one_out])
            for field in dataclasses.fields(Report)}
  return estimate, Report(**errors)


def _less_noise(measured: Report, target: np.ndarray, samples: int) -> Report:
  """Corrects bias and variance for the noise of a mean over `samples` groups."""
  variance = measured.variance * samples / (samples - 1)
  squared = np.square(measured.bias) - variance / samples / np.sum(np.square(target))
  return dataclasses.replace(measured, bias=np.sqrt(np.maximum(squared, 0.0)), variance=variance)


def _jackknife(leave_one_out) -> np.ndarray:
  values = np.asarray(leave_one_out)
  return np.sqrt((len(values) - 1) * np.mean(np.square(values - values.mean())))


@dataclasses.dataclass(frozen=True, eq=False)
class Window:
  """Share of tokens outside a window of the cumulative log-ratio, by position.

  Attributes:
    closed_form, simulated, error: [T]; the error is the standard error of `simulated`.
    slope: of log std(L_t) against log t, simulated; 0.5 for independent ratios.
    drift: mean of L_T / T in nats, simulated; -sigma^2 / 2 for normal log-ratios.
  """

  closed_form: np.ndarray
  simulated: np.ndarray
  error: np.ndarray
  slope: float
  drift: float


def window_study(estimator: EstimatorConfig, *, sigmas, length: int, rows: int,
                 seed: int) -> dict[float, Window]:
  """Returns how many tokens of random walks fall outside the window of `ctpo`, by sigma.

    l_t ~ N(-sigma^2 / 2, sigma^2), independent, so that every ratio has mean 1
    L_t ~ N(-t sigma^2 / 2, t sigma^2)
    outside: L_t > log_high t^power or L_t < -log_low t^power

  The simulation calls `ctpo` itself with A = -1 and counts tokens without a gradient. With
  log_dual = log_high that is the share outside on either side.

  Args:
    estimator: a `ctpo` config in which log_low, log_high, log_dual and power are numbers, and
      log_dual = log_high.
    sigmas: standard deviations of a token's log-ratio, nats.
    length, rows: size of the simulation.
    seed: seed of the simulation.

  Raises:
    ValueError: log_dual differs from log_high.

  Source: the window is from arXiv 2605.07331; the closed form is an own derivation.
  """
  if estimator.log_dual != estimator.log_high:
    raise ValueError(f"log_dual = {estimator.log_dual} and log_high = {estimator.log_high}: equal "
                     "ones are needed.")
  batch = jax.jit(coefficient_function(estimator, AggregationConfig("token_sum")))

  def coefficients(log_ratios):
    mask = jnp.ones(log_ratios.shape, bool)
    group_id = jnp.arange(len(log_ratios))
    return batch(log_ratios, jnp.zeros_like(log_ratios), -jnp.ones_like(log_ratios), mask,
                 group_id)[:1]

  position, out = np.arange(1, length + 1), {}
  for sigma in sigmas:
    log_ratios = np.random.default_rng(seed).normal(-sigma**2 / 2, sigma, (rows, length))
    outside = np.mean(in_chunks(coefficients, [log_ratios], ROWS_PER_CALL)[0] == 0, 0)
    walk = np.cumsum(log_ratios, -1)
    out[sigma] = Window(
        closed_form=closed_form_outside(estimator, sigma, position),
        simulated=outside,
        error=np.sqrt(outside * (1 - outside) / rows),
        slope=float(np.polyfit(np.log(position), np.log(walk.std(0)), 1)[0]),
        drift=float(walk[:, -1].mean() / length),
    )
  return out


def closed_form_outside(estimator: EstimatorConfig, sigma: float,
                        position: np.ndarray) -> np.ndarray:
  """Returns P(L_t outside the window) at positions [T], for L_t ~ N(-t sigma^2 / 2, t sigma^2)."""
  mean, deviation = -position * sigma**2 / 2, sigma * np.sqrt(position)
  growth = position**estimator.power
  lower_tail = _normal_cdf((-estimator.log_low * growth - mean) / deviation)
  return lower_tail + 1 - _normal_cdf((estimator.log_high * growth - mean) / deviation)


def _normal_cdf(z: np.ndarray) -> np.ndarray:
  return np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in z])
