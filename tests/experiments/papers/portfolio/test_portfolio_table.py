"""table.py: its page says what its results say; a user's files, and what is wrong with them."""

import json
import shutil
import sys
from pathlib import Path

import experiment_files
import numpy as np
import pytest

from experiments.papers.portfolio import simulation, verdicts

FOLDER = Path(__file__).parents[4] / "experiments" / "papers" / "portfolio"
command = experiment_files.load(FOLDER / "table.py")


@pytest.fixture
def market(tmp_path):
  """Files of a market of 250 days, with headlines on the last 45."""
  drawn = simulation.simulate(0, 55, 0.5, 0.25, 0.03, 0.03)
  lines = ["date,BTC,ETH,ADA,BNB,XRP"] + [
      f"{day}," + ",".join(f"{price:.6f}" for price in row)
      for day, row in zip(drawn.closes.days, drawn.closes.prices, strict=True)]
  (tmp_path / "closes.csv").write_text("\n".join(lines) + "\n")
  titles = ["time,title"] + [
      f"{day}T10:00,\"{name} {'a great win' if i % 2 else 'a terrible loss'}\""
      for i, day in enumerate(drawn.closes.days[-45:]) for name in ("Bitcoin", "XRP")]
  (tmp_path / "headlines.csv").write_text("\n".join(titles) + "\n")
  return tmp_path


def test_the_page_is_rendered_from_the_committed_results(tmp_path):
  shutil.copytree(FOLDER / "results", tmp_path / "results")
  page = Path(shutil.copy(FOLDER / "README.md", tmp_path))
  command.write_page(tmp_path)
  assert page.read_text() == (FOLDER / "README.md").read_text()
  results = json.loads((tmp_path / "results" / "closes.json").read_text())
  results["rows"]["Bitcoin"]["cumulative"] += 1
  (tmp_path / "results" / "closes.json").write_text(json.dumps(results))
  command.write_page(tmp_path)
  assert page.read_text() != (FOLDER / "README.md").read_text()


def test_a_user_s_headlines(market, monkeypatch, capsys):
  for name in ("clarabel", "vaderSentiment"):
    pytest.importorskip(name, reason=f"{name} is not installed")
  monkeypatch.setattr(sys, "argv", [
      "table.py", f"--prices={market / 'closes.csv'}", f"--headlines={market / 'headlines.csv'}",
      f"--days={market / 'days.jsonl'}"])
  command.main()
  out = capsys.readouterr().out
  assert all(f"| {name} " in out for name in ("VADER", "technical and VADER", "oracle"))
  days = verdicts.read_days(str(market / "days.jsonl"))
  assert len(days[0].prompt) == 15 and days[0].prompt[-5:] == "baaab"
  assert all(day.rewards[0] == 0 and np.array_equal(day.rewards, day.expected) for day in days)
  # Bitcoin and XRP have headlines, so that verdicts on the others change nothing.
  same = [verdicts.column_of(text, 5) for text in ("KKKKK", "KZFZK")]
  assert all(day.rewards[same[0]] == day.rewards[same[1]] for day in days)
