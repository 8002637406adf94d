"""Every paper's folder says what it claims and what its modules are, and what it names is there."""

import re
from pathlib import Path

import pytest

PAPERS = Path(__file__).parents[3] / "experiments" / "papers"
FOLDERS = sorted(path.parent.name for path in PAPERS.glob("*/method.md"))
# What the table runs, which its page shows by command.
OF_THE_TABLE = {f"{name}.py" for name in ("__init__", "config", "policies", "run", "sweep", "task",
                                          "toy")}


def wrong(folder: Path, page: str) -> list[str]:
  """Returns what a paper's page lacks: a claim, a formula, a module, the target of a link."""
  found = [f"no {part!r}" for part in ("**Claim.**", "\n    ") if part not in page]
  found += [f"link {target}" for target in re.findall(r"\]\(([^)#:]+)\)", page)
            if not (folder / target).exists()]
  modules = {path.name for path in folder.glob("*.py")} - OF_THE_TABLE
  beside = (folder / "README.md").read_text()
  return found + [name for name in sorted(modules) if f"({name})" not in page + beside]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_page_is_complete(name):
  page = (PAPERS / name / "method.md").read_text()
  assert wrong(PAPERS / name, page) == []
  assert wrong(PAPERS / name, page.replace("**Claim.**", "").replace("README.md", "gone.md")) == [
      "no '**Claim.**'", "link gone.md"]


def test_no_folder_lacks_a_page():
  folders = {path.parent.name for path in PAPERS.glob("*/README.md")}
  assert folders == set(FOLDERS) and len(FOLDERS) >= 10
