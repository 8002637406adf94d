"""Sweeps: many runs of experiments/main.py, and a line of results for each.

  sweep.py --jobs=2                              runs what is missing, and renders the table
  sweep.py --seeds=7                             two seeds more for each group of several seeds
  sweep.py --add=ideas/estimator.py:mine         adds a method, of a plugin or a preset
  sweep.py --verify=base_grpo_seed0              begins a run again: has its behaviour changed?

A run is missing if no result has its flags, with the code of the config file and plugins that they
name (sweep_results.py). Results of other commits stay in the table, which names the commits. Runs
are made in a scratch folder, `--runs`; only the measurements of a finished one enter the table's
file. They share warm starts and compiled programs (store/cache.py), and an interrupted run is
resumed. After a change of the measurements, remove the lines in question and start the sweep again,
which measures the finished runs again.
"""

import argparse
import ast
import concurrent.futures
import dataclasses
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxrl_llm.fields import ConfigError
from jaxrl_llm.lab import sweep_results
from jaxrl_llm.lab.sweep_results import made_at
from jaxrl_llm.reporting.reader import RunError, RunFolder, read_run
from jaxrl_llm.runs.command_line import ENDED_EARLY
from jaxrl_llm.store.workdir import usable_cores

MAIN = "experiments/main.py"
SEED = "--config.seed="
PARSING = threading.Lock()  # ast.parse of Python 3.11 fails in two threads at once
# Errors of one run that let the others continue: it broke off, or left nothing to measure.
BROKEN = (RuntimeError, RunError, OSError, LookupError, ValueError)
__all__ = ["Cell", "Sweep", "load", "made_at", "main", "missing", "read_results"]


@dataclasses.dataclass(frozen=True)
class Cell:
  """One run: its name, which ends in _seed<n>, and the flags of experiments/main.py but for
  --workdir, the last of which is the seed.
  """

  name: str
  flags: tuple[str, ...]

  @property
  def files(self) -> list[Path]:
    """The files that the flags name, and those that these name: the config file and plugins."""
    named_files = files_in(" ".join(self.flags))
    nested_files = [file for path in named_files for file in files_in(_code(path))]
    return list(dict.fromkeys([*named_files, *nested_files]))

  @property
  def hash(self) -> str:
    """Hash of the flags and of the code of the files."""
    text = json.dumps(self.flags) + "".join(map(_code, self.files))
    return hashlib.sha256(text.encode()).hexdigest()[:16]

  def with_seed(self, seed: int) -> "Cell":
    """Returns the same run with another seed."""
    return Cell(f"{sweep_results.group(self.name)}_seed{seed}",
                (*(flag for flag in self.flags if not flag.startswith(SEED)), f"{SEED}{seed}"))


@dataclasses.dataclass(frozen=True)
class Sweep:
  """The runs of a table.

  Attributes:
    folder: experiments/<table>; results are in its file results.jsonl, a line a run.
    cells: with distinct names.
    measure: from a finished run to the JSON-able values that are kept of it.
    render: from the results by name, and a folder, to the files of the table in it. It leaves out
      what is missing.
    method: from (name, preset, flags, number of seeds) to the cells by which the table shows a
      further method; those of its screening first, and the others once that has its results. None:
      the table has no place for one.
  """

  folder: Path
  cells: list[Cell]
  measure: Callable[[RunFolder], dict[str, Any]]
  render: Callable[[dict[str, dict], Path], None]
  method: Callable[[str, str, tuple[str, ...], int], list[Cell]] | None = None


def load(path: Path) -> Sweep | None:
  """Returns the SWEEP of a file, None if it has none."""
  return getattr(module(path), "SWEEP", None)


def module(path: Path) -> types.ModuleType:
  """Returns a sweep.py, with its functions.

  Raises:
    OSError: it is not there.
  """
  spec = importlib.util.spec_from_file_location(f"sweep_{path.parent.name}", path)
  if spec is None or spec.loader is None:
    raise OSError(f"{path}: no Python file. Fix: the path of a sweep.py.")
  loaded = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(loaded)
  return loaded


def files_in(text: str) -> list[Path]:
  """Returns the Python files that a text names, in its order; names of no file are left out."""
  paths = dict.fromkeys(map(Path, re.findall(r"[\w./-]+\.py\b", text)))
  return [path for path in paths if path.is_file()]


def _code(path: Path) -> str:
  """Returns the code of a file without comments and docstrings."""
  with PARSING:
    return _parsed(path)


def _parsed(path: Path) -> str:
  tree = ast.parse(path.read_text())
  for node in ast.walk(tree):
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
      if ast.get_docstring(node, clean=False) is not None:
        node.body = node.body[1:] or [ast.Pass()]
  return ast.unparse(tree)


