"""Modules under the names of version 0.1 are those of today, however they are imported."""

import importlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jaxrl_llm
from jaxrl_llm import moved
from jaxrl_llm.reporting.tables import markers

ROOT = Path(jaxrl_llm.__file__).parent.parent
# Files that the sandbox loads by their path, in processes that know no packages.
BY_PATH = {"jaxrl_llm.rollouts.tools.sandbox_child", "jaxrl_llm.rollouts.tools.sandbox_server"}


def file_of(name: str) -> Path | None:
  """Returns the file of a module of the package, or None; nothing is imported."""
  path = ROOT.joinpath(*name.split("."))
  return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()),
              None)


def wrong_entries(modules: dict[str, str]) -> list[str]:
  """Old names whose new module does not exist, and those under which a file still lies."""
  return [old for old, new in modules.items() if file_of(new) is None or file_of(old) is not None]


def test_every_target_exists_and_no_old_file_hides_it():
  assert len(moved.MODULES) > 80 and wrong_entries(moved.MODULES) == []
  assert wrong_entries({**moved.MODULES, "jaxrl_llm.runs.gone": "jaxrl_llm.build.gone"}) == [
      "jaxrl_llm.runs.gone"]
  assert wrong_entries({"jaxrl_llm.runs.trainer": "jaxrl_llm.build.setup"}) == [
      "jaxrl_llm.runs.trainer"], "a file of today would hide the alias, or the alias it"


def differing(name: str, old) -> list[str]:
  """What a module that was imported under its old name differs in from the one of the new name."""
  new = importlib.import_module(moved.MODULES[name])
  found = [] if old is new else ["another object"]
  if old.__spec__ is None or old.__spec__.name != moved.MODULES[name]:
    found.append("__spec__")
  return found + ([] if old.__name__ == moved.MODULES[name] else ["__name__"])


@pytest.mark.parametrize("name", sorted(set(moved.MODULES) - BY_PATH))
def test_an_old_name_gives_the_module_of_today(name):
  assert differing(name, importlib.import_module(name)) == []
  parent, _, leaf = name.rpartition(".")
  assert getattr(importlib.import_module(parent), leaf) is sys.modules[moved.MODULES[name]]


def test_a_second_copy_of_a_module_is_noticed():
  name = "jaxrl_llm.runs.setup"
  spec = importlib.util.spec_from_file_location(name, file_of(moved.MODULES[name]))
  copy = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(copy)
  assert differing(name, copy) == ["another object", "__spec__", "__name__"]


def test_a_name_that_never_was_is_not_found():
  for name in ("jaxrl_llm.runs.nothing", "jaxrl_llm.analysis.nothing"):
    with pytest.raises(ModuleNotFoundError, match=name):
      importlib.import_module(name)


# In a process of its own, where nothing was imported under its new name before.
FIRST = """
import importlib, json, sys
import jaxrl_llm
from jaxrl_llm import moved
from jaxrl_llm.reporting.tables import markers
names = json.loads(sys.argv[1])
wrong = []
for name in names:
  old = importlib.import_module(name)
  new = importlib.import_module(moved.MODULES[name])
  if old is not new or new.__spec__.name != moved.MODULES[name]:
    wrong.append(name)
print(json.dumps(wrong))
"""


@pytest.mark.slow
def test_the_old_name_may_come_first():
  """One name of each package, so that the process is short."""
  first = {name.rpartition(".")[0]: name for name in sorted(moved.MODULES, reverse=True)
           if name not in BY_PATH}
  done = subprocess.run([sys.executable, "-c", FIRST, json.dumps(sorted(first.values()))], cwd=ROOT,
                        text=True, capture_output=True, timeout=300)
  assert done.returncode == 0, done.stderr[-2000:]
  assert json.loads(done.stdout.splitlines()[-1]) == [] and len(first) > 8


def test_the_changes_name_every_moved_module():
  text = (ROOT / ".github/CHANGELOG.md").read_text()
  begin, end = markers("experiments/pages.py, modules")
  rows = re.findall(r"^\| `(.*?)` \| `(.*?)` \| (.*) \|$", text.split(begin)[1].split(end)[0], re.M)
  pairs = {}
  for before, now, names in rows:
    for name in names.split(", "):
      old, _, new = name.partition(" → ")
      pairs[f"{before}.{old}"] = f"{now}.{new or old}"
  assert pairs == moved.MODULES
