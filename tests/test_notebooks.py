"""The notebooks in colab/: short cells, no outputs, and they run to the last cell."""

import ast
import asyncio
import dataclasses
import json
import os
import re
import shutil
from pathlib import Path

import nbclient
import nbformat
import programs
import pytest
from command_configs import config_of
from experiment_files import load
from IPython.core.inputtransformer2 import TransformerManager
from traitlets.config import Config

from experiments.smollm2 import mismatch
from experiments.tables_lib import checkout, published
from jaxrl_llm.config import ConfigError
from jaxrl_llm.wiring import setup

ROOT = Path(__file__).parent.parent
NOTEBOOKS = ("quickstart", "reproduce_tables")
OURS = ("jaxrl_llm", "configs", "experiments")  # where a notebook's imports and calls may lead
MOST_LINES = 5  # of code in a cell, and in a function, beyond calls into the package
SECONDS = 600  # of one cell
tables = load(ROOT / "experiments" / "tables.py")


def read(name: str) -> nbformat.NotebookNode:
  return nbformat.read(ROOT / "colab" / f"{name}.ipynb", as_version=4)


def code(book: nbformat.NotebookNode) -> list[str]:
  """Returns the Python of each code cell; a shell command or a magic becomes a call on its line."""
  cells = [cell for cell in book.cells if cell.cell_type == "code"]
  return [TransformerManager().transform_cell(cell.source) for cell in cells]


def packages(node: ast.stmt) -> list[str]:
  if isinstance(node, ast.ImportFrom):
    return [node.module.split(".")[0]]
  return [alias.name.split(".")[0] for alias in node.names]


def long_cells(book: nbformat.NotebookNode) -> list[str]:
  """Returns the cells and functions with more than MOST_LINES lines of code of their own.

  Not counted are comments, docstrings, and statements that import from the package or call a name
  that was imported from it, in this cell or before. Everything else is, line by line, imports too.
  """
  known: set[str] = set()

  def count(node: ast.stmt) -> int:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
      ours = packages(node)[0] in OURS
      known.update(alias.asname or alias.name for alias in node.names if ours)
      return int(not ours)
    body = getattr(node, "body", None)
    if body is not None:
      documented = isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None
      return 1 + sum(map(count, [*body[documented:], *getattr(node, "orelse", [])]))
    calls = [call.func for call in ast.walk(node) if isinstance(call, ast.Call)]
    if any(isinstance(n, ast.Name) and n.id in known for call in calls for n in ast.walk(call)):
      return 0
    return node.end_lineno - node.lineno + 1

  cells = []
  for index, source in enumerate(code(book)):
    lines = sum(map(count, ast.parse(source).body))
    cells += [f"cell {index}: {lines} lines"] if lines > MOST_LINES else []
    for node in ast.walk(ast.parse(source)):
      if isinstance(node, ast.FunctionDef):
        lines = len(node.body) - (ast.get_docstring(node) is not None)
        cells += [f"{node.name}: {lines} lines"] if lines > MOST_LINES else []
  return cells


def outputs(book: nbformat.NotebookNode) -> list[int]:
  """Returns the code cells that hold an output or were numbered by a run."""
  cells = [cell for cell in book.cells if cell.cell_type == "code"]
  return [i for i, cell in enumerate(cells) if cell.outputs or cell.execution_count]


def private(book: nbformat.NotebookNode) -> list[str]:
  """Returns the private names of the package that a notebook imports or reads."""
  return [name for source in code(book) for name in re.findall(r"(?<![\w\]])_[a-z]\w*", source)]


def first_cells(book: nbformat.NotebookNode) -> bool:
  """Returns whether the first cell sets repository and commit, and the second shows versions."""
  first, second = code(book)[:2]
  names = {target.id for node in ast.parse(first).body if isinstance(node, ast.Assign)
           for target in node.targets}
  return names == {"REPOSITORY", "COMMIT"} and "notebook.begin()" in second


def book_of(*sources: str) -> nbformat.NotebookNode:
  return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_valid_short_and_without_outputs(name):
  book = read(name)
  nbformat.validate(book)
  assert long_cells(book) == [] and outputs(book) == [] and private(book) == []
  assert first_cells(book)


