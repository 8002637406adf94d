"""The house rules that a reader can count: short functions, few parameters, few lambdas, no page
cited that is not here.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "jaxrl_llm"
MOST_LAMBDAS, MOST_PARAMETERS, MOST_LINES = 78, 8, 60
# Public entry points: each parameter is one thing that a caller says.
ENTRY_POINTS = {"rollouts/engine.py:run", "ops/token_stats.py:token_stats",
                "objective/row_stats.py:row_stats"}


def sources() -> dict[str, str]:
  return {str(p.relative_to(PACKAGE)): p.read_text() for p in sorted(PACKAGE.rglob("*.py"))}


def functions(files: dict[str, str]):
  for path, source in files.items():
    for node in ast.walk(ast.parse(source)):
      if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield f"{path}:{node.name}", node


def too_many_parameters(files: dict[str, str]) -> list[str]:
  found = []
  for name, node in functions(files):
    a = node.args
    names = [arg.arg for arg in (*a.posonlyargs, *a.args, *a.kwonlyargs) if arg.arg != "self"]
    if len(names) > MOST_PARAMETERS and name not in ENTRY_POINTS:
      found.append(f"{name} has {len(names)} parameters")
  return found


def too_long(files: dict[str, str]) -> list[str]:
  """Functions whose code, without the docstring, is longer than a page."""
  lines = {}
  for name, node in functions(files):
    text = node.body[0] if ast.get_docstring(node) else None
    docstring = text.end_lineno - text.lineno + 1 if text else 0
    lines[name] = node.end_lineno - node.lineno + 1 - docstring
  return [f"{name} has {count} lines" for name, count in lines.items() if count > MOST_LINES]


def lambdas(files: dict[str, str]) -> int:
  return sum(isinstance(node, ast.Lambda) for source in files.values()
             for node in ast.walk(ast.parse(source)))


def absent_pages(files: dict[str, str]) -> list[str]:
  """Citations such as "methods E3", whose page is not part of this repository."""
  return [path for path, text in files.items() if re.search(r"\bmethods,? [EAVS][0-9]", text)]


def test_functions_have_few_parameters():
  assert too_many_parameters(sources()) == []


def test_functions_fit_on_a_page():
  assert too_long(sources()) == []


def test_lambdas_are_rare():
  assert lambdas(sources()) <= MOST_LAMBDAS


def test_every_cited_page_is_here():
  pages = [*ROOT.rglob("*.py"), *ROOT.rglob("*.md")]
  texts = {str(p.relative_to(ROOT)): p.read_text() for p in pages if p.name != "test_style.py"}
  assert absent_pages(texts) == []


@pytest.mark.parametrize("rule, bad", [
    (too_many_parameters, "def f(a, b, c, d, e, *, f, g, h, i): pass"),
    (too_long, "def f():\n" + "  x = 1\n" * 60),
    (lambdas, "f = lambda: 1"),
    (absent_pages, '"""Source: methods E3.4."""'),
])
def test_the_rules_bite(rule, bad):
  assert rule({"x.py": bad}) and not rule({"x.py": "def f(a):\n  return a\n"})
