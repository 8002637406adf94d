"""Sweeps: many runs of experiments/main.py, and a small file of results for each.

A result is kept with the commit, with a hash of the package's sources and with a hash of the run's
flags, config file and plugins. A run is missing if there is no result of today's hashes, so results
of different sources or configs never stand in one table. Runs share warm starts and compiled
programs (store/cache.py), and a run that was interrupted goes on. A run made again gives the same
numbers to the bit on as many cores of the same kind of processor; both are in its result. No hash
holds what a sweep measures of a finished run: after a change there, remove its results and start it
again, which measures the finished runs anew.
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
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxrl_llm.reporting.reader import RunError, RunFolder, read_run
from jaxrl_llm.reporting.writers import write_atomically
from jaxrl_llm.runs.command_line import ENDED_EARLY

PACKAGE = Path(__file__).parent.parent
UNREAD = ("reporting", "lab", "benchmark", "planning")  # rooms that change no number of a run
MAIN = "experiments/main.py"
CHANGED = "+changes"  # how store/workdir.py marks a commit with changed Python files beside it
PARSING = threading.Lock()  # ast.parse of Python 3.11 fails in two threads at once
# What one run may raise while the others go on: it broke off, or left nothing to measure.
BROKEN = (RuntimeError, RunError, OSError, LookupError, ValueError)


@dataclasses.dataclass(frozen=True)
class Cell:
  """One run: its name, and the flags of experiments/main.py but for --workdir."""

  name: str
  flags: tuple[str, ...]

  @property
  def files(self) -> list[Path]:
    """The files that the flags name, and those that these name: the config file and plugins."""
    named = files_in(" ".join(self.flags))
    behind = [file for path in named for file in files_in(_code(path))]
    return list(dict.fromkeys([*named, *behind]))

  @property
  def hash(self) -> str:
    """Hash of the flags and of the code of the files."""
    text = json.dumps(self.flags) + "".join(map(_code, self.files))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Sweep:
  """The runs behind a table.

  Attributes:
    folder: experiments/<table>; results are in its folder `results`, a file per run.
    cells: with distinct names.
    measure: from a finished run to the JSON-able values that are kept of it.
    render: from the results by name, and a folder, to the files of the table in it. It leaves out
      what is missing.
  """

  folder: Path
  cells: list[Cell]
  measure: Callable[[RunFolder], dict[str, Any]]
  render: Callable[[dict[str, dict], Path], None]

  def result_path(self, cell: Cell) -> Path:
    return self.folder / "results" / f"{cell.name}.json"


class MixedSourcesError(ValueError):
  """Results of different sources or configs would stand in one table."""


def load(path: Path) -> Sweep | None:
  """Returns the SWEEP of a file, None if it has none."""
  spec = importlib.util.spec_from_file_location(f"sweep_{path.parent.name}", path)
  if spec is None or spec.loader is None:
    return None
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return getattr(module, "SWEEP", None)


def files_in(text: str) -> list[Path]:
  """Returns the Python files that a text names, in its order; names of no file are left out."""
  paths = dict.fromkeys(map(Path, re.findall(r"[\w./-]+\.py\b", text)))
  return [path for path in paths if path.is_file()]


def sources() -> str:
  """Returns a hash of the code of the package, without comments, docstrings, and UNREAD rooms."""
  found = hashlib.sha256()
  for path in sorted(PACKAGE.rglob("*.py")):
    name = path.relative_to(PACKAGE)
    if name.parts[0] not in UNREAD:
      found.update(f"{name}\n{_code(path)}\n".encode())
  return found.hexdigest()[:16]


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


def made_at(results: dict[str, dict]) -> str:
  """Returns a sentence that names the commits of results, and the hash of the code that made them.

  The hash tells whether a commit's package was the runs'. Runs beside uncommitted changes are
  counted: these may be in files of experiments/ that the hash leaves out.
  """
  if not results:
    return ""
  commits = sorted({str(result["commit"])[:10] for result in results.values()})
  code = sorted({result["sources"] for result in results.values()})
  changed = sum(str(result["commit"]).endswith(CHANGED) for result in results.values())
  beside = f", {changed} of them beside uncommitted changes" if changed else ""
  return (f"\n{len(results)} runs, made at commit {', '.join(commits)}{beside}, by code of the "
          f"hash {', '.join(code)}.")


def read_results(sweep: Sweep) -> dict[str, dict]:
  """Returns the results that exist, by name, in the order of the cells."""
  paths = {cell.name: sweep.result_path(cell) for cell in sweep.cells}
  return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def missing(sweep: Sweep) -> list[Cell]:
  """Returns the cells without a result of today's sources and of their flags."""
  found, now = read_results(sweep), sources()
  return [cell for cell in sweep.cells if cell.name not in found
          or (found[cell.name]["sources"], found[cell.name]["config"]) != (now, cell.hash)]


