"""Runs a notebook of colab/ from the repository's root, without a browser and at its smallest."""

import os
import re
import shutil
from pathlib import Path

import nbclient
import nbformat
import programs
from traitlets.config import Config

from jaxrl_llm.analysis import notebook

ROOT = Path(__file__).parents[2]
SECONDS = 600  # of one cell


def read(name: str) -> nbformat.NotebookNode:
  return nbformat.read(ROOT / "colab" / f"{name}.ipynb", as_version=4)


def execute(book: nbformat.NotebookNode, cache: Path) -> list[str]:
  """Runs all cells; returns the text that each code cell printed.

  Args:
    cache: an empty folder, so that no run uses what another one left.
  """
  client = nbclient.NotebookClient(
      book, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}},
      config=Config({"KernelManager": {"transport": "ipc"}}))  # no ports
  flags = {key: programs.ENVIRONMENT[key] for key in ("JAX_PLATFORMS", "XLA_FLAGS")}
  client.execute(env=os.environ | flags | {notebook.VARIABLE: "1", "JAXRL_LLM_CACHE": str(cache)})
  return ["".join(out.get("text", "") + out.get("data", {}).get("text/markdown", "")
                  for out in cell.outputs) for cell in book.cells if cell.cell_type == "code"]


def folders(names) -> set[Path]:
  """Returns the notebooks' runs of these names: `name`, `name-2`, ..."""
  return {path for path in notebook.RUNS.glob("*") if re.sub(r"-\d+$", "", path.name) in names}


def removing_new(names):
  """A fixture's body: removes the runs of these names that the test made, and no others'."""
  before = folders(names)
  yield
  for path in folders(names) - before:
    shutil.rmtree(path)
