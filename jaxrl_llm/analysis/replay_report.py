"""A replay as Markdown text, as a figure and as an HTML page."""

import io

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxrl_llm.analysis.replay import Replay
from jaxrl_llm.reporting import html, tables
from jaxrl_llm.reporting.plots import COLOURS, line_style

HEADER = ("estimator", "anchor", "above %", "below %", "no gradient %", "effective sample %",
          "gradient norm", "cosine to reinforce")
POSITION_HEADER = ("position", "tokens", "mean of the cumulative log-ratio", "its std")


def estimator_rows(replay: Replay) -> list[tuple[str, ...]]:
  """Returns the cells below HEADER, a row per estimator."""
  names = [entry.name for entry in replay.estimators]
  to_reinforce = np.full(len(names), np.nan)
  if "reinforce" in names:
    to_reinforce = replay.cosine[:, names.index("reinforce")]
  out = []
  for entry, cosine in zip(replay.estimators, to_reinforce, strict=True):
    shares = (entry.clip["high"], entry.clip["low"], entry.clip["dropped"], entry.effective_share)
    out.append((entry.name, entry.anchor, *(f"{100 * share:.2f}" for share in shares),
                f"{entry.norm:.4g}", f"{cosine:.4f}"))
  return out


def cosine_rows(replay: Replay) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
  """Returns (header, rows) of the cosines between the gradients of every two estimators."""
  names = [entry.name for entry in replay.estimators]
  rows = [(name, *(f"{x:.3f}" for x in line))
          for name, line in zip(names, replay.cosine, strict=True)]
  return ("cosine", *names), rows


def position_rows(replay: Replay) -> list[tuple[str, ...]]:
  """Returns the cells below POSITION_HEADER, a row per bucket of token positions."""
  columns = zip(replay.position, replay.count, replay.mean, replay.std, strict=True)
  return [(f"{position:.1f}", str(int(count)), f"{mean:+.4f}", f"{std:.4f}")
          for position, count, mean, std in columns]


def text(replay: Replay, title: str) -> str:
  """Returns Markdown: the estimators, the pairwise cosines, the drift by position."""
  return (f"{title}\n\n{tables.markdown_table(HEADER, estimator_rows(replay))}\n"
          f"{tables.markdown_table(*cosine_rows(replay))}\n"
          f"{tables.markdown_table(POSITION_HEADER, position_rows(replay))}")


def page(replay: Replay, title: str, subtitle: str) -> str:
  """Returns a self-contained HTML page with the tables of `text` and the figure."""
  header, cosines = cosine_rows(replay)
  return html.render(
      "replay.html",
      title=title,
      subtitle=subtitle,
      estimator_header=HEADER,
      estimators=estimator_rows(replay),
      curves=html.image_source(figure(replay)),
      position_header=POSITION_HEADER,
      positions=position_rows(replay),
      cosine_header=header,
      cosines=cosines,
  )


def figure(replay: Replay) -> bytes:
  """Returns a PNG: the drift, and the tokens without gradient, against the token's position."""
  canvas = Figure(figsize=(14, 4.4), layout="constrained")
  mean, std, dropped = canvas.subplots(1, 3)
  mean.plot(replay.position, replay.mean, color=COLOURS[0], marker="o", ms=3.5)
  mean.axhline(0, color="#888888", lw=0.8)
  _plot_std(std, replay)
  _plot_dropped(dropped, replay)
  titles = {
      "mean of the cumulative log-ratio, nats": mean,
      "its standard deviation, nats": std,
      "tokens without gradient, %": dropped,
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
  shown = [entry for entry in replay.estimators if np.nansum(entry.dropped_by_position) > 0]
  for index, entry in enumerate(shown):
    share = 100 * entry.dropped_by_position
    axes.plot(replay.position, share, label=entry.name, **line_style(index))
  if shown:
    axes.legend(frameon=False, fontsize=8)
