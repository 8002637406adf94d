"""A claim beside its committed number, and the commands that make a short version of a table."""

import dataclasses

import pytest

from experiments.tables_lib import checkout, published
from experiments.tables_lib.page_parts import Place
from experiments.tables_lib.published import Claim, Table
from jaxrl_llm.config import ConfigError

PAGE = """# A table
What it says.
<!-- written by sweep.py: begin -->

### First
| name | return  |
|------|---------|
| a    | 1       |
| a    | 2       |
| b    | 3 ± 0.5 |

### Second
| name | return |
|------|--------|
| c    | 7      |

<!-- written by sweep.py: end -->
More.
<!-- written by run.py: begin -->
| name | share |
|------|-------|
| c    | 4 of 5 |
<!-- written by run.py: end -->
"""


@pytest.fixture
def root(monkeypatch, tmp_path):
  monkeypatch.setattr(published, "ROOT", tmp_path)
  monkeypatch.setattr(checkout, "RUNS", tmp_path / "runs")
  (tmp_path / "x" / "results").mkdir(parents=True)
  (tmp_path / "x" / "README.md").write_text(PAGE)
  (tmp_path / "x" / "results.json").write_text('{"2": {"lines": [{"gap": 0.25}]}}')
  (tmp_path / "x" / "results" / "curve.png").write_bytes(b"")
  return tmp_path


def test_the_number_stands_beside_the_claim(root):
  claims = (Claim("text", "arXiv 1", 2.0, Place("sweep.py", ("b",), "return")),
            Claim("json", "arXiv 1", 1.0, ("2", "lines", 0, "gap")),
            Claim("words", "arXiv 2"))
  lines = Table("x", claims, ()).comparison().splitlines()[2:]
  rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
  assert [row[2:] for row in rows] == [["2", "3", "+1"], ["1", "0.25", "-0.75"], ["-", "-", "-"]]


@pytest.mark.parametrize("place", [
    Place("sweep.py", ("a",), "return"),  # stands there twice
    Place("sweep.py", ("z",), "return"),
    Place("sweep.py", ("b",), "share"),  # a column of another part
    Place("sweep.py", ("c",), "return", title="First"),  # a row of another table
    Place("sweep.py", ("b",), "return", 2),
    ("2", "lines", 1, "gap"),
    ("2", "lines"),
])
def test_a_counterpart_that_is_not_one_number_is_refused(root, place):
  with pytest.raises(ConfigError, match="does not lead to one number"):
    Claim("", "", 1.0, place).here(root / "x")


@pytest.mark.parametrize("place, number", [
    (Place("sweep.py", ("b",), "return", 1), 0.5),
    (Place("sweep.py", ("c",), "return"), 7),
    (Place("sweep.py", ("c",), "return", title="Second"), 7),
    (Place("run.py", ("c",), "share"), 4),
])
def test_a_place_leads_to_its_number(root, place, number):
  assert Claim("", "", 1.0, place).here(root / "x") == number


def test_the_short_version_runs_the_commands(root, monkeypatch, capsys):
  table = Table("x", (), ("-c 'print(1)' {fast} --out={out}", "-c 'exit(\"because\")'"), "--few=1")
  assert table.commands(root / "o")[0][1:] == ["-c", "print(1)", f"--out={root / 'o'}"]
  monkeypatch.setenv(checkout.VARIABLE, "1")
  assert "--few=1" in table.commands(root / "o")[0]
  with pytest.raises(SystemExit, match="because"):
    published.live(table)
  assert "\n1\n" in capsys.readouterr().out


def test_without_a_package_the_cell_says_what_to_install(root, capsys):
  """With it the command is started; here there is no such file."""
  table = Table("x", (), ("no_such_file.py",), needs=("json", "no_such_module"), install="pip it")
  published.live(table)
  assert capsys.readouterr().out == "no_such_module not installed. Fix: pip it\n"
  with pytest.raises(SystemExit, match="no_such_file"):
    published.live(dataclasses.replace(table, needs=("json",)))


def test_some_parts_of_a_page_are_shown_with_their_figures(root):
  (root / "x" / "run.png").write_bytes(b"")
  table = Table("x", (), ())
  assert "4 of 5" in table.committed() and "First" in table.committed()
  assert [path.name for path in table.figures()] == ["curve.png", "run.png"]
  some = dataclasses.replace(table, parts=("run.py",))
  assert "4 of 5" in some.committed() and "First" not in some.committed()
  assert [path.name for path in some.figures()] == ["run.png"]
