"""Which runs of a sweep are missing, what a result is made of, and if it would differ today."""

import json
import sys

import pytest

from experiments.commands.command_line import ENDED_EARLY
from experiments.tables_lib import sweep_results, sweeps
from experiments.tables_lib.sweeps import Cell, Sweep

MAIN = """
import json, pathlib, sys
flags = dict(flag.lstrip("-").split("=", 1) for flag in sys.argv[1:])
folder = pathlib.Path(flags["workdir"])
seed = int(flags["config.seed"])
(folder / "config.json").write_text(json.dumps({"seed": seed, "iterations": 1}))
lines = [{"iteration": 0, "eval/accuracy": 0.5}, {"iteration": 1,
         "eval/accuracy": seed / 10, "policy/entropy": SCALE * seed}]
(folder / "metrics.jsonl").write_text("".join(json.dumps(line) + chr(10) for line in lines))
if seed == 5:
  pathlib.Path(flags["config"].split(":")[0]).write_text("x = 5")  # edited while the run goes on
if seed == 6:
  (folder / "metrics.jsonl").unlink()
if seed in (6, 7):
  print("error: the gradient is not finite")
  sys.exit(STATUS)
sys.exit("error: another process trains there" if seed == 9 else 0)
""".replace("STATUS", str(ENDED_EARLY)).replace("SCALE", "0.1")


@pytest.fixture
def sweep(tmp_path, monkeypatch):
  (tmp_path / "main.py").write_text(MAIN)
  (tmp_path / "config.py").write_text("x = 1\n")
  monkeypatch.setattr(sweeps, "MAIN", str(tmp_path / "main.py"))
  cells = [Cell(f"a_seed{seed}", (f"--config={tmp_path}/config.py:a", f"--config.seed={seed}"))
           for seed in (1, 2, 7)]
  toy_sweep = Sweep(tmp_path / "table", cells,
                    lambda run: {"accuracy": run.series("eval/accuracy")[1].tolist()},
                    lambda results, folder: (folder / "table.json").write_text(json.dumps(results)))
  return toy_sweep


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
  command(sweep, monkeypatch)
  assert sweeps.read_results(sweep)["a_seed5"]["config"] == before != cell.hash
  assert sweeps.missing(sweep) == [cell]


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


def record(name: str, seed: int, **changes) -> dict:
  return {"name": name, "seed": seed, "flags": [], "config": "", "commit": "a" * 40,
          "fingerprint": None, "measured": {}} | changes


def test_results_of_other_commits_stand_and_a_changed_flag_is_missing(sweep):
  """Only flags, config file and plugins say what a result is of."""
  first, second, _ = sweep.cells
  sweep_results.write(sweep.folder, [
      record(first.name, 1, config=first.hash, commit="old"),
      record(second.name, 2, config="of other flags")])
  assert [cell.name for cell in sweeps.missing(sweep)] == ["a_seed2", "a_seed7"]
  assert "made at commit old" in sweeps.made_at(
      {first.name: sweeps.read_results(sweep)[first.name]})


def test_a_line_replaces_one_of_its_name_only(tmp_path):
  sweep_results.write(tmp_path, [record("a_seed1", 1), record("a_seed0", 0)])
  sweep_results.write(tmp_path, [record("a_seed1", 1, commit="later")])
  results = sweep_results.read(tmp_path)
  assert list(results) == ["a_seed1", "a_seed0"] and results["a_seed1"]["commit"] == "later"
  assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 2
  assert list(sweep_results.by_seed(results)["a"]) == [0, 1]
  (tmp_path / "results.jsonl").write_text("{}\n")
  with pytest.raises(ValueError, match=r"line 1: .*Fix: remove the line"):
    sweep_results.read(tmp_path)


FINGERPRINT = {"jax": "1", "cores": 1, "processor": "x", "metrics": {"loss": [1.0, 0.5]}}


@pytest.mark.parametrize("today, answer", [
    ({}, "same"),
    ({"metrics": {"loss": [1.0, 0.5004]}}, "same"),
    ({"metrics": {"loss": [1.0, 0.502]}}, "changed: loss"),
    ({"metrics": {"loss": [1.0]}}, "changed: loss"),
    ({"jax": "2"}, "not comparable: jax was 1, is 2"),
    ({"processor": "y", "metrics": {"loss": [9.0]}}, "not comparable: processor"),
    ({"cores": 2}, "not comparable: cores"),
])
def test_behaviour_is_compared_on_the_same_machine_only(today, answer):
  assert sweep_results.compare(FINGERPRINT, FINGERPRINT | today).startswith(answer)
  assert sweep_results.compare(None, FINGERPRINT).startswith("not comparable: the result has no")


def test_a_run_begun_again_tells_whether_its_behaviour_changed(sweep, tmp_path, monkeypatch,
                                                               capsys):
  """Here the numerics are those of main.py."""
  sweep.cells[:] = sweep.cells[1:2]
  command(sweep, monkeypatch)
  command(sweep, monkeypatch, "--verify=a_seed2")
  (tmp_path / "main.py").write_text(MAIN.replace("0.1 * seed", "0.2 * seed"))
  command(sweep, monkeypatch, "--verify=a_seed2")
  output = capsys.readouterr().out
  assert "a_seed2: same" in output and "a_seed2: changed: policy/entropy was" in output
  with pytest.raises(SystemExit, match="no result of that name"):
    command(sweep, monkeypatch, "--verify=b")
