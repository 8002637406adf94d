"""The README does what it says: its example estimator runs, its files exist, its numbers are the
sweep's.
"""

import dataclasses
import inspect
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from experiment_files import load

from experiments.tables_lib.page_parts import Place, markers, split, tables
from jaxrl_llm.config import ConfigError, EstimatorConfig, load_plugins
from jaxrl_llm.objective import estimators
from jaxrl_llm.presets import PRESETS
from jaxrl_llm.runs import iteration

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
matrix = load(ROOT / "experiments" / "matrix.py")
ratio_rows = matrix.ratio_rows


def test_length_and_links():
  assert README.count("\n") <= 80 and max(map(len, README.split("\n"))) <= 160
  for target in re.findall(r"\]\(([^)#:]+)\)", README):
    assert (ROOT / target).exists(), target


def test_losses_are_as_many_and_as_long_as_the_readme_says():
  functions = [estimators.spec(name).function for name in estimators.names()]
  core = [one for one in functions if one.__module__.startswith("jaxrl_llm.")]
  named, more = re.search(r"JAX: (.*?) and (\d+) more", README).groups()
  assert len(named.split(", ")) + int(more) == len(core)
  lines = [len(inspect.getsource(one).splitlines()) for one in core]
  assert f"each about {round(np.median(lines), -1):.0f} lines" in README


def test_the_methods_page_has_the_presets_by_weight():
  page = (ROOT / "jaxrl_llm/objective/README.md").read_text()
  named = set(re.findall(r"^\| (`.*?) \|", page.split("| presets |")[1].split("\n\n")[0], re.M))
  presets = {name for cell in named for name in re.findall(r"`(\w+)`", cell)}
  assert len(presets) > 15 and presets <= set(PRESETS)


def test_the_example_estimator_runs(tmp_path):
  path = tmp_path / "estimator.py"
  path.write_text(re.search(r"Your own loss.*?```python\n(.*?)```", README, re.DOTALL)[1])
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
  """README gives those as verified, of the sweep's table by seed."""
  pair = r"[\d.]+ % → [\d.]+ %"
  rows = re.findall(rf"^\| *[012] *\| *({pair}) *\| *{pair} *\|$",
                    (ROOT / "experiments/quickstart/results.md").read_text(), re.M)
  stated = re.search(r"three seeds: (.*?)\.\n", README, re.DOTALL)[1]
  assert len(rows) == 3 and re.findall(pair, stated) == rows


def test_the_real_model_s_numbers_are_those_of_its_runs():
  page = ROOT / "experiments/smollm2/README.md"

  def number(run, column):
    return Place("experiments/smollm2/recipe.py", (run,), column).read(page)

  pairs = [f"{number(run, 'before'):.3f} → {number(run, 'after'):.3f}"
           for run in ("smollm2_0", "smollm2_1", "smollm2_2", "smollm2_shuffled")]
  time = f"{number('smollm2_0', 'minutes'):.0f} minutes on 2 idle cores and "
  stated = (f"{', '.join(pairs[:3])}, with permuted rewards {pairs[3]}; the command takes {time}"
            f"{number('smollm2_0', 'GiB'):.1f} GiB")
  assert re.sub(r"\b0\.", ".", stated) in README


def test_the_ends_of_the_comparison_are_those_of_the_table():
  page = ROOT / "experiments/staleness/README.md"
  grpo, cispo = (Place("sweep.py, comparison", ("8", name), "at the end").read(page)
                 for name in ("GRPO", "CISPO"))
  assert f"at {grpo:.2f} (GRPO) and {cispo:.2f} (CISPO)".replace("0.", ".") in README


def test_the_speed_is_the_range_over_machines():
  page = (ROOT / "experiments/bench/README.md").read_text()
  (table,) = (table for table in tables(page) if table.header[0] == "2 cores, jax 0.10.2")
  speeds = [float(row[1]) for row in table.rows]
  stated = f"{min(speeds)} to {max(speeds)} times as fast"
  assert len(speeds) > 3 and stated in README and stated in page


