"""colab/quickstart.ipynb runs to its last cell.

A file of its own, so that it and the other notebook run side by side.
"""

import headless
import pytest


@pytest.fixture
def removed():
  yield from headless.removing_new({"grpo", "ctpo", "mine"})


def test_it_runs(removed, tmp_path):
  book = headless.read("quickstart")
  text = "\n".join(headless.execute(book, tmp_path / "cache"))
  assert "held-out accuracy" in text and "| mine" in text and "full sequence" in text
  pages = [out.data["text/html"] for cell in book.cells if cell.cell_type == "code"
           for out in cell.outputs if "text/html" in out.get("data", {})]
  assert sum("<iframe" in page for page in pages) == 2 and "mine" in pages[-1]
