"""Data flows one way: who may import whom (and that the rule bites)."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "jaxrl_llm"
EXPERIMENTS = PACKAGE.parent / "experiments"
BASE = {"types", "config", "fields", "method_numbers", "registry"}
PARTS = {"training", "objective", "models", "parallel", "rollouts", "tasks", "grading", "sandbox",
         "reporting", "store", "ops"}
ALLOWED = {
    "types": set(),
    "fields": set(),
    "moved": set(),
    "method_numbers": {"fields"},
    "registry": {"fields", "method_numbers"},
    "config": {"fields", "registry"},
    "presets": BASE,
    "register": {"build", "training", "objective", "rollouts", "tasks", "grading",
                 "reporting"} | BASE,
    "ops": BASE,
    "grading": BASE,
    "sandbox": BASE,
    "parallel": {"ops"} | BASE,
    "objective": {"ops"} | BASE,
    "models": {"ops", "parallel"} | BASE,
    "rollouts": {"models", "ops", "parallel", "sandbox"} | BASE,
    "tasks": {"grading"} | BASE,
    "store": {"parallel"} | BASE,
    "reporting": {"store"} | BASE,
    "training": {"objective", "models", "parallel", "ops"} | BASE,
    "build": PARTS | BASE,
    "runs": {"build"} | PARTS | BASE,
    "lab": {"presets", "runs", "build"} | PARTS | BASE,
    "benchmark": {"runs", "build"} | PARTS | BASE,
}


def packages(source: str) -> set[str]:
  """Packages of jaxrl_llm that a file imports, wherever in the file."""
  found = set()
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom) and node.module:
      found |= {node.module} if node.module != "jaxrl_llm" else {
          f"jaxrl_llm.{alias.name}" for alias in node.names
      }
      assert node.level == 0, "relative imports hide the package"
  return {name.split(".")[1] for name in found if name.startswith("jaxrl_llm.")}


def violations(files: dict[str, str]) -> list[str]:
  out = []
  for path, source in files.items():
    package = path.split("/")[0].removesuffix(".py")
    if package != "__init__":
      out += [f"{path} imports {other}"
              for other in sorted(packages(source) - ALLOWED[package] - {package})]
    if any(name.split(".")[0] == "experiments" for name in _modules(source)):
      out.append(f"{path} imports experiments")
  return out


def test_imports_point_downwards():
  files = {str(p.relative_to(PACKAGE)): p.read_text() for p in PACKAGE.rglob("*.py")}
  assert {f.split("/")[0].removesuffix(".py") for f in files} - {"__init__"} <= set(ALLOWED)
  assert violations(files) == []


def test_the_rule_bites():
  assert violations({"ops/x.py": "from jaxrl_llm.objective import loss"
                    }) == ["ops/x.py imports objective"]
  assert violations({"lab/x.py": "from experiments.planning import plan"
                    }) == ["lab/x.py imports experiments"]
  assert violations({"tasks/x.py": "def f():\n  import jaxrl_llm.models.transformer"
                    }) == ["tasks/x.py imports models"]


def texts_of_papers(source: str, papers: set[str]) -> list[str]:
  """The texts of a file that are a paper's name, or name something in experiments/."""
  texts = [node.value for node in ast.walk(ast.parse(source))
           if isinstance(node, ast.Constant) and isinstance(node.value, str)]
  return [text for text in texts if text in papers or text.startswith("experiments.")]


def test_the_package_knows_no_paper():
  papers = {path.parent.name for path in EXPERIMENTS.glob("papers/*/method.md")}
  assert len(papers) >= 10
  assert {str(path): texts for path in PACKAGE.rglob("*.py")
          if (texts := texts_of_papers(path.read_text(), papers))} == {}
  assert texts_of_papers('if name == "pipo":\n  load("experiments.papers.pipo")', papers) == [
      "pipo", "experiments.papers.pipo"]


def clients_of_papers(files: dict[str, str]) -> list[str]:
  """The imports of a paper in experiments/, but for its folder's, examples and the credit table."""
  imports = [(path, name) for path, source in files.items() for name in _modules(source)
             if (name or "").startswith("experiments.papers.")]
  return [f"{path} imports {name}" for path, name in imports
          if not path.startswith((f"papers/{name.split('.')[2]}/", "extend/", "credit/"))]


def test_a_paper_is_imported_by_its_folder():
  files = {str(path.relative_to(EXPERIMENTS)): path.read_text()
           for path in EXPERIMENTS.rglob("*.py")}
  assert clients_of_papers(files) == []
  assert clients_of_papers({"planning/x.py": "from experiments.papers.occ import losses",
                            "papers/tvm/x.py": "import experiments.papers.arca",
                            "papers/occ/x.py": "from experiments.papers.occ import losses"}) == [
      "planning/x.py imports experiments.papers.occ",
      "papers/tvm/x.py imports experiments.papers.arca"]


def test_tasks_transform_nothing():
  for path in (PACKAGE / "tasks").rglob("*.py"):
    assert "jax" not in {n.split(".")[0] for n in _modules(path.read_text())}, path


def _modules(source):
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield node.module
