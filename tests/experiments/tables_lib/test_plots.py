"""Figures of several runs."""

import numpy as np

from experiments.report.plots import COLOURS
from experiments.tables_lib import plots


def test_the_x_axis_of_groups_has_its_own_name(tmp_path, monkeypatch):
  """The lines have names too: those stand in the legend."""
  drawn = []
  monkeypatch.setattr(plots, "finish_panel", lambda axes, title, legend, label: drawn.append(label))
  series = (np.arange(3), np.zeros((2, 3)))
  plots.plot_groups({"GRPO": series, "CTPO": series}, tmp_path / "groups.png", "accuracy")
  plots.plot_groups({"GRPO": series}, tmp_path / "groups.png", "accuracy", "tokens sampled")
  assert drawn == ["iteration", "tokens sampled"]


def test_a_panel_shows_every_seed_and_a_label_has_one_colour(monkeypatch):
  saved = []
  monkeypatch.setattr(plots.Figure, "savefig", lambda figure, *_, **__: saved.append(figure))
  x, values = np.arange(3), np.arange(15.0).reshape(5, 3)
  panels = {name: {"base": (x, values)} for name in "abcd"}
  panels["e"] = {"large step": (x, -values), "base": (x, values)}
  plots.plot_panels(panels, "unused.png", "held-out accuracy")
  shown = [axes for axes in saved[0].axes if axes.get_visible()]
  assert [axes.get_title("left") for axes in shown] == list("abcde")
  drawn = [[(line.get_color(), *line.get_ydata()) for line in axes.lines] for axes in shown]
  base = [(COLOURS[0], *seed) for seed in [*values, values.mean(0)]]
  assert drawn[0] == base and drawn[4][6:] == base and drawn[4][0][0] == COLOURS[1]
  assert [text.get_text() for text in saved[0].legends[0].texts] == ["base", "large step"]
  assert [bool(axes.get_xlabel()) for axes in shown] == [False, True, True, True, True]
