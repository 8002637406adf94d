"""Papers' pages are complete, what they name is there, and their tables say what results say."""

import copy
import re
import shutil
from pathlib import Path

import experiment_files
import pytest

from experiments.tables_lib import seed_results

PAPERS = Path(__file__).parents[3] / "experiments" / "papers"
FOLDERS = sorted(path.parent.name for path in PAPERS.glob("*/method.md"))
# What the table runs, which its page shows by command.
OF_THE_TABLE = {f"{name}.py" for name in ("__init__", "config", "policies", "run", "sweep", "task",
                                          "toy")}


def wrong(folder: Path, page: str) -> list[str]:
  """Returns what a paper's page lacks: a claim, a formula, a module, the target of a link."""
  faults = [f"no {part!r}" for part in ("**Claim.**", "\n    ") if part not in page]
  faults += [f"link {target}" for target in re.findall(r"\]\(([^)#:]+)\)", page)
             if not (folder / target).exists()]
  modules = {path.name for path in folder.glob("*.py")} - OF_THE_TABLE
  beside = (folder / "README.md").read_text()
  return faults + [name for name in sorted(modules) if f"({name})" not in page + beside]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_page_is_complete(name):
  page = (PAPERS / name / "method.md").read_text()
  assert wrong(PAPERS / name, page) == []
  assert wrong(PAPERS / name, page.replace("**Claim.**", "").replace("README.md", "gone.md")) == [
      "no '**Claim.**'", "link gone.md"]


def test_no_folder_lacks_a_page():
  folders = {path.parent.name for path in PAPERS.glob("*/README.md")}
  assert folders == set(FOLDERS) and len(FOLDERS) >= 10


# The script of a table that is written from results by seed, and places in those of the first seed,
# each of which the table shows.
TABLES = {
    "arca/toy.py": [("8", "ARCA", "accuracy")],
    "budgets/run.py": [("loss", "uniform"), ("loss_of_rewards", "dense"),
                       ("kept", "random search")],
    "counting/run.py": [("planted", "restricted"), ("LoRA q/v", "generated"), ("trained", "lens")],
    "critical_tokens/toy.py": [("trained", "cDPO", "sampled")],
    "occ/toy.py": [("occ", name) for name in ("accuracy", "ahead", "reward", "coefficient",
                                              "cosine", "agreement")],
    "portfolio/toy.py": [("policies", "grpo", "regret")],
    "tvm/toy.py": [("fit", "prefix", "error")],
}


def moved(value):
  """Other numbers in place of those of a result."""
  if isinstance(value, list):
    return [moved(entry) for entry in value]
  return value if value is None else 0.5 * value + 0.1


@pytest.mark.parametrize("script", TABLES)
def test_a_table_is_rendered_from_the_committed_results(script, tmp_path):
  folder = (PAPERS / script).parent
  table, page = experiment_files.load(PAPERS / script), Path(shutil.copy(folder / "README.md",
                                                                         tmp_path))
  results = seed_results.load(folder, table.SEEDS)
  table.write_tables(results, page)
  assert page.read_text() == (folder / "README.md").read_text()
  for *path, last in TABLES[script]:
    changed = copy.deepcopy(results)
    place = changed[0]
    for name in path:
      place = place[name]
    place[last] = moved(place[last])
    table.write_tables(changed, page)
    assert page.read_text() != (folder / "README.md").read_text(), last
