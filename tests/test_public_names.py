"""Names that users and tools import stay importable; imports that left are named in CHANGELOG."""

import ast
import importlib
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAMES = (  # (module, name; empty for the module itself)
    ("tasks.verifiers", "grade_many"), ("tasks", "make_task"),
    ("tasks.tokenizer", "load_tokenizer"), ("tasks.prompts", "make_prompter"),
    ("rollouts.tools", "PythonSandbox"),
    ("rollouts.tools", "calculator"), ("models", "load_pretrained"), ("models", "save_pretrained"),
    ("runs.trainer", "run"), ("presets", "PRESETS"), ("presets", "apply"),
)


def absent(names) -> list[str]:
  """Those of (module, name) that cannot be imported."""
  places = []
  for module, name in names:
    try:
      if not name or hasattr(importlib.import_module(module), name):
        importlib.import_module(module)
        continue
      importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError:
      places.append(f"{module}:{name}")
  return places


def imports(source: str) -> list[tuple[str, str]]:
  """What a file imports of the package."""
  pairs = []
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.ImportFrom):
      pairs += [(node.module, alias.name) for alias in node.names]
    elif isinstance(node, ast.Import):
      pairs += [(alias.name, "") for alias in node.names]
  return [pair for pair in pairs if pair[0].split(".")[0] == "jaxrl_llm"]


def examples() -> list[str]:
  """The Python of README's blocks, and of the plugins in experiments/extend."""
  blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
  return blocks + [file.read_text() for file in (ROOT / "experiments/extend").rglob("*.py")]


def test_promised_names_are_importable():
  assert absent((f"jaxrl_llm.{module}", name) for module, name in NAMES) == []


def test_what_readers_are_shown_is_importable():
  names = {pair for source in examples() for pair in imports(source)}
  assert len(names) > 8 and absent(names) == []


def test_a_name_that_left_is_noticed():
  assert absent([("jaxrl_llm.tasks", "no_task"), ("jaxrl_llm.moved", ""),
                 ("jaxrl_llm.tasks", "prompts")]) == ["jaxrl_llm.tasks:no_task", "jaxrl_llm.moved:"]
  assert imports("from jaxrl_llm.ops import masked\nimport os") == [("jaxrl_llm.ops", "masked")]


def moved() -> list[tuple[str, str]]:
  """The rows of CHANGELOG's table: a module before, and where it is now."""
  text = (ROOT / ".github/CHANGELOG.md").read_text().split("| import before | now |")[1]
  pairs = []
  for before, now in re.findall(r"^\| (.*?) \| `([\w.]+)` \|$", text.split("\n\n")[0], re.M):
    package, *below = re.findall(r"`([\w.]+)`", before.partition(", and")[0])
    pairs += [(package + name, now + name) for name in below] or [(package, now)]
  return pairs


@pytest.mark.parametrize("before, now", moved())
def test_imports_that_left_are_where_the_changes_say(before, now):
  assert exists(now) and not exists(before)


def exists(module: str) -> bool:
  try:
    return importlib.util.find_spec(module) is not None
  except ModuleNotFoundError:  # of a package that is not there
    return False
