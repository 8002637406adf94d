"""A replay as text, figure and page."""

import io

import numpy as np
from matplotlib.figure import Figure

from jaxrl_llm.analysis.replay import Replay
from jaxrl_llm.reporting import html, tables
from jaxrl_llm.reporting.plots import COLOURS, DASHES

HEADER = ("estimator", "anchor", "above %", "below %", "no gradient %", "effective sample %",
          "gradient norm", "cosine to reinforce")


def rows(replay: Replay) -> list[tuple[str, ...]]:
  names = [entry.name for entry in replay.estimators]
  plain = replay.cosine[:, names.index("reinforce")] if "reinforce" in names else np.full(
      len(names), np.nan)
  percent = lambda x: f"{100 * x:.2f}"
  return [(e.name, e.anchor, percent(e.clip["high"]), percent(e.clip["low"]),
           percent(e.clip["dropped"]), percent(e.effective_share), f"{e.norm:.4g}", f"{cosine:.4f}")
          for e, cosine in zip(replay.estimators, plain, strict=True)]


def cosine_rows(replay: Replay) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
  """(header, rows) of the pairwise table."""
  names = [e.name for e in replay.estimators]
  return ("cosine", *names), [(name, *(f"{x:.3f}" for x in line))
                              for name, line in zip(names, replay.cosine, strict=True)]


def position_rows(replay: Replay) -> list[tuple[str, ...]]:
  return [(f"{p:.1f}", str(int(n)), f"{m:+.4f}", f"{s:.4f}")
          for p, n, m, s in zip(replay.position, replay.count, replay.mean, replay.std, strict=True)
         ]


POSITION_HEADER = ("position", "tokens", "mean of the cumulative log-ratio", "its std")


def text(replay: Replay, title: str) -> str:
  """Markdown: the table of estimators, the pairwise cosines, the drift by position."""
  return (f"{title}\n\n{tables.markdown_table(HEADER, rows(replay))}\n"
          f"{tables.markdown_table(*cosine_rows(replay))}\n"
          f"{tables.markdown_table(POSITION_HEADER, position_rows(replay))}")


def figure(replay: Replay) -> bytes:
  """PNG: mean and std of the cumulative log-ratio, and tokens without gradient, over the token's
  position.
  """
  canvas = Figure(figsize=(14, 4.4), layout="constrained")
  mean, std, clip = canvas.subplots(1, 3)
  mean.plot(replay.position, replay.mean, color=COLOURS[0], marker="o", ms=3.5)
  mean.axhline(0, color="#888888", lw=0.8)
  std.plot(replay.position, replay.std, color=COLOURS[0], marker="o", ms=3.5, label="measured")
  if len(replay.std) and replay.std[-1] > 0:
    growth = replay.std[-1] * np.sqrt(replay.position / replay.position[-1])
    std.plot(replay.position, growth, color=COLOURS[1], ls="--",
             label="sqrt(t) through the last point")
    std.set_yscale("log")
    std.legend(frameon=False, fontsize=8)
  shown = [e for e in replay.estimators if np.nansum(e.dropped_by_position) > 0]
  for index, entry in enumerate(shown):
    clip.plot(replay.position, 100 * entry.dropped_by_position, color=COLOURS[index % len(COLOURS)],
              ls=DASHES[index // len(COLOURS) % len(DASHES)], label=entry.name)
  if shown:
    clip.legend(frameon=False, fontsize=8)
  titles = ("mean of the cumulative log-ratio, nats", "its standard deviation, nats",
            "tokens without gradient, %")
  for axes, title in zip((mean, std, clip), titles, strict=True):
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xscale("log")
    axes.set_xlabel("policy token")
    axes.grid(True, alpha=0.3)
  out = io.BytesIO()
  canvas.savefig(out, format="png", dpi=130)
  return out.getvalue()


def page(replay: Replay, title: str, subtitle: str) -> str:
  """A self-contained HTML page."""
  body = (
      f"<h2>Estimators</h2>{html.table(HEADER, rows(replay))}"
      "<h2>By token "
      f"position</h2>{html.image(figure(replay), 'curves over the position of the token')}"
      f"{html.table(POSITION_HEADER, position_rows(replay))}"
      f"<h2>Cosine between gradients</h2>{html.table(*cosine_rows(replay))}")
  return html.page(title, subtitle, body)
