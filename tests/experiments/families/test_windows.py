"""What a decode step reads, compiled for a TPU: a window bounds it, and the page says so."""

import importlib.util
import os
from pathlib import Path

import forked
import programs
import pytest

from experiments.families import windows
from experiments.tables_lib import page_parts

ROOT = Path(__file__).parents[3]


def ratios(text: str) -> dict[tuple[str, str], list[float]]:
  """By target and reading: bytes of a step without a window over those with one, by both measures,
  and what is read over what is needed with it.
  """
  (table,) = page_parts.tables(text)
  rows = {tuple(row[:3]): row for row in table.rows}
  factors = {}
  for target, kind, window in rows:
    if window != "none":
      row, full = rows[target, kind, window], rows[target, kind, "none"]
      factors[target, kind] = [float(full[i].replace(",", "")) / float(row[i]) for i in (4, 5)]
      factors[target, kind].append(float(row[6]))
  return factors


def assert_bounded(text: str, targets: list[str]) -> None:
  factors = ratios(text)
  assert list(factors) == [(target, kind) for target in targets for kind in windows.KINDS]
  for (_, kind), (in_loop, total, over) in factors.items():
    assert in_loop > 6 and total > 5
    assert over < (2.3 if kind == "kernel" else 2.6)


def test_the_page_says_that_a_window_bounds_what_is_read():
  _, part, _ = page_parts.split(windows.PAGE.read_text(), windows.PART, windows.PAGE)
  assert_bounded(part, ["v5e:1", "v6e:1"])


@pytest.mark.nightly
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None,
                    reason="needs libtpu: pip install -e '.[plan-tpu]'")
def test_as_it_compiles():
  environment = os.environ | programs.ENVIRONMENT | {"XLA_FLAGS": ""}
  done = forked.run([str(ROOT / "experiments/families/windows.py"), "--targets=v5e:1", "--page="],
                    ROOT, environment, 900, True)
  assert done.returncode == 0, done.stderr[-2000:]
  assert_bounded(done.stdout, ["v5e:1"])
