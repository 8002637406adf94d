"""Which runs of a sweep are missing, what a result is made of, and what may not be mixed."""

import json
import sys

import pytest

from jaxrl_llm.analysis import sweeps
from jaxrl_llm.analysis.sweeps import Cell, Sweep

MAIN = """
import json, pathlib, sys
flags = dict(flag.lstrip("-").split("=", 1) for flag in sys.argv[1:])
folder = pathlib.Path(flags["workdir"])
seed = int(flags["config.seed"])
(folder / "config.json").write_text(json.dumps({"seed": seed, "iterations": 1}))
lines = [{"iteration": 0, "eval/accuracy": 0.5}, {"iteration": 1, "eval/accuracy": seed / 10}]
(folder / "metrics.jsonl").write_text("".join(json.dumps(line) + chr(10) for line in lines))
if seed == 7:
  sys.exit("error: the gradient is not finite")
sys.exit(3 if seed == 9 else 0)
"""


@pytest.fixture
def sweep(tmp_path, monkeypatch):
  (tmp_path / "main.py").write_text(MAIN)
  (tmp_path / "config.py").write_text("x = 1\n")
  monkeypatch.setattr(sweeps, "MAIN", str(tmp_path / "main.py"))
  cells = [Cell(f"a_seed{seed}", (f"--config={tmp_path}/config.py:a", f"--config.seed={seed}"))
           for seed in (1, 2, 7)]
  made = Sweep(tmp_path / "table", cells,
               lambda run: {"accuracy": run.series("eval/accuracy")[1].tolist()},
               lambda results, folder: (folder / "table.json").write_text(json.dumps(results)))
  (tmp_path / "table").mkdir()
  return made


def command(sweep, monkeypatch, *flags):
  runs = str(sweep.folder.parent / "runs")
  monkeypatch.setattr(sys, "argv", ["sweep.py", f"--runs={runs}", *flags])
  sweeps.main(sweep, "A sweep.")


def test_what_is_missing_runs_once_and_the_table_follows(sweep, monkeypatch, capsys):
  command(sweep, monkeypatch, "--index=1")
  assert [cell.name for cell in sweeps.missing(sweep)] == ["a_seed1", "a_seed7"]
  assert json.loads((sweep.folder / "table.json").read_text()).keys() == {"a_seed2"}
  command(sweep, monkeypatch, "--jobs=2")
  results = sweeps.read_results(sweep)
  assert results["a_seed2"]["measured"] == {"accuracy": [0.5, 0.2]}
  assert results["a_seed2"]["ended_early"] is None
  assert results["a_seed7"]["ended_early"] == "error: the gradient is not finite"
  assert json.loads((sweep.folder / "table.json").read_text()) == results
  assert sweeps.missing(sweep) == []
  capsys.readouterr()
  command(sweep, monkeypatch, "--list")
  assert capsys.readouterr().out.count("done") == 3


def test_a_run_that_breaks_off_leaves_no_result(sweep, monkeypatch):
  broken = Cell("a_seed9", (*sweep.cells[0].flags[:1], "--config.seed=9"))
  sweep.cells.append(broken)
  with pytest.raises(SystemExit, match="1 runs broke off: a_seed9: exit status 3"):
    command(sweep, monkeypatch)
  assert [cell.name for cell in sweeps.missing(sweep)] == ["a_seed9"]


@pytest.mark.parametrize("change", ["sources", "config"])
def test_results_of_other_sources_or_configs_are_never_mixed(sweep, monkeypatch, change):
  command(sweep, monkeypatch)
  path = sweep.result_path(sweep.cells[0])
  path.write_text(json.dumps(json.loads(path.read_text()) | {change: "other"}))
  assert [cell.name for cell in sweeps.missing(sweep)] == ["a_seed1"]
  with pytest.raises(sweeps.MixedSourcesError):
    command(sweep, monkeypatch, "--render")


def test_the_hash_reads_code_and_config_but_no_comments(sweep, tmp_path):
  cell, before = sweep.cells[0], sweep.cells[0].hash
  (tmp_path / "config.py").write_text('"""A docstring."""\nx = 1  # why\n')
  assert cell.hash == before
  (tmp_path / "config.py").write_text("x = 2\n")
  assert cell.hash != before and Cell(cell.name, (*cell.flags, "--config.a=1")).hash != cell.hash


@pytest.mark.parametrize("named_by", ["flag", "config"])
def test_the_hash_reads_plugins(tmp_path, named_by):
  plugin, config = tmp_path / "plugin.py", tmp_path / "config.py"
  plugin.write_text("x = 1\n")
  config.write_text(f"plugins = ('{plugin}', 'not/there.py')\n" if named_by == "config" else "")
  flags = (f"--config.plugins=other.py,{plugin}",) if named_by == "flag" else ()
  cell = Cell("a", (f"--config={config}:a", *flags))
  before = cell.hash
  plugin.write_text("x = 1  # why\n")
  assert cell.hash == before
  plugin.write_text("x = 2\n")
  assert cell.hash != before


def test_sources_are_the_rooms_that_a_run_reads(tmp_path, monkeypatch):
  package = tmp_path / "package"
  for room in ("runs", "reporting"):
    (package / room).mkdir(parents=True)
    (package / room / "a.py").write_text("x = 1\n")
  monkeypatch.setattr(sweeps, "PACKAGE", package)
  before = sweeps.sources()
  (package / "reporting" / "a.py").write_text("x = 2\n")
  (package / "runs" / "a.py").write_text("# more\nx = 1\n")
  assert sweeps.sources() == before
  (package / "runs" / "a.py").write_text("x = 2\n")
  assert sweeps.sources() != before


def test_the_cores_of_a_run_are_those_that_it_may_use(monkeypatch):
  """Also where the sweep itself was pinned, which `os.cpu_count` does not see."""
  monkeypatch.setattr(sweeps.os, "sched_getaffinity", lambda _: {3}, raising=False)
  monkeypatch.setattr(sweeps.os, "cpu_count", lambda: 8)
  assert sweeps._usable() == 1
  monkeypatch.delattr(sweeps.os, "sched_getaffinity")
  assert sweeps._usable() == 8
