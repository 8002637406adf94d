"""A replay as Markdown text, as a figure and as an HTML page."""

import io

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.report import html
from experiments.report.plots import COLOURS, line_style, visible_lines
from experiments.tables_lib.replay.replay import Replay
from jaxrl_llm.objective import estimators
from jaxrl_llm.reporting import tables

HEADER = ("family", "estimator", "anchor", "above %", "below %", "no gradient %",
          "effective sample %", "gradient norm", "cosine to reinforce")
POSITION_HEADER = ("position", "tokens", "rows", "of these end here",
                   "mean of the cumulative log-ratio", "its std")
NONE = "no gradient"


def family(name: str) -> str:
  """Returns the family of an estimator, see `estimators.families`."""
  return next(family for family, names in estimators.families().items() if name in names)


def by_family(replay: Replay) -> list[int]:
  """Returns the indices of the estimators in the order of their families."""
  order = list(estimators.families())
  names = [entry.name for entry in replay.estimators]
  return sorted(range(len(names)), key=lambda i: (order.index(family(names[i])), i))


def estimator_rows(replay: Replay) -> list[tuple[str, ...]]:
  """Returns the cells below HEADER, a row per estimator."""
  names = [entry.name for entry in replay.estimators]
  out = []
  for i in by_family(replay):
    entry = replay.estimators[i]
    cosine = replay.cosine[i, names.index("reinforce")] if "reinforce" in names else np.nan
    shares = (entry.clip["high"], entry.clip["low"], entry.dropped, entry.effective_share)
    out.append((family(entry.name), entry.name, entry.anchor, *map(_percent, shares),
                f"{entry.norm:.4g}", _cosine(cosine, 4)))
  return out


def denominators(replay: Replay) -> str:
  """Returns the sentence that says what the shares are shares of."""
  return (f"`above` and `below` are shares of all policy tokens. `no gradient` and `effective "
          f"sample`, in tables and figure, are shares of the {_percent(replay.advantaged)} % of "
          "them that have an advantage.")


def cosine_rows(replay: Replay) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
  """Returns (header, rows) of the cosines between the gradients of every two estimators."""
  order = by_family(replay)
  names = [replay.estimators[i].name for i in order]
  rows = [(name, *(_cosine(replay.cosine[i, j], 3) for j in order))
          for name, i in zip(names, order, strict=True)]
  return ("cosine", *names), rows


def heatmap(replay: Replay) -> tuple[list[str], list[tuple]]:
  """Returns the cosines for the page: (names, rows), both in the order of the families.

  A row is (family, or "" if it is the same as above; rows of the family; name; cells), a cell
  (text, CSS background, whether a family begins).
  """
  order = by_family(replay)
  names = [replay.estimators[i].name for i in order]
  families = [family(name) for name in names]
  begins = [k == 0 or families[k] != families[k - 1] for k in range(len(order))]
  rows = []
  for k, i in enumerate(order):
    cells = [(_cosine(replay.cosine[i, j], 2).replace(NONE, "–"), shade(replay.cosine[i, j]), begin)
             for j, begin in zip(order, begins, strict=True)]
    rows.append((families[k] if begins[k] else "", families.count(families[k]), names[k], cells))
  return names, rows


def shade(cosine: float) -> str:
  """Returns the CSS background of a cosine: blue for 1, none for 0, red for -1, grey for NaN.

  The strength grows with the angle's closeness to 0, so that cosines of 0.9 and 0.99 differ.
  """
  if np.isnan(cosine):
    return f"rgba({html.GREY}, 0.15)"
  strength = 1 - np.arccos(min(1.0, abs(cosine))) / (np.pi / 2)
  return f"rgba({html.BLUE if cosine > 0 else html.RED}, {html.OPACITY * strength:.2f})"


def position_rows(replay: Replay) -> list[tuple[str, ...]]:
  """Returns the cells below POSITION_HEADER, a row per bucket of token positions."""
  columns = zip(replay.position, replay.count, replay.rows, replay.leaving, replay.mean, replay.std,
                strict=True)
  return [(f"{position:.1f}", *(str(int(n)) for n in counts), _signed(mean), _plain(std))
          for position, *counts, mean, std in columns]


def first_leaving(replay: Replay) -> int | None:
  """Returns the first bucket that is not the last and in which rows end, None without one."""
  buckets = np.flatnonzero(replay.leaving[:-1])
  return int(buckets[0]) if len(buckets) else None


