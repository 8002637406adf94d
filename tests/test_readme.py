"""The README does what it says: its example estimator runs, its files exist, its numbers are the
sweep's.
"""

import inspect
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from experiments.tables_lib.page_parts import markers
from jaxrl_llm.config import EstimatorConfig, load_plugins
from jaxrl_llm.objective import estimators
from jaxrl_llm.presets import PRESETS
from jaxrl_llm.runs import iteration

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_length_and_links():
  assert README.count("\n") <= 130 and max(map(len, README.split("\n"))) <= 160
  for target in re.findall(r"\]\(([^)#:]+)\)", README):
    assert (ROOT / target).exists(), target
  named = set(re.findall(r"^\| (`.*?) \|", README.split("| presets |")[1].split("\n\n")[0],
                         re.M))
  presets = {name for cell in named for name in re.findall(r"`(\w+)`", cell)}
  assert len(presets) > 15 and presets <= set(PRESETS)


def test_the_example_estimator_runs(tmp_path):
  path = tmp_path / "estimator.py"
  path.write_text(re.search(r"Bring your own.*?```python\n(.*?)```", README, re.DOTALL)[1])
  load_plugins((str(path),))
  load_plugins((str(path),))  # a second time changes nothing
  log_probs, mask = jnp.asarray([[-1.0, -2.0]]), jnp.ones((1, 2), bool)
  estimator = estimators.get_estimator("tempered")
  out = estimator(log_probs, log_probs - 5.0, jnp.ones((1, 2)), mask, EstimatorConfig("tempered"))
  np.testing.assert_allclose(out.per_token_loss, [[np.exp(2.5), 2 * np.exp(2.5)]], rtol=1e-6)


def test_the_loop_is_that_of_the_code():
  """Ten lines, each a line of `iterate`, in their order."""
  page = (ROOT / ".github/CONTRIBUTING.md").read_text()
  lines = re.search(r"are an iteration:.*?```python\n(.*?)```", page, re.DOTALL)[1].splitlines()
  code = inspect.getsource(iteration.iterate)
  places = [code.find(line) for line in lines]
  assert len(lines) == 10 and -1 not in places and places == sorted(places)


def test_the_train_step_takes_five_files():
  """CONTRIBUTING lists them; together they have at most 1000 lines."""
  page = ROOT / ".github" / "CONTRIBUTING.md"
  listed = page.read_text().split("understand the train step")[1].split("Without an update")[0]
  files = [page.parent / name for name in re.findall(r"^\| \[.*?\]\((.*?)\)", listed, re.M)]
  assert len(files) == 5 and files[0].name == "train_step.py"
  assert sum(file.read_text().count("\n") for file in files) <= 1000


def test_the_pairs_are_those_of_the_sweep():
  """README gives those as verified first, then those of the control; the sweep's table by seed."""
  pair = r"[\d.]+ % → [\d.]+ %"
  rows = re.findall(rf"^\| *[012] *\| *({pair}) *\| *({pair}) *\|$",
                    (ROOT / "experiments/quickstart/results.md").read_text(), re.M)
  stated = re.search(r"three seeds: (.*?)\.\n", README, re.DOTALL)[1]
  verified, control = zip(*rows, strict=True)
  assert len(rows) == 3 and re.findall(pair, stated) == [*verified, *control]


def test_the_list_of_tables_is_written_from_their_results(tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(str(ROOT / "experiments"))
  import matrix

  begin, end = markers("experiments/matrix.py")
  for page, text in matrix.PARTS.items():
    assert page.read_text().split(begin)[1].split(end)[0].strip() == text().strip(), page
  assert sorted(name for question in matrix.QUESTIONS for name in question.tables) == sorted(
      row.name for row in matrix.question_rows.ROWS)
  for row in matrix.question_rows.ROWS:  # the arena's answer is written by its command
    text = (matrix.folder(row.name) / "README.md").read_text().split("\n\n", 2)
    assert text[1].startswith(("**Answer.**", "<!-- written by page.py answer: begin")), row.name


def read_cell(page: str, part: str, row: str, column: str) -> str:
  """The text of a page's table where a row, by its first cell, and a column meet."""
  lines = page.split(f"written by {part}: begin")[1].split(": end")[0].splitlines()
  table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
  return next(cells for cells in table if cells[0] == row)[table[0].index(column)]


def test_the_shares_of_the_figure_are_those_of_the_arena_s_page():
  caption = README.split("phase_warm.png)")[1].split("## ")[0]
  page = (ROOT / "experiments" / "arena" / "README.md").read_text()
  for name, shown in (("cispo", "CISPO\nends at "), ("grpo", "GRPO at "),
                      ("none", "no ratio at "), ("gspo", "GSPO at ")):
    share = read_cell(page, "page.py tuned", name, "warm 256, staleness 64").split(" ")[0]
    assert f"{shown}{share}" in caption, name
  against = next(line for line in page.splitlines() if line.startswith("| CISPO collapses on old"))
  assert ("not decided" in against) == ("do not decide CISPO against GRPO" in caption)
  differs = "The instruments differ** on: GSPO is ahead of GRPO" in page
  assert differs == ("GSPO above GRPO, where the two disagree" in caption)


def test_the_version_has_a_section_of_changes():
  version = re.search(r'version="(.*?)"', (ROOT / "setup.py").read_text())[1]
  text = (ROOT / ".github/CHANGELOG.md").read_text()
  assert re.findall(r"^## (\S+)", text, re.M)[0] == version
