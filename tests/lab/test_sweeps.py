"""Which runs of a sweep are missing, what a result is made of, and what may not be mixed."""

import json
import sys

import pytest

from jaxrl_llm.lab import sweeps
from jaxrl_llm.lab.sweeps import Cell, Sweep
from jaxrl_llm.runs.command_line import ENDED_EARLY

MAIN = """
import json, pathlib, sys
flags = dict(flag.lstrip("-").split("=", 1) for flag in sys.argv[1:])
folder = pathlib.Path(flags["workdir"])
seed = int(flags["config.seed"])
(folder / "config.json").write_text(json.dumps({"seed": seed, "iterations": 1}))
lines = [{"iteration": 0, "eval/accuracy": 0.5}, {"iteration": 1, "eval/accuracy": seed / 10}]
(folder / "metrics.jsonl").write_text("".join(json.dumps(line) + chr(10) for line in lines))
if seed == 5:
  pathlib.Path(flags["config"].split(":")[0]).write_text("x = 5")  # edited while the run goes on
if seed == 6:
  (folder / "metrics.jsonl").unlink()
if seed in (6, 7):
  print("error: the gradient is not finite")
  sys.exit(STATUS)
sys.exit("error: another process trains there" if seed == 9 else 0)
""".replace("STATUS", str(ENDED_EARLY))


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


@pytest.mark.slow
def test_what_is_missing_runs_once_and_the_table_follows(sweep, monkeypatch, capsys):
  command(sweep, monkeypatch, "--index=1")
  assert [cell.name for cell in sweeps.missing(sweep)] == ["a_seed1", "a_seed7"]
  assert not (sweep.folder / "table.json").exists(), "tasks of an array would write it at once"
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


@pytest.mark.slow
@pytest.mark.parametrize("seed, reason", [
    (9, "exit status 1, error: another process trains there"), (6, ".*metrics.jsonl")])
def test_a_run_that_breaks_off_leaves_no_result_and_no_other_without(sweep, monkeypatch, seed,
                                                                     reason):
  broken = Cell(f"a_seed{seed}", (*sweep.cells[0].flags[:1], f"--config.seed={seed}"))
  sweep.cells.insert(0, broken)
  with pytest.raises(SystemExit, match=f"1 runs broke off: a_seed{seed}: {reason}"):
    command(sweep, monkeypatch)
  assert sweeps.missing(sweep) == [broken]


def test_a_result_is_of_the_config_that_the_run_read(sweep, monkeypatch):
  cell = Cell("a_seed5", (*sweep.cells[0].flags[:1], "--config.seed=5"))
  sweep.cells[:] = [cell]
  before = cell.hash
  with pytest.raises(SystemExit, match="made with other flags or another config file"):
    command(sweep, monkeypatch)
  assert sweeps.read_results(sweep)["a_seed5"]["config"] == before != cell.hash
  assert sweeps.missing(sweep) == [cell]


@pytest.mark.parametrize("flag", ["--index=3", "--index=-1", "--jobs=0"])
def test_flags_out_of_range_are_one_line(sweep, monkeypatch, capsys, flag):
  with pytest.raises(SystemExit):
    command(sweep, monkeypatch, flag)
  assert f"error: {flag}: " in capsys.readouterr().err and not sweeps.read_results(sweep)


def test_elsewhere_than_in_the_root_is_one_line(sweep, monkeypatch, capsys):
  monkeypatch.setattr(sweeps, "MAIN", "nowhere/main.py")
  with pytest.raises(SystemExit):
    command(sweep, monkeypatch, "--list")
  assert "Fix: start from the repository's root" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("change", ["sources", "config"])
def test_results_of_other_sources_or_configs_are_never_mixed(sweep, monkeypatch, change):
  command(sweep, monkeypatch)
  path = sweep.result_path(sweep.cells[0])
  path.write_text(json.dumps(json.loads(path.read_text()) | {change: "other"}))
  assert [cell.name for cell in sweeps.missing(sweep)] == ["a_seed1"]
  with pytest.raises(sweeps.MixedSourcesError):
    sweeps.check_alike(sweep, sweeps.read_results(sweep))
  with pytest.raises(SystemExit, match=r"^error: .*Fix: run the sweep again"):
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