def read_results(sweep: Sweep) -> dict[str, dict]:
  """Returns the results that exist, by name: first those of the cells, in their order, and then
  further seeds and methods.
  """
  records = sweep_results.read(sweep.folder)
  declared = {cell.name: records[cell.name] for cell in sweep.cells if cell.name in records}
  return declared | records


def missing(sweep: Sweep, cells: list[Cell] | None = None) -> list[Cell]:
  """Returns those of the cells, by default the sweep's, that have no result of their flags."""
  records = sweep_results.read(sweep.folder)
  return [cell for cell in (sweep.cells if cells is None else cells)
          if records.get(cell.name, {}).get("config") != cell.hash]


def with_seeds(cells: list[Cell], count: int) -> list[Cell]:
  """Returns the cells of the groups that have several seeds, with the seeds 0 to count - 1."""
  groups: dict[str, list[Cell]] = {}
  for cell in cells:
    groups.setdefault(sweep_results.group(cell.name), []).append(cell)
  return [cells_of_group[0].with_seed(seed)
          for cells_of_group in groups.values() if len(cells_of_group) > 1 for seed in range(count)]


def added(sweep: Sweep, text: str, seeds: int) -> list[Cell]:
  """Returns the cells of a method beside the table's.

  Args:
    text: PLUGIN.py:NAME (or NAME:PLUGIN.py) for an estimator NAME of that file, the name of a
      preset, or NAME:PRESET.
    seeds: 0 to seeds - 1.

  Raises:
    ConfigError: the table compares no methods, or the file is not there.
  """
  name, _, source = text.partition(":")
  if name.endswith(".py"):
    name, source = source, name
  if sweep.method is None:
    raise ConfigError(f"--add={text}: {sweep.folder.name} has no place for a further method. "
                      "Fix: a cell of its sweep.py.")
  if source.endswith(".py") and not Path(source).is_file():
    raise ConfigError(f"--add={text}: there is no file {source}. Fix: a path from here.")
  flags = (f"--config.plugins={source}", f"--config.estimator.name={name}")
  preset, flags = ("grpo", flags) if source.endswith(".py") else (source or name, ())
  return sweep.method(name, preset, flags, seeds)


def run(sweep: Sweep, cell: Cell, runs: Path, cores: set[int] | None = None) -> dict:
  """Runs or resumes a cell, and records its result.

  Args:
    runs: scratch folder of the runs.
    cores: that the run may use; None: all.

  Raises:
    RuntimeError: the run broke off for no reason of its own; it has no result.
    RunError, LookupError: it ended before there was anything to measure.
  """
  config = cell.hash  # of what the run reads, which may change meanwhile
  finished, exit_line = _run_to_end(cell.flags, runs / f"{cell.name}-{config[:8]}", cores)
  count = usable_cores() if cores is None else len(cores)
  record = {
      "name": cell.name, "flags": list(cell.flags), "config": config,
      "commit": finished.environment.get("git_commit"), "seed": finished.config["seed"],
      "fingerprint": sweep_results.fingerprint(finished, count), "ended_early": exit_line,
      "measured": sweep.measure(finished),
  }
  sweep_results.write(sweep.folder, [record])
  return record


def _run_to_end(flags: tuple[str, ...], workdir: Path,
                cores: set[int] | None) -> tuple[RunFolder, str | None]:
  """Returns (a run that has ended, the last line of its log if it ended early)."""
  workdir.mkdir(parents=True, exist_ok=True)
  command = [sys.executable, MAIN, *flags, f"--workdir={workdir}"]
  with open(workdir / "log.txt", "a") as log:
    process = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False,
                             preexec_fn=None if cores is None else _pin_to(cores))
  exit_line = None
  if process.returncode:
    last = (workdir / "log.txt").read_text().rstrip().rsplit("\n", 1)[-1][:300]
    if process.returncode != ENDED_EARLY:
      raise RuntimeError(f"exit status {process.returncode}, {last}; see {workdir / 'log.txt'}")
    exit_line = last
  return read_run(workdir), exit_line


def verify(sweep: Sweep, name: str, runs: Path) -> str:
  """Returns what `sweep_results.compare` says of a result and of the same run begun again.

  Raises:
    ConfigError: there is no such result.
    RuntimeError: the run broke off.
  """
  records = sweep_results.read(sweep.folder)
  if name not in records:
    raise ConfigError(f"--verify={name}: no result of that name. Fix: one of "
                      f"{', '.join(list(records)[:5])}, ...; see --list.")
  flags = (*records[name]["flags"], f"--config.iterations={sweep_results.ITERATIONS}")
  with tempfile.TemporaryDirectory(dir=runs) as scratch:
    begun, _ = _run_to_end(flags, Path(scratch) / name, None)
  return sweep_results.compare(records[name].get("fingerprint"),
                               sweep_results.fingerprint(begun, usable_cores()))