def leaving_note(replay: Replay) -> str:
  """Returns the sentence on rows that end before the last bucket."""
  first = first_leaving(replay)
  if first is None:
    return "All rows reach the last bucket."
  return (f"From position {replay.position[first]:.1f} on rows end: of {replay.rows[0]} rows "
          f"{replay.rows[-1]} reach the last bucket. Later buckets are over the longer rows alone, "
          "so a change from there on may be one of the rows, not of the position.")


def text(replay: Replay, title: str) -> str:
  """Returns Markdown: the estimators, the pairwise cosines, the drift by position."""
  return (f"{title}\n\n{tables.markdown_table(HEADER, estimator_rows(replay))}\n"
          f"{denominators(replay)}\n\n"
          f"{tables.markdown_table(*cosine_rows(replay))}\n"
          f"{tables.markdown_table(POSITION_HEADER, position_rows(replay))}\n"
          f"{leaving_note(replay)}\n")


def page(replay: Replay, title: str, subtitle: str) -> str:
  """Returns a self-contained HTML page with the tables of `text` and the figure."""
  names, cosines = heatmap(replay)
  return html.render(
      "replay.html",
      title=title,
      subtitle=subtitle,
      estimator_header=HEADER,
      estimators=estimator_rows(replay),
      denominators=denominators(replay).replace("`", ""),
      curves=html.image_source(figure(replay)),
      position_header=POSITION_HEADER,
      positions=position_rows(replay),
      leaving=leaving_note(replay),
      cosine_names=names,
      cosines=cosines,
  )


def _percent(share: float) -> str:
  return tables.MISSING if np.isnan(share) else f"{100 * share:.2f}"


def _cosine(value: float, places: int) -> str:
  return NONE if np.isnan(value) else f"{value:.{places}f}"


def _signed(value: float) -> str:
  return tables.MISSING if np.isnan(value) else f"{value:+.4f}"


def _plain(value: float) -> str:
  return tables.MISSING if np.isnan(value) else f"{value:.4f}"


def figure(replay: Replay) -> bytes:
  """Returns a PNG: the drift, and the tokens without gradient, against the token's position."""
  canvas = Figure(figsize=(14, 4.4), layout="constrained")
  mean, std, dropped = canvas.subplots(1, 3)
  mean.plot(replay.position, replay.mean, color=COLOURS[0], marker="o", ms=3.5)
  mean.axhline(0, color="#888888", lw=0.8)
  _plot_std(std, replay)
  _plot_dropped(dropped, replay)
  first = first_leaving(replay)
  if first is not None:
    for axes in (mean, std, dropped):
      axes.axvline(replay.position[first], color="#888888", ls=":", lw=1)
    mean.annotate("rows end from here", (replay.position[first], 1), fontsize=7.5,
                  xycoords=("data", "axes fraction"), xytext=(3, -10), textcoords="offset points")
  titles = {
      "mean of the cumulative log-ratio, nats": mean,
      "its standard deviation, nats": std,
      "no gradient, % of tokens with an advantage": dropped,
  }
  for title, axes in titles.items():
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xscale("log")
    axes.set_xlabel("policy token")
    axes.grid(True, alpha=0.3)
  out = io.BytesIO()
  canvas.savefig(out, format="png", dpi=130)
  return out.getvalue()


def _plot_std(axes: Axes, replay: Replay) -> None:
  """Plots the standard deviation, and growth with sqrt(t) for comparison."""
  axes.plot(replay.position, replay.std, color=COLOURS[0], marker="o", ms=3.5, label="measured")
  if len(replay.std) and replay.std[-1] > 0:
    growth = replay.std[-1] * np.sqrt(replay.position / replay.position[-1])
    label = "sqrt(t) through the last point"
    axes.plot(replay.position, growth, color=COLOURS[1], ls="--", label=label)
    axes.set_yscale("log")
    axes.legend(frameon=False, fontsize=8)


def _plot_dropped(axes: Axes, replay: Replay) -> None:
  """Plots the estimators that drop any token."""
  dropping = [entry for entry in replay.estimators if np.nansum(entry.dropped_by_position) > 0]
  series = {entry.name: (replay.position, 100 * entry.dropped_by_position) for entry in dropping}
  for index, (label, pair, style) in enumerate(visible_lines(series)):
    axes.plot(*pair, label=label, **(line_style(index) | style))
  if dropping:  # beside the curves, which as many lines would cover
    axes.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.02),
                ncols=1 + len(dropping) // 20)
