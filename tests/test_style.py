"""The house rules that a reader can count: short functions, a small package, the whole config in
one room, no page cited that is not here.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "jaxrl_llm"
MOST_LINES = 60  # of a function
# Of the package, and only ever less: whoever adds lines says which others leave (CONTRIBUTING.md).
MOST_PACKAGE_LINES = 35759
# What takes the whole config outside wiring/: the entries of three commands.
COMMANDS = {"config/listing.py:describe", "runs/trainer.py:run"}
MOST_WITH_CONFIG = 30


def sources() -> dict[str, str]:
  return {str(p.relative_to(PACKAGE)): p.read_text() for p in sorted(PACKAGE.rglob("*.py"))}


def functions(files: dict[str, str]):
  for path, source in files.items():
    for node in ast.walk(ast.parse(source)):
      if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield f"{path}:{node.name}", node


def takes_config(files: dict[str, str]) -> list[str]:
  """Functions of which a parameter is the whole config."""
  pattern = re.compile(r"(?<![\w.])(config\.|config_lib\.)?Config(?!\w)")
  return [name for name, node in functions(files)
          if any(arg.annotation and pattern.search(ast.unparse(arg.annotation))
                 for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs))]


def config_outside_wiring(files: dict[str, str]) -> list[str]:
  return [name for name in takes_config(files)
          if not name.startswith("wiring/") and name not in COMMANDS]


def too_long(files: dict[str, str]) -> list[str]:
  """Functions whose code, without the docstring, is longer than a page."""
  lines = {}
  for name, node in functions(files):
    text = node.body[0] if ast.get_docstring(node) else None
    docstring = text.end_lineno - text.lineno + 1 if text else 0
    lines[name] = node.end_lineno - node.lineno + 1 - docstring
  return [f"{name} has {count} lines" for name, count in lines.items() if count > MOST_LINES]


def package_lines(files: dict[str, str]) -> int:
  return sum(len(source.splitlines()) for source in files.values())


def absent_pages(files: dict[str, str]) -> list[str]:
  """Citations such as "methods E3", whose page is not part of this repository."""
  return [path for path, text in files.items() if re.search(r"\bmethods,? [EAVS][0-9]", text)]


def test_the_whole_config_stays_in_wiring():
  assert config_outside_wiring(sources()) == []
  assert len(takes_config(sources())) <= MOST_WITH_CONFIG


def test_functions_fit_on_a_page():
  assert too_long(sources()) == []


def test_the_package_does_not_grow():
  assert package_lines(sources()) <= MOST_PACKAGE_LINES, (
      "the package grew. Fix: say in the commit what leaves, or move what is no part of an "
      "iteration to experiments/")


def test_every_cited_page_is_here():
  pages = [*ROOT.rglob("*.py"), *ROOT.rglob("*.md")]
  texts = {str(p.relative_to(ROOT)): p.read_text() for p in pages if p.name != "test_style.py"}
  assert absent_pages(texts) == []


@pytest.mark.parametrize("rule, bad", [
    (too_long, "def f():\n" + "  x = 1\n" * 60),
    (config_outside_wiring, "def f(cfg: Config | None): pass"),
    (absent_pages, '"""Source: methods E3.4."""'),
])
def test_the_rules_bite(rule, bad):
  assert rule({"x.py": bad}) and not rule({"x.py": "def f(a):\n  return a\n"})


def test_all_lines_of_all_files_count():
  assert package_lines({"a.py": "x = 1\n\n", "b.py": "# no code\n"}) == 3
