"""Data flows one way: who may import whom (and that the rule bites)."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "jaxrl_llm"
BASE = {"types", "config", "fields", "late", "method_numbers", "registry"}
PARTS = {"training", "objective", "models", "parallel", "rollouts", "tasks", "grading", "sandbox",
         "reporting", "store", "ops"}
ALLOWED = {
    "types": set(),
    "fields": set(),
    "late": set(),
    "method_numbers": {"fields"},
    "registry": {"fields", "method_numbers"},
    "config": {"fields", "late", "registry"},
    "presets": BASE,
    "register": {"wiring", "training", "objective", "ops", "rollouts", "tasks", "grading",
                 "reporting"} | BASE,
    "ops": BASE,
    "grading": {"sandbox"} | BASE,
    "sandbox": BASE,
    "parallel": {"ops"} | BASE,
    "objective": {"ops"} | BASE,
    "models": {"ops", "parallel"} | BASE,
    "rollouts": {"models", "ops", "parallel", "sandbox"} | BASE,
    "tasks": {"grading", "sandbox"} | BASE,
    "store": {"parallel"} | BASE,
    "reporting": {"store"} | BASE,
    "training": {"objective", "models", "parallel", "ops"} | BASE,
    "wiring": PARTS | BASE,
    "runs": {"wiring"} | PARTS | BASE,
}


# Its clients in experiments/, and which of them one may import; the package imports none.
CLIENTS = {"commands": set(), "planning": set(), "report": set(),
           "families": {"planning", "tables_lib"},
           "tables_lib": {"commands", "report"}, "papers": {"report", "tables_lib"},
           "smollm2": {"commands", "report", "tables_lib"}, "tasks": set(), "writers": set()}


def modules(source: str):
  """The names of all modules that a file imports, wherever in the file."""
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, "relative imports hide the package"
      names = (f"{node.module}.{alias.name}" for alias in node.names)
      yield from names if node.module in ("jaxrl_llm", "experiments") else (node.module,)


def rooms(source: str, of: str) -> set[str]:
  """What a file imports of jaxrl_llm or of experiments: the part after the first dot."""
  return {name.split(".")[1] for name in modules(source) if name.startswith(f"{of}.")}


def violations(files: dict[str, str]) -> list[str]:
  """Imports that are not allowed, of files by their path in the repository."""
  out = []
  for path, source in files.items():
    top, room = path.removesuffix(".py").split("/")[:2]
    allowed = {"jaxrl_llm": set(ALLOWED), "experiments": CLIENTS.get(room, set())}
    if top == "jaxrl_llm":
      allowed = {"jaxrl_llm": ALLOWED.get(room, set()), "experiments": set()}
    allowed[top] = allowed[top] | {room}
    out += [f"{path} imports {of}.{other}" for of in allowed
            for other in sorted(rooms(source, of) - allowed[of])]
  return out


def files_below(*folders: Path) -> dict[str, str]:
  return {str(path.relative_to(ROOT)): path.read_text() for folder in folders
          for path in folder.rglob("*.py")}


def test_imports_point_downwards():
  files = files_below(PACKAGE, *(ROOT / "experiments" / client for client in CLIENTS))
  folders = {tuple(file.removesuffix(".py").split("/")[:2]) for file in files}
  assert folders - {("jaxrl_llm", "__init__")} == (
      {("jaxrl_llm", room) for room in ALLOWED} | {("experiments", room) for room in CLIENTS})
  assert violations(files) == []


@pytest.mark.parametrize("path, source, module", [
    ("jaxrl_llm/ops/x.py", "from jaxrl_llm.objective import loss", "jaxrl_llm.objective"),
    ("jaxrl_llm/ops/x.py", "from jaxrl_llm import objective", "jaxrl_llm.objective"),
    ("jaxrl_llm/tasks/x.py", "def f():\n  import jaxrl_llm.models.transformer",
     "jaxrl_llm.models"),
    ("jaxrl_llm/runs/x.py", "from experiments.tables_lib import sweeps", "experiments.tables_lib"),
    ("jaxrl_llm/__init__.py", "from experiments import planning", "experiments.planning"),
    ("experiments/tables_lib/x.py", "import experiments.papers.occ", "experiments.papers"),
    ("experiments/papers/occ/x.py", "from experiments import tables", "experiments.tables"),
])
def test_the_rule_bites(path, source, module):
  assert violations({path: source}) == [f"{path} imports {module}"]


def test_experiments_load_recipes_by_their_file():
  """`configs` is no installed package: an import of it fails in a command that is a script."""
  files = files_below(ROOT / "experiments") | files_below(PACKAGE)
  assert [path for path, source in files.items() if imports_configs(source)] == []
  assert imports_configs("from configs import quickstart") and imports_configs("import configs.cpu")


def imports_configs(source: str) -> bool:
  return any(name.partition(".")[0] == "configs" for name in modules(source))


def texts_of_papers(source: str, papers: set[str]) -> list[str]:
  """The texts of a file that are a paper's name, or name something in experiments/."""
  texts = [node.value for node in ast.walk(ast.parse(source))
           if isinstance(node, ast.Constant) and isinstance(node.value, str)]
  return [text for text in texts if text in papers or text.startswith("experiments.")]


def test_the_package_knows_no_paper():
  papers = {path.parent.name for path in ROOT.glob("experiments/papers/*/method.md")}
  assert len(papers) >= 10
  assert {path: texts for path, source in files_below(PACKAGE).items()
          if (texts := texts_of_papers(source, papers))} == {}
  assert texts_of_papers('if name == "pipo":\n  load("experiments.papers.pipo")', papers) == [
      "pipo", "experiments.papers.pipo"]


def other_papers(files: dict[str, str]) -> list[str]:
  """Imports of a paper in another one's folder, of files by their path in the repository."""
  return [f"{path} imports {name}" for path, source in files.items() for name in modules(source)
          if name.startswith("experiments.papers.") and path.split("/")[2] != name.split(".")[2]]


def test_a_paper_imports_no_other():
  assert other_papers(files_below(ROOT / "experiments/papers")) == []
  assert other_papers({"experiments/papers/tvm/x.py": "import experiments.papers.tvm.walks, os\n"
                       "from experiments.papers.arca import residual"}) == [
      "experiments/papers/tvm/x.py imports experiments.papers.arca"]


def test_tasks_transform_nothing():
  for path in (PACKAGE / "tasks").rglob("*.py"):
    assert "jax" not in {name.split(".")[0] for name in modules(path.read_text())}, path