def _pin_to(cores: set[int]) -> Callable[[], None]:
  return lambda: os.sched_setaffinity(0, cores)


def run_missing(sweep: Sweep, cells: list[Cell], runs: Path, jobs: int) -> list[str]:
  """Runs cells, `jobs` at a time, each on cores of its own; returns what broke off."""
  available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
  share = max(1, len(available) // jobs)
  slots = [set(available[i * share:(i + 1) * share]) or None for i in range(jobs)]
  broken = []

  def run_cell(cell: Cell) -> None:
    cores = slots.pop()
    try:
      record = run(sweep, cell, runs, cores if jobs > 1 else None)
      print(f"{cell.name}: {record['ended_early'] or 'done'}", flush=True)
    except BROKEN as error:
      broken.append(f"{cell.name}: {error}")
      print(broken[-1], flush=True)
    finally:
      slots.append(cores)

  with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
    list(pool.map(run_cell, cells))
  return broken


def main(sweep: Sweep, description: str) -> None:
  """Runs what is missing, and renders the table."""
  parser = _parser(sweep, description)
  flags = parser.parse_args()
  try:
    _check(sweep, flags, parser)
    cells = _select_cells(sweep, flags)
    if flags.verify:
      flags.runs.mkdir(parents=True, exist_ok=True)
      print(f"{flags.verify}: {verify(sweep, flags.verify, flags.runs)}")
      return
  except (ConfigError, RuntimeError) as error:
    sys.exit(f"error: {error}")
  if flags.list:
    missing_cells = missing(sweep, cells)
    for index, cell in enumerate(cells):
      print(index, "missing" if cell in missing_cells else "done", cell.name, *cell.flags)
    return
  if flags.index is not None:
    _run(sweep, [cells[flags.index]], flags)
    return  # the tasks of an array end together, and would write one page at once
  started: set[str] = set()
  while not flags.render and (missing_cells := [
      cell for cell in missing(sweep, cells)
      if re.search(flags.only, cell.name) and cell.name not in started]):
    _run(sweep, missing_cells, flags)
    started |= {cell.name for cell in missing_cells}
    cells = _select_cells(sweep, flags)  # more of an added method, after its screening
  records = read_results(sweep)
  absent = [cell.name for cell in cells if cell.name not in records]
  if absent:
    print(f"{len(absent)} of {len(cells)} runs are missing; the table is without them.")
  sweep.render(records, sweep.folder)


def _select_cells(sweep: Sweep, flags: argparse.Namespace) -> list[Cell]:
  """Returns the cells that the flags name.

  Raises:
    ConfigError: of --add.
  """
  if flags.add:
    return added(sweep, flags.add, flags.seeds or 5)
  return with_seeds(sweep.cells, flags.seeds) if flags.seeds else sweep.cells


def _run(sweep: Sweep, cells: list[Cell], flags: argparse.Namespace) -> None:
  """Runs the cells; ends the process with a line if one broke off."""
  broken = run_missing(sweep, cells, flags.runs, flags.jobs)
  if broken:
    sys.exit(f"error: {len(broken)} runs broke off: {'; '.join(broken)[:1000]}")


def _parser(sweep: Sweep, description: str) -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(description=description,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--list", action="store_true", help="list the runs and what is missing")
  parser.add_argument("--index", type=int,
                      help="run this one of --list alone, without the table (for job arrays)")
  parser.add_argument("--only", default="", help="run those in whose name this is found")
  parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
  parser.add_argument("--render", action="store_true", help="only write the table again")
  parser.add_argument("--seeds", type=int, default=0,
                      help="seeds 0 to this less 1, of every group of several seeds or of --add")
  parser.add_argument("--add", default="",
                      help="a method beside the table's: PLUGIN.py:NAME, a preset, or NAME:PRESET")
  parser.add_argument("--verify", default="",
                      help="begin the run of this name again and compare it with its result")
  parser.add_argument("--runs", type=Path, default=Path("runs") / sweep.folder.name,
                      help="scratch folder of the runs")
  return parser


def _check(sweep: Sweep, flags: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
  """Ends with a line if flags are out of range, or the folder is another than the root."""
  if not Path(MAIN).is_file():
    parser.error(f"there is no {MAIN} here. Fix: start from the repository's root.")
  if flags.jobs < 1:
    parser.error(f"--jobs={flags.jobs}: 1 or more")
  if flags.seeds < 0:
    parser.error(f"--seeds={flags.seeds}: 1 or more")
  if flags.index is not None and not 0 <= flags.index < len(sweep.cells):
    parser.error(f"--index={flags.index}: 0 to {len(sweep.cells) - 1}, see --list")
