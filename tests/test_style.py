"""The house rules that a reader can count: short functions, few parameters, few lambdas, no page
cited that is not here.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "jaxrl_llm"
MOST_LAMBDAS, MOST_PARAMETERS, MOST_LINES = 78, 6, 60
# Public entry points and decorators: each parameter is one thing that a caller says.
ENTRY_POINTS = {
    "fields.py:option", "models/transformer.py:hidden_states",
    "objective/advantages/registry.py:register", "objective/estimators/adaptive.py:clip_cov",
    "objective/estimators/registry.py:register", "objective/row_stats.py:row_stats",
    "objective/row_stats.py:state_distance", "objective/terms.py:register",
    "ops/token_stats.py:token_stats", "rollouts/engine.py:run", "rollouts/engine.py:run_on",
    "rollouts/engines.py:run", "rollouts/sampler.py:generate", "training/score.py:score",
    "training/train_step.py:gradients",
    "training/train_step.py:train_step",
}
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


def too_many_parameters(files: dict[str, str]) -> list[str]:
  found = []
  for name, node in functions(files):
    a = node.args
    names = [arg.arg for arg in (*a.posonlyargs, *a.args, *a.kwonlyargs) if arg.arg != "self"]
    if len(names) > MOST_PARAMETERS and name not in ENTRY_POINTS:
      found.append(f"{name} has {len(names)} parameters")
  return found


def takes_config(files: dict[str, str]) -> list[str]:
  """Functions of which a parameter is the whole config."""
  whole = re.compile(r"(?<![\w.])(config\.|config_lib\.)?Config(?!\w)")
  return [name for name, node in functions(files)
          if any(arg.annotation and whole.search(ast.unparse(arg.annotation))
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


def lambdas(files: dict[str, str]) -> int:
  return sum(isinstance(node, ast.Lambda) for source in files.values()
             for node in ast.walk(ast.parse(source)))


def absent_pages(files: dict[str, str]) -> list[str]:
  """Citations such as "methods E3", whose page is not part of this repository."""
  return [path for path, text in files.items() if re.search(r"\bmethods,? [EAVS][0-9]", text)]


def test_functions_have_few_parameters():
  assert too_many_parameters(sources()) == []


def test_the_whole_config_stays_in_wiring():
  assert config_outside_wiring(sources()) == []
  assert len(takes_config(sources())) <= MOST_WITH_CONFIG


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
    (config_outside_wiring, "def f(cfg: Config | None): pass"),
    (lambdas, "f = lambda: 1"),
    (absent_pages, '"""Source: methods E3.4."""'),
])
def test_the_rules_bite(rule, bad):
  assert rule({"x.py": bad}) and not rule({"x.py": "def f(a):\n  return a\n"})
