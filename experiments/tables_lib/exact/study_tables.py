"""The rows of a study as Markdown tables."""

import numpy as np

from experiments.tables_lib.exact import studies
from jaxrl_llm.reporting.tables import MISSING, markdown_table

ROUNDING = 1e-7  # of the float32 counts in some advantages and aggregations


def number(mean: float, error: float = float("nan")) -> str:
  """Returns three significant digits; what rounding leaves of an exact 0 is shown as 0."""
  if np.isnan(mean):
    return MISSING
  if abs(mean) < ROUNDING and not error > ROUNDING:
    return f"0 (< {ROUNDING:.0e})"
  return f"{mean:.3g} ± {error:.1g}" if error > ROUNDING else f"{mean:.3g}"


def across(rows: list[studies.TableRow], metric: str, key: str) -> str:
  """Returns the table of one metric: a row per method, a column per drift or horizon (`key`)."""
  columns = sorted({getattr(row, key) for row in rows})
  cells = {(row.method, getattr(row, key)): number(row.mean[metric], row.error[metric])
           for row in rows}
  methods = dict.fromkeys(row.method for row in rows)
  return markdown_table((metric, *(f"{key} {c:g}" for c in columns)),
                        [(m, *(cells[m, c] for c in columns)) for m in methods])


def grid(rows: list[studies.TableRow], key: str) -> str:
  """Returns the tables of the four main metrics, one below the other."""
  return "\n".join(across(rows, m, key) for m in ("bias", "variance", "cosine", "effective"))


def down(rows: list[studies.TableRow]) -> str:
  """Returns the table of all metrics: a row per method."""
  return markdown_table(
      ("", *studies.METRICS),
      [(row.method, *(number(row.mean[m], row.error[m]) for m in studies.METRICS)) for row in rows])
