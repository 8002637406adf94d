"""colab/reproduce_tables.ipynb runs to its last cell, and leaves the device to its commands."""

import experiment_files
import headless
import nbformat
import pytest

tables = experiment_files.load(headless.ROOT / "experiments" / "tables.py")


@pytest.fixture
def removed():
  yield from headless.removing_new(tables.TABLES)


def test_it_runs(removed, tmp_path):
  book = headless.read("reproduce_tables")
  book.cells.append(nbformat.v4.new_code_cell(
      "from jax._src import xla_bridge\nprint(xla_bridge.backends_are_initialized())"))
  printed = headless.execute(book, tmp_path / "cache")
  assert printed[-1] == "False\n"  # the device belongs to the commands
  assert "second-hand" in "\n".join(printed)