def check_alike(sweep: Sweep, results: dict[str, dict]) -> None:
  """Refuses results that do not belong together.

  Raises:
    MixedSourcesError: they are of several sources, or of other flags than the cells'.
  """
  made_of: dict[str, list[str]] = {}
  for name, result in results.items():
    made_of.setdefault(result["sources"], []).append(name)
  if len(made_of) > 1:
    counts = ", ".join(f"{len(names)} of {key}" for key, names in made_of.items())
    raise MixedSourcesError(f"{sweep.folder / 'results'}: results of different sources ({counts}). "
                            "Fix: run the sweep again, which makes those that differ from today's, "
                            "or go on at the commit that the others name.")
  hashes = {cell.name: cell.hash for cell in sweep.cells}
  for name, result in results.items():
    if result["config"] != hashes[name]:
      raise MixedSourcesError(f"{sweep.folder / 'results' / name}.json: made with other flags or "
                              "another config file. Fix: run the sweep again.")


def run(sweep: Sweep, cell: Cell, runs: Path, cores: set[int] | None = None) -> dict:
  """Runs a cell, or goes on with it, and writes its result.

  Args:
    runs: folder of the runs.
    cores: that the run may use; None: all.

  Raises:
    RuntimeError: the run broke off for no reason of its own; it has no result.
    RunError, LookupError: it ended before there was anything to measure.
  """
  now, config = sources(), cell.hash  # of what the run reads, which may change while it goes on
  workdir = runs / f"{cell.name}-{config[:6]}{now[:6]}"
  workdir.mkdir(parents=True, exist_ok=True)
  command = [sys.executable, MAIN, *cell.flags, f"--workdir={workdir}"]
  with open(workdir / "log.txt", "a") as log:
    done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False,
                          preexec_fn=None if cores is None else _pinned(cores))
  ended = None
  if done.returncode:
    last = (workdir / "log.txt").read_text().rstrip().rsplit("\n", 1)[-1][:300]
    if done.returncode != ENDED_EARLY:
      raise RuntimeError(f"exit status {done.returncode}, {last}; see {workdir / 'log.txt'}")
    ended = last
  finished = read_run(workdir)
  result = {
      "name": cell.name, "flags": list(cell.flags), "config": config, "sources": now,
      "commit": finished.environment.get("git_commit"), "seed": finished.config["seed"],
      "cores": _usable() if cores is None else len(cores),
      "processor": finished.environment.get("processor"), "ended_early": ended,
      "measured": sweep.measure(finished),
  }
  path = sweep.result_path(cell)
  path.parent.mkdir(exist_ok=True)
  write_atomically(path, json.dumps(result, indent=1) + "\n")
  return result


def _usable() -> int | None:
  """Returns how many cores this process may use; numbers depend on it, by rounding."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _pinned(cores: set[int]) -> Callable[[], None]:
  return lambda: os.sched_setaffinity(0, cores)


def run_missing(sweep: Sweep, cells: list[Cell], runs: Path, jobs: int) -> list[str]:
  """Runs cells, `jobs` at a time, each on cores of its own; returns what broke off."""
  available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
  share = max(1, len(available) // jobs)
  slots = [set(available[i * share:(i + 1) * share]) or None for i in range(jobs)]
  broken = []

  def one(cell: Cell) -> None:
    cores = slots.pop()
    try:
      result = run(sweep, cell, runs, cores if jobs > 1 else None)
      print(f"{cell.name}: {result['ended_early'] or 'done'}", flush=True)
    except BROKEN as error:
      broken.append(f"{cell.name}: {error}")
      print(broken[-1], flush=True)
    finally:
      slots.append(cores)

  with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
    list(pool.map(one, cells))
  return broken


def main(sweep: Sweep, description: str) -> None:
  """Runs what is missing, and renders the table."""
  parser = argparse.ArgumentParser(description=description,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--list", action="store_true", help="list the runs and what is missing")
  parser.add_argument("--index", type=int,
                      help="run this one of --list alone, without the table (for job arrays)")
  parser.add_argument("--only", default="", help="run those in whose name this is found")
  parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
  parser.add_argument("--render", action="store_true", help="only write the table again")
  parser.add_argument("--runs", type=Path, default=Path("runs") / sweep.folder.name)
  flags = parser.parse_args()
  if not Path(MAIN).is_file():
    parser.error(f"there is no {MAIN} here. Fix: start from the repository's root.")
  if flags.jobs < 1:
    parser.error(f"--jobs={flags.jobs}: 1 or more")
  if flags.index is not None and not 0 <= flags.index < len(sweep.cells):
    parser.error(f"--index={flags.index}: 0 to {len(sweep.cells) - 1}, see --list")
  left = missing(sweep)
  if flags.list:
    for index, cell in enumerate(sweep.cells):
      print(index, "missing" if cell in left else "done", cell.name, *cell.flags)
    return
  if not flags.render:
    chosen = left if flags.index is None else [sweep.cells[flags.index]]
    chosen = [cell for cell in chosen if re.search(flags.only, cell.name)]
    broken = run_missing(sweep, chosen, flags.runs, flags.jobs)
    if broken:
      sys.exit(f"error: {len(broken)} runs broke off: {'; '.join(broken)[:1000]}")
  if flags.index is not None:
    return  # the tasks of an array end together, and would write one page at once
  results = read_results(sweep)
  absent = [cell.name for cell in sweep.cells if cell.name not in results]
  if absent:
    print(f"{len(absent)} of {len(sweep.cells)} runs are missing; the table is without them.")
  try:
    check_alike(sweep, results)
  except MixedSourcesError as error:
    sys.exit(f"error: {error}")
  sweep.render(results, sweep.folder)
