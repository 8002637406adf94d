"""The other test bed: the transformer's runs on old rollouts (experiments/staleness).

A claim of the arena that names two methods of that table is asked there, too, by both measures:
sampled accuracy at the end of the run, and its mean over the run, of one seed the mean over the
table's values of staleness. Holm's correction is over the claims and measures that have results.
"""

import functools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from claims import CLAIMS

from experiments.tables_lib import accuracy, statistics, sweep_results, sweeps

SWEEP = Path(__file__).parent.parent / "staleness" / "sweep.py"
VARIED = SWEEP.parent.parent / "staleness_lengths" / "sweep.py"
NAMES = {"none": "no ratio", "grpo": "GRPO", "gspo": "GSPO", "cispo": "CISPO", "minpro": "MinPRO",
         "ctpo": "CTPO", "seq_is": "full sequence", "kpop": "KPop", "dppo_tv": "DPPO-TV"}
Values = Mapping[str, Mapping[str, Mapping[int, float]]]  # by measure, method and seed


def by_method(results: dict[str, dict]) -> Values:
  """Returns sampled accuracy by measure, method and seed: the mean over the values of staleness,
  of the seeds that ran at all of them.
  """
  staleness = sweeps.module(SWEEP)
  runs: dict[str, list[dict[int, dict]]] = {}
  for (_, name, _), seeds in staleness.compared(results).items():
    runs.setdefault(name, []).append(seeds)
  return {measure: {name: {seed: float(np.mean([read(run[seed]["measured"]) for run in by_age]))
                           for seed in set.intersection(*map(set, by_age))}
                    for name, by_age in runs.items()
                    if name in NAMES.values() and len(by_age) == len(staleness.AGES)}
          for measure, (_, read) in accuracy.MEASURES.items()}


@functools.cache
def values() -> Values:
  """Returns what `by_method` has of the committed results."""
  return by_method(sweep_results.read(SWEEP.parent))


@functools.cache
def varied_lengths() -> Values:
  """Returns the same of the runs whose lengths vary (experiments/staleness_lengths), which no claim
  asks for.
  """
  runs = sweeps.module(VARIED).by_method(sweep_results.read(VARIED.parent))
  return {measure: {name: {seed: read(result["measured"]) for seed, result in seeds.items()}
                    for name, seeds in runs.items()}
          for measure, (_, read) in accuracy.MEASURES.items()}


@functools.cache
def differences() -> dict[str, dict[str, statistics.Difference]]:
  """Returns the corrected differences of each claim that has results, by text and measure."""
  return compared(values())


def compared(means: Values) -> dict[str, dict[str, statistics.Difference]]:
  """Returns the corrected differences of each claim that has results, by text and measure."""
  out: dict[str, dict[str, statistics.Difference]] = {}
  for (text, measure), difference in statistics.compare(paired(means)).items():
    out.setdefault(text, {})[measure] = difference
  return out


def paired(means: Values) -> dict[tuple[str, str], np.ndarray]:
  """Returns the differences by seed of each claim whose two methods share two seeds or more, by
  text and measure.
  """
  out = {}
  for claim in CLAIMS:
    for measure, of_method in means.items():
      first, second = (of_method.get(NAMES.get(name, "")) for name in claim.transformer or ("", ""))
      if first and second and len(first.keys() & second.keys()) > 1:
        out[claim.text, measure] = statistics.paired(first, second)
  return out
