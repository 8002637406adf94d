"""Mergeable metrics to numbers: the only place that divides a total by its count."""

import numpy as np

from jaxrl_llm.types import EffectiveShare, Extreme, Histogram, Mean

QUANTILES = {"p05": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95}


def summarize(metrics: dict[str, Mean | Histogram | Extreme | EffectiveShare]) -> dict[str, float]:
  """Returns a flat dict of floats, ready for `MetricsWriter.write`.

  A scalar Mean gives `name`; a vector Mean gives `name/bucket_0`, `name/bucket_1`, ...; a Histogram
  gives `name/p05`, p25, p50, p75, p95; an Extreme gives `name/min` and `name/max`; an
  EffectiveShare gives `name`. A metric that saw no value has no key, because absent is not zero.

  Args:
    metrics: name to merged metric; arrays of numpy, or of JAX already fetched to the host.

  Raises:
    TypeError: a metric of another type.
    ValueError: a Mean of rank 2 or more, or a Histogram with a wrong number of bins.
  """
  values = {}
  for name, metric in metrics.items():
    if isinstance(metric, Mean):
      values.update(_mean(name, metric))
    elif isinstance(metric, Histogram):
      values.update(_quantiles(name, metric))
    elif isinstance(metric, Extreme):
      values.update(_extreme(name, metric))
    elif isinstance(metric, EffectiveShare):
      values.update(_share(name, metric))
    else:
      raise TypeError(
          f"metric {name} is a {type(metric).__name__}; Mean, Histogram, Extreme and "
          "EffectiveShare can be merged.")
  return values


def _mean(name: str, metric: Mean) -> dict[str, float]:
  total, count = np.broadcast_arrays(np.asarray(metric.total, np.float64),
                                     np.asarray(metric.count, np.float64))
  if total.ndim > 1:
    raise ValueError(f"metric {name} has shape {total.shape}; a Mean is a scalar or a vector over "
                     "position buckets.")
  if total.ndim == 0:
    return {name: float(total / count)} if count != 0 else {}
  return {
      f"{name}/bucket_{i}": float(total[i] / count[i]) for i in range(len(total)) if count[i] != 0
  }


def _quantiles(name: str, metric: Histogram) -> dict[str, float]:
  """Interpolates linearly within a bin; an open end bin counts as its outermost edge."""
  counts = np.asarray(metric.counts, np.float64)
  edges = np.asarray(metric.edges, np.float64)
  if counts.shape != (len(edges) + 1,):
    raise ValueError(f"metric {name}: {len(edges)} edges bound {len(edges) + 1} bins; counts has "
                     f"shape {counts.shape}.")
  cumulative = np.concatenate([[0.0], np.cumsum(counts)])
  if cumulative[-1] == 0:
    return {}
  bounds = np.concatenate([edges[:1], edges, edges[-1:]])
  quantiles = np.interp(np.array(list(QUANTILES.values())) * cumulative[-1], cumulative, bounds)
  return {f"{name}/{label}": float(value)
          for label, value in zip(QUANTILES, quantiles, strict=True)}


def _share(name: str, metric: EffectiveShare) -> dict[str, float]:
  total, squares, count = (float(x) for x in (metric.total, metric.squares, metric.count))
  return {name: total**2 / (count * squares)} if count and squares else {}


def _extreme(name: str, metric: Extreme) -> dict[str, float]:
  low, high = float(metric.min), float(metric.max)
  return {} if low > high else {f"{name}/min": low, f"{name}/max": high}