def test_the_rules_bite():
  used = "from jaxrl_llm import presets\n" + "presets.apply(1,\n  2)\n" * 6
  assert long_cells(book_of(used, "presets.apply(2)\n" * 6)) == []
  assert long_cells(book_of("import os\n" + "x = os.getcwd()\n" * 5)) == ["cell 0: 6 lines"]
  assert long_cells(book_of("!ls\n" * 6)) == ["cell 0: 6 lines"]
  assert long_cells(book_of("for i in range(2):\n" + "  print(i)\n" * 5)) == ["cell 0: 6 lines"]
  lines = "from jaxrl_llm import f\ndef g():\n" + "  f(1)\n" * 6
  assert long_cells(book_of(lines)) == ["g: 6 lines"]
  assert private(book_of("x._y")) == ["_y"]
  assert not first_cells(book_of("REPOSITORY = 1", "notebook.begin()"))
  run = book_of("1")
  run.cells[0].execution_count = 1
  assert outputs(run) == [0]


def test_every_table_has_its_cells():
  source = "\n".join(code(read("reproduce_tables")))
  for call in ("show", "live"):
    assert re.findall(rf'published\.{call}\(tables\.TABLES\["(\w+)"\]\)', source) == [
        *tables.TABLES]


@pytest.mark.parametrize("table", tables.TABLES.values(), ids=tables.TABLES)
def test_a_table_has_its_numbers_and_commands(table):
  table.comparison()  # raises where a claim's counterpart is not in the committed results
  for command in table.commands(Path("out")):
    assert (ROOT / command[1]).exists() or not table.exists
    assert not re.search(r"[{}]", " ".join(command[1:]))
  assert all(number.place.read(table.path / table.page) >= 0 for number in table.numbers)
  if table.runs:
    names = {json.loads(line)["name"].rpartition("_seed")[0]
             for line in (table.path / "results.jsonl").read_text().splitlines()}
    assert names & set(table.runs.names.values()), "no run has a counterpart"


def test_a_short_version_stands_beside_the_committed_values(tmp_path, monkeypatch):
  """At its own last iteration; a number that is not within the range of seeds differs."""
  monkeypatch.delenv(checkout.VARIABLE, raising=False)
  results = [{"name": f"base_seed{seed}", "measured": {"iterations": [0, 5, 10],
                                                       "accuracy": [0.2, 0.5 + seed / 10, 1.0]}}
             for seed in (0, 1)]
  (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in results))
  for name, accuracy in (("near", 0.65), ("far", 0.95), ("other", 0.5)):
    (tmp_path / name).mkdir()
    (tmp_path / name / "config.json").write_text("{}")
    lines = [{"iteration": i, "eval/accuracy": accuracy} for i in (0, 5)]
    (tmp_path / name / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines))
  runs = published.Runs({"near": "base", "far": "base", "other": "nothing"})
  table = published.Table(str(tmp_path), (), (), runs=runs)
  assert [row[1:] for row in runs.rows(tmp_path, tmp_path)] == [
      ("0.50 to 0.60, 2 seeds", "0.65", "agrees"), ("0.50 to 0.60, 2 seeds", "0.95", "differs"),
      ("-", "0.5", "no counterpart")]
  assert "differs" in table.verdicts(tmp_path)
  one = dataclasses.replace(runs, seeds=(0,))
  assert one.rows(tmp_path, tmp_path)[0][1:] == ("0.50 to 0.50, 1 seeds", "0.65", "differs")
  monkeypatch.setenv(checkout.VARIABLE, "1")
  assert "differs" not in table.verdicts(tmp_path), "its runs are too small to compare"


def given(command: list[str], key: str) -> int:
  (value,) = (flag.partition("=")[2] for flag in command if flag.startswith(f"{key}="))
  return int(value)


