"""The other instrument: the transformer's runs on old rollouts (experiments/staleness).

A claim of the arena that names two methods of that table is asked there, too: the difference of
their mean sampled accuracies over the run, paired by seed, at the table's primary staleness. Holm's
correction is over the claims that have results in it.
"""

import functools
from pathlib import Path

from claims import CLAIMS

from experiments.tables_lib import accuracy, statistics, sweep_results, sweeps

SWEEP = Path(__file__).parent.parent / "staleness" / "sweep.py"
NAMES = {"none": "no ratio", "grpo": "GRPO", "gspo": "GSPO", "cispo": "CISPO", "minpro": "MinPRO",
         "ctpo": "CTPO", "seq_is": "full sequence"}


def by_method(results: dict[str, dict]) -> dict[str, dict[int, float]]:
  """Returns mean sampled accuracy over the run by method and seed, at the primary staleness."""
  staleness = sweeps.module(SWEEP)
  return {name: {seed: accuracy.mean_sampled(run["measured"]) for seed, run in runs.items()}
          for (age, name, _), runs in staleness.compared(results).items()
          if age == staleness.PRIMARY and name in NAMES.values()}


@functools.cache
def differences() -> dict[str, statistics.Difference]:
  """Returns the corrected difference of each claim that has results, by the claim's text."""
  return compared(by_method(sweep_results.read(SWEEP.parent)))


def compared(means: dict[str, dict[int, float]]) -> dict[str, statistics.Difference]:
  """Returns the corrected difference of each claim whose two methods share two seeds or more."""
  paired = {}
  for claim in CLAIMS:
    first, second = (means.get(NAMES.get(name, "")) for name in claim.transformer or ("", ""))
    if first and second and len(first.keys() & second.keys()) > 1:
      paired[claim.text] = statistics.paired(first, second)
  return statistics.compare(paired)
