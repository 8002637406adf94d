"""The figure and the table of README.md: each method minus GRPO, in three test beds.

Of one seed the mean over the cells of the map, over the values of staleness of the transformer, or,
where lengths vary, its run; intervals are at 95 %, each by itself. `run.py --render` draws it.
"""

from collections.abc import Mapping

import transformer
import verdicts
from claims import Claim
from matplotlib.figure import Figure

from experiments.report.plots import INK
from experiments.tables_lib import page_parts, statistics
from experiments.tables_lib.statistics import MEASURES, Difference

METHODS = {"cispo": "CISPO", "minpro": "MinPRO", "ctpo": "CTPO", "gspo": "GSPO",
           "none": "no ratio", "seq_is": "full product"}
BESIDE_FIGURE = {"kpop": "KPop", "dppo_tv": "DPPO-TV"}  # in the table, not in the figure
REFERENCE = "grpo"
WIDEST = 0.45  # of the axis; a longer interval ends in an arrow
BEDS = {"arena": "automata:\nreturn / optimum", "transformer": "transformer:\naccuracy",
        "lengths": "lengths that vary:\naccuracy"}
# By measure: label, colour, marker and offset of its line.
MARKS = {"end": ("end of the run", "#1f4e79", "o", -0.14),
         "mean": ("mean over the run", "#d9822b", "s", 0.14)}
Rows = Mapping[tuple[str, str, str], Difference]  # by method, test bed and measure


def rows() -> Rows:
  """Returns each method's difference to REFERENCE, where it ran."""
  out = {}
  for name in METHODS | BESIDE_FIGURE:
    for measure in MEASURES:
      values = verdicts.pooled(Claim("", "", name, REFERENCE), measure)
      if values is not None:
        out[name, "arena", measure] = statistics.bootstrap(values)
      for bed, means in (("transformer", transformer.values()[measure]),
                         ("lengths", transformer.varied_lengths()[measure])):
        first, second = (means.get(transformer.NAMES.get(key, ""), {}) for key in (name, REFERENCE))
        if len(first.keys() & second.keys()) > 1:
          out[name, bed, measure] = statistics.bootstrap(statistics.paired(first, second))
  return out


def table() -> str:
  """Returns a line for each method: its seeds in the arena, and the differences of the figure."""
  differences = rows()
  seeds = {name: difference.count for (name, bed, _), difference in differences.items()
           if bed == "arena"}
  lines = [(label, seeds.get(name, "-"),
            *(verdicts.interval(differences.get((name, bed, measure)))
              for bed in BEDS for measure in MEASURES))
           for name, label in (METHODS | BESIDE_FIGURE).items()]
  header = ("minus GRPO", "seeds", *(f"{bed}, {measure}" for bed in BEDS for measure in MEASURES))
  return page_parts.narrow_tables(header, lines)


def draw(path) -> None:
  """Draws a panel for each test bed, a line for each method, a mark for each measure."""
  differences = rows()
  figure = Figure(figsize=(7.2, 3.7), layout="constrained")
  axes = figure.subplots(1, len(BEDS), sharey=True)
  for ax, (bed, title) in zip(axes, BEDS.items(), strict=True):
    for place, name in enumerate(METHODS):
      for measure, (label, colour, mark, offset) in MARKS.items():
        if (difference := differences.get((name, bed, measure))) is not None:
          y = place + offset
          ax.plot([difference.low, difference.high], [y, y], color=colour, linewidth=2.2)
          if difference.high > WIDEST:  # runs of one method end at 0 or near 1
            ax.plot([WIDEST - 0.01], [y], ">", color=colour, markersize=6)
          ax.plot([difference.mean], [y], mark, color=colour, markersize=6,
                  label=label if place == 0 else None)
    ax.axvline(0, color=INK, linewidth=1)
    ax.set_xlim(-WIDEST, WIDEST)
    ax.set_xticks((-0.3, 0, 0.3))
    ax.set_title(title, fontsize=12, color=INK)
    ax.tick_params(labelsize=12)
    ax.grid(axis="x", alpha=0.3)
    ax.set_axisbelow(True)
  axes[0].set_yticks(range(len(METHODS)), list(METHODS.values()))
  axes[0].invert_yaxis()
  figure.legend(*axes[0].get_legend_handles_labels(), fontsize=11, loc="outside upper center",
                ncols=2, frameon=False)
  figure.supxlabel("difference to GRPO, 95 % interval over seeds", fontsize=12, color=INK)
  figure.savefig(path, format="png", dpi=160, pil_kwargs={"optimize": True})