def test_the_cell_of_the_real_model_says_how_small_its_samples_are():
  """Groups have 8 completions, of the recipe and of the sampler that is measured."""
  gap, run, spread = tables.TABLES["smollm2"].commands(Path("out"))
  sampled, updated = 8 * given(gap, "--prompts"), 8 * given(run, "--config.rollout.prompts")
  imitated = given(run, "--config.warm_start.steps") * given(run, "--config.warm_start.batch_size")
  assert given(run, "--config.iterations") == 1 and given(run, "--config.task.steps") == 3
  (text,) = (cell.source for cell in read("reproduce_tables").cells if "SmolLM2" in cell.source
             and cell.cell_type == "markdown")
  words = " ".join(text.split())
  for part in (f"{sampled} completions of the int8 sampler instead of {8 * mismatch.PROMPTS}",
               f"{updated * given(spread, '--batches')} answers of three steps instead of 128",
               f"one update of {updated} completions", f"imitation of {imitated} worked answers"):
    assert part in words


@pytest.fixture
def environment(monkeypatch, tmp_path):
  """That of a headless run. What it leaves in the folder of notebooks' runs is removed."""
  before = set(checkout.RUNS.glob("*"))
  for key in ("JAX_PLATFORMS", "XLA_FLAGS"):
    monkeypatch.setenv(key, programs.ENVIRONMENT[key])
  monkeypatch.setenv(checkout.VARIABLE, "1")
  monkeypatch.setenv("JAXRL_LLM_CACHE", str(tmp_path / "cache"))
  yield
  for path in set(checkout.RUNS.glob("*")) - before:
    shutil.rmtree(path)


async def execute(folder: Path, *books: nbformat.NotebookNode) -> None:
  """Runs notebooks from the repository's root, side by side.

  Args:
    folder: for the kernels' sockets. Kernels that begin in one folder would share their names.
  """
  clients = []
  for index, book in enumerate(books):
    (folder / str(index)).mkdir()
    manager = {"transport": "ipc", "connection_file": str(folder / str(index) / "kernel.json")}
    clients.append(nbclient.NotebookClient(
        book, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}},
        config=Config({"KernelManager": manager})))  # no ports
  await asyncio.gather(*(client.async_execute(env=dict(os.environ)) for client in clients))


def printed(book: nbformat.NotebookNode) -> list[str]:
  return ["".join(out.get("text", "") + out.get("data", {}).get("text/markdown", "")
                  for out in cell.outputs) for cell in book.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("name", tables.TABLES)
def test_the_runs_of_a_table_have_configs(name, monkeypatch):
  monkeypatch.chdir(ROOT)
  if tables.TABLES[name].missing():
    pytest.skip(f"needs {tables.TABLES[name].install}")
  for command in tables.TABLES[name].commands(Path("out")):
    if command[1] != "experiments/main.py":
      continue
    arguments = [flag for flag in command[2:] if flag.startswith("--config")]
    assert setup.resolve(config_of(*arguments)).iterations > 0
    with pytest.raises(ConfigError):
      config_of(*arguments, "--config.rollout.promts=1")


def with_live(book: nbformat.NotebookNode, names: tuple[str, ...]) -> nbformat.NotebookNode:
  """The notebook without the cells that run the commands of other tables."""
  others = [f'published.live(tables.TABLES["{name}"])' for name in tables.TABLES.keys() - names]
  book.cells = [cell for cell in book.cells if not any(text in cell.source for text in others)]
  return book


@pytest.mark.parametrize("live", [
    pytest.param(("exact",), id="cheapest", marks=pytest.mark.slow),
    pytest.param(tuple(tables.TABLES), id="all", marks=pytest.mark.nightly)])
def test_the_notebooks_run(live, environment, tmp_path):
  book, tables_book = read("quickstart"), with_live(read("reproduce_tables"), live)
  assert sum("published.live" in source for source in code(tables_book)) == len(live)
  tables_book.cells.append(nbformat.v4.new_code_cell(
      "from jax._src import xla_bridge\nprint(xla_bridge.backends_are_initialized())"))
  asyncio.run(execute(tmp_path, book, tables_book))
  text = "\n".join(printed(book))
  assert "held-out accuracy" in text and "| mine" in text and "full sequence" in text
  pages = [out.data["text/html"] for cell in book.cells if cell.cell_type == "code"
           for out in cell.outputs if "text/html" in out.get("data", {})]
  assert sum("<iframe" in page for page in pages) == 2 and "mine" in pages[-1]
  texts = printed(tables_book)
  assert texts[-1] == "False\n"  # the device belongs to the commands
  assert "second-hand" in "\n".join(texts)
