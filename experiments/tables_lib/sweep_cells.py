"""The runs of a table: their flags, what identifies them, and which of them have a result."""

import ast
import dataclasses
import hashlib
import importlib.util
import json
import re
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.report.run_folder import RunFolder
from experiments.tables_lib import sweep_results
from jaxrl_llm.fields import ConfigError

SEED = "--config.seed="
PARSING = threading.Lock()  # ast.parse of Python 3.11 fails in concurrent threads


@dataclasses.dataclass(frozen=True)
class Cell:
  """One run: its name, which ends in _seed<n>, and its flags of experiments/main.py without
  --workdir; the last flag is the seed.
  """

  name: str
  flags: tuple[str, ...]

  @property
  def files(self) -> list[Path]:
    """Returns the files that the flags name, and the files that these name: the config file and
    plugins.
    """
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
    cells: runs with distinct names.
    measure: maps a finished run to the JSON-able values that are kept of it.
    render: writes the files of the table from (results by name, folder) and leaves out what is
      missing.
    method: maps (name, preset, flags, number of seeds) to the cells by which the table shows a
      further method; cells of its screening first, and the others once that has its results. None:
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
  """Returns the results that exist, by name: first the cells' results, in their order, and then
  further seeds and methods.
  """
  records = sweep_results.read(sweep.folder)
  declared = {cell.name: records[cell.name] for cell in sweep.cells if cell.name in records}
  return declared | records


def missing(sweep: Sweep, cells: list[Cell] | None = None) -> list[Cell]:
  """Returns the cells, by default among the sweep's, that have no result of their flags."""
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
  """Returns the cells of a method that is added to the table.

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
