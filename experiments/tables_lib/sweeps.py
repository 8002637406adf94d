"""Sweeps: many runs of experiments/main.py, and a line of results for each.

  sweep.py --jobs=2                              runs what is missing, and renders the table
  sweep.py --seeds=7                             two seeds more for each group of several seeds
  sweep.py --add=ideas/estimator.py:mine         adds a method, of a plugin or a preset
  sweep.py --verify=base_grpo_seed0              begins a run again: has its behaviour changed?

A run is missing if no result has its flags, with the code of the config file and plugins that they
name (sweep_cells.py). Results of other commits stay in the table, which names the commits. Runs
are made in a scratch folder, `--runs`; only the measurements of a finished one enter the table's
file. They share compiled programs (commands/cache.py), and an interrupted run is
resumed. After a change of the measurements, remove the lines in question and start the sweep again,
which measures the finished runs again.
"""

import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from experiments.commands.command_line import ENDED_EARLY
from experiments.report.run_folder import RunFolder, read_run
from experiments.tables_lib import sweep_results
from experiments.tables_lib.sweep_cells import (
  Cell,
  Sweep,
  added,
  load,
  missing,
  module,
  read_results,
  with_seeds,
)
from experiments.tables_lib.sweep_results import made_at
from jaxrl_llm.fields import ConfigError
from jaxrl_llm.reporting.reader import RunError

MAIN = "experiments/main.py"
# Errors of one run that let the others continue: it broke off, or left nothing to measure.
BROKEN = (RuntimeError, RunError, OSError, LookupError, ValueError)
__all__ = ["Cell", "Sweep", "added", "load", "made_at", "main", "missing", "module", "read_results",
           "with_seeds"]


def usable_cores() -> int | None:
  """Returns how many cores this process may use. Numbers on CPU depend on it, by rounding."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def run(sweep: Sweep, cell: Cell, runs: Path, cores: set[int] | None = None) -> dict:
  """Runs or resumes a cell, and records its result.

  Args:
    runs: scratch folder of the runs.
    cores: CPU cores that the run may use; None: all.

  Raises:
    RuntimeError: the run failed, other than by ending early; it has no result.
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
  """Returns what `sweep_results.compare` says of a result and of the same run started again.

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
  """Runs cells, `jobs` at a time, each on separate cores; returns what broke off."""
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
    if flags.index is not None and not 0 <= flags.index < len(cells):
      parser.error(f"--index={flags.index}: 0 to {len(cells) - 1}, see --list")
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
    return  # the tasks of an array end together, and would write one page concurrently
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