def test_the_list_of_tables_is_written_from_their_results():
  begin, end = markers("experiments/matrix.py")
  for page, text in matrix.PARTS.items():
    assert page.read_text().split(begin)[1].split(end)[0].strip() == text().strip(), page
  assert sorted(name for question in matrix.QUESTIONS for name in question.tables) == sorted(
      row.name for row in matrix.question_rows.ROWS)
  for row in matrix.question_rows.ROWS:  # the arena's answer is written by its command
    text = (matrix.folder(row.name) / "README.md").read_text().split("\n\n", 2)
    assert text[1].startswith(("**Answer.**", "<!-- written by page.py answer: begin")), row.name


def arena_verdict(claim: str) -> str:
  """The last cell of a claim's row on the arena's page."""
  page = ROOT / "experiments/arena/README.md"
  (table,) = tables(split(page.read_text(), "page.py claims", page)[1])
  return next(row[-1] for row in table.rows if row[0] == claim)


def test_the_caption_says_what_the_arena_decides():
  """A claim that is decided no longer, or a difference that is gone, takes the sentence away."""
  caption = " ".join(README.split("forest.png)")[1].split("## ")[0].split())
  ahead = all(arena_verdict(f"{name} ahead of GRPO").startswith("decided for")
              for name in ("CISPO", "MinPRO"))
  assert ahead == ("CISPO and MinPRO are ahead of GRPO in the first two test beds" in caption)
  page = ROOT / "experiments/staleness_lengths/README.md"
  above = [{row[0] for table in tables(split(page.read_text(), part, page)[1])
            for row in table.rows if row[-1] == "above"}
           for part in ("sweep.py, verdicts", "sweep.py, verdicts at the end")]
  (name,) = above[0] & above[1]
  assert f"where lengths vary {name} alone is, by both measures." in caption
  by = re.findall(r"beds differ \((.*?)\)", arena_verdict("GSPO ahead of GRPO"))
  stated = re.findall(r"which differ on GSPO by the (.*?);", caption)
  assert stated == [measures.replace(", ", " and the ") for measures in by]


def test_the_answer_follows_the_pages(tmp_path, monkeypatch):
  """Another number on the arena's page is another sentence and another row of README."""
  before = ratio_rows.answer()
  page = ratio_rows.ARENA.read_text()
  part = split(page, "page.py forest", "")[1]
  row = next(line for line in part.splitlines() if line.startswith("| CISPO"))
  other = tmp_path / "README.md"
  other.write_text(page.replace(row, row.replace("+0.2", "+0.7")))
  monkeypatch.setattr(ratio_rows, "ARENA", other)
  monkeypatch.setattr(ratio_rows, "SENTENCES", tuple(
      dataclasses.replace(sentence, page=other) if sentence.page.parent.name == "arena"
      else sentence for sentence in ratio_rows.SENTENCES))
  assert ratio_rows.answer() != before and "+0.7" in ratio_rows.answer()
  assert "+0.7" not in before


def test_a_sentence_whose_words_are_not_true_is_refused():
  """Each number with its sign turned makes a sentence of README false, and is refused."""
  for sentence in ratio_rows.SENTENCES:
    values = [place.read(sentence.page) for place in sentence.places]
    assert sentence.holds(*values) and not sentence.holds(*(-value for value in values)), sentence
  wrong = dataclasses.replace(ratio_rows.SENTENCES[0], holds=lambda *gaps: min(gaps) > 1)
  with pytest.raises(ConfigError, match="is not true that"):
    wrong.filled()


def test_the_version_has_a_section_of_changes():
  version = re.search(r'version="(.*?)"', (ROOT / "setup.py").read_text())[1]
  text = (ROOT / ".github/CHANGELOG.md").read_text()
  assert re.findall(r"^## (\S+)", text, re.M)[0] == version
