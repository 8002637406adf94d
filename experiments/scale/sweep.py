"""Does the order of the ratios hold for other sizes of the policy and other lengths of completions?

  python experiments/scale/sweep.py --list
  python experiments/scale/sweep.py --jobs=2
  python experiments/scale/sweep.py --render

The deciding methods of experiments/staleness x sizes of the policy x lengths. Writes the table of
README.md and accuracy.png beside this file.
"""

from pathlib import Path

import numpy as np

from experiments.tables_lib import accuracy, page_parts, plots, statistics, sweeps
from experiments.tables_lib.compare import interval
from experiments.tables_lib.sweeps import Cell, Sweep
from jaxrl_llm.reporting import tables

HERE = Path(__file__).parent
SEEDS = (0, 1, 2, 3, 4)
SIZES = {
    "0.3 M": {"width": 80, "num_layers": 4, "num_heads": 4, "num_kv_heads": 2, "head_dim": 20,
              "mlp_width": 240},
    "0.8 M": {},  # as configs/chain_offpolicy.py has it
    "4.7 M": {"width": 256, "num_layers": 6, "num_heads": 8, "num_kv_heads": 4, "head_dim": 32,
              "mlp_width": 768},
}
TERMS = (4, 6)  # 15 and 23 tokens for a worked answer
# All ratios are to the policy that sampled, as in experiments/staleness.
METHODS = {
    "none": ("grpo", "--config.estimator.name=reinforce"),
    "GSPO": ("gspo",),
    "MinPRO": ("minpro",),
    "CTPO": ("ctpo", "--config.correction.level=none", "--config.correction.cap=2.0"),
}
TRIPLES = tuple((size, terms, name) for size in SIZES for terms in TERMS for name in METHODS)
STABLE = "GSPO"  # whose runs the others' are compared with, seed by seed
FINAL, MEAN = f"final accuracy minus {STABLE}'s", f"mean over the run minus {STABLE}'s"
HEADER = ("parameters", "terms", "method", "accuracy at the start", *accuracy.HEADER,
          FINAL, MEAN)


def _key(size: str, terms: int, name: str, seed: int) -> str:
  return f"{size}_{terms}_terms_{name}_seed{seed}".lower().replace(" ", "").replace(".", "p")


def cells() -> list[Cell]:
  """Seed by seed, so that an unfinished sweep has whole seeds."""
  return [_cell(*triple, seed) for seed in SEEDS for triple in TRIPLES]


def _cell(size: str, terms: int, name: str, seed: int) -> Cell:
  preset, *flags = METHODS[name]
  shape = [f"--config.model.{key}={value}" for key, value in SIZES[size].items()]
  return Cell(_key(size, terms, name, seed), (
      f"--config=configs/chain_offpolicy.py:{preset},{terms}", "--config.updates.anchor=behavior",
      *flags, *shape, f"--config.seed={seed}"))


def _measured(results: dict[str, dict], triple: tuple) -> list[dict] | None:
  """Returns what the runs of a size, length and method measured; None if some are missing."""
  keys = [_key(*triple, seed) for seed in SEEDS]
  if not results.keys() >= set(keys):
    return None
  return [results[key]["measured"] for key in keys]


def differences(results: dict[str, dict]) -> dict[tuple, np.ndarray]:
  """Returns what a method's final and mean accuracies are above those of STABLE, seed by seed, by
  (size, terms, method, column): a seed decides warm start and problems.
  """
  out = {}
  for triple in TRIPLES:
    measured, other = (_measured(results, (*triple[:2], name)) for name in (triple[2], STABLE))
    if triple[2] != STABLE and measured is not None and other is not None:
      _, both = accuracy.curves([*measured, *other])
      gap = both[:len(measured)] - both[len(measured):]
      out |= {(*triple, FINAL): gap[:, -1], (*triple, MEAN): gap.mean(1)}
  return out


def render(results: dict[str, dict], folder: Path) -> None:
  """Writes the table into README.md, and the figure."""
  rows, curves = [], {}
  less, sentence = statistics.table_cells(differences(results))
  for size, terms, name in TRIPLES:
    measured = _measured(results, (size, terms, name))
    if measured is not None:
      start = interval(np.array([one["accuracy"][0] for one in measured]))
      rows.append((size, terms, name, start, *accuracy.row(measured),
                   *(less.get((size, terms, name, column), tables.MISSING)
                     for column in (FINAL, MEAN))))
      curves.setdefault(f"{size}, {terms} terms", {})[name] = accuracy.curves(measured)
  page_parts.replace_part(folder / "README.md", "sweep.py", page_parts.narrow_tables(
      HEADER, rows, 3) + sentence + sweeps.made_at(results))
  if curves:
    plots.plot_panels(curves, folder / "accuracy.png", "held-out accuracy")


SWEEP = Sweep(HERE, cells(), accuracy.measure, render)

if __name__ == "__main__":
  sweeps.main(SWEEP, __doc__)
