"""experiments/credit: its page says what its results say."""

import json
import shutil
from pathlib import Path

import experiment_files
import numpy as np

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "experiments" / "credit"
run = experiment_files.load(FOLDER / "run.py")


def test_the_page_is_rendered_from_the_committed_results(tmp_path, monkeypatch):
  committed = (FOLDER / "README.md").read_text()
  page = Path(shutil.copy(FOLDER / "README.md", tmp_path))
  run.render(tmp_path)
  assert page.read_text() == committed
  # Other results would make another page.
  monkeypatch.setattr(run, "HERE", tmp_path)
  (tmp_path / "results").mkdir()
  for path in (FOLDER / "results").iterdir():
    changed = {method: {name: (np.array(values) / 2).tolist() for name, values in columns.items()}
               for method, columns in json.loads(path.read_text()).items()}
    (tmp_path / "results" / path.name).write_text(json.dumps(changed))
  run.render(tmp_path)
  assert page.read_text() != committed
