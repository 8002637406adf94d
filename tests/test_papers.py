"""Papers can be taken out: the core names none of them, imports none, and runs without them.

A paper imports the core; what a config value or preset of it loads stands in paper_table.py, the
one file of the core that may name papers.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import programs
import pytest
from suites import all_papers

from jaxrl_llm import paper_table

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "jaxrl_llm"
FOLDERS = sorted(path.parent.name for path in (PACKAGE / "papers").glob("*/__init__.py"))

# What speaks of a paper: its name, its arXiv id, and names of its own. The module that predicts two
# tokens ahead (multi-token prediction, 2412.19437) is a part of the network, and no word of OCC;
# `parameters.head_rows` trains rows of any head, and is none of the paper on counting. "Judge",
# "budget", "counting" and "pruning" are words of the core's other subjects.
WORDS = {
    "arca": ("arca", "adapter[_ ]residuals?", "token[_ ]credit", "reference_gap", "entropy_drop",
             "effective_tokens", "planted_adapter", "2606.00257"),
    "budgets": ("project_to_budget", "fastforward", "channel_scores", "best_channels",
                "2511.18977"),
    "counting": ("readout", "linear probes?", "fit_probe", "chance_alignment", "2605.03258"),
    "critical_tokens": ("cdpo", "dpo", "rpo", "critical[_ ]tokens?", "contrastive[_ ]scores?",
                        "preference[_ ](?:pairs?|loss)", "2411.19943", "2305.18290", "2404.19733"),
    "judges": ("tournaments?", "dgr", "deconflicted", "copeland", "taming the judge",
               "conflict_rate", "2510.15514"),
    "number_tokens": ("number[_ ]tokens?", "triadic", "tst", "tstnumbercodec", "2604.11582"),
    "occ": ("occ", "mtp_(?:ce|detach|policy)", "optimal coefficient", "lambda_plus", "calibrate",
            "mtp_coefficient", "mtp_gradients", "2605.28184"),
    "pipo": ("pipo", "negative_slope", "xi_clip", "2604.00860"),
    "soft_tokens": ("soft[_ ]tokens?", "soft[_ ]thoughts?", "softrollout", "soft_loss",
                    "soft_runs", "hard truths", "gaussian_step_logp", "2509.19170"),
    "tvm": ("tvm", "ovm", "value[_ ]labels?", "value[_ ]models?", "beam[_ ]search",
            "best[_ ]of[_ ]n", "weighted[_ ]votes?", "2407.12863", "2311.09724"),
}
TABLE = "paper_table.py"


def pattern(words) -> re.Pattern:
  """Returns a pattern of words; an underscore ends a word, so that `has_x` speaks of x."""
  joined = "|".join(word.replace(".", r"\.") for word in words)
  return re.compile(rf"(?<![A-Za-z0-9])(?:{joined})(?![A-Za-z0-9])", re.I)


def offenders(files: dict[str, str], words: dict[str, tuple] = WORDS) -> list[str]:
  """Returns the lines of files, by path, that speak of a paper: "path:line (paper): text"."""
  patterns = {paper: pattern(of_paper) for paper, of_paper in words.items()}
  return [f"{path}:{number} ({paper}): {line.strip()[:90]}"
          for path, text in sorted(files.items())
          for number, line in enumerate(text.splitlines(), 1)
          for paper, speaks in patterns.items() if speaks.search(line)]


def core(suffixes=(".py", ".md", ".html")) -> dict[str, str]:
  """Returns the text of every file of the core by its path in the package."""
  paths = [path for path in PACKAGE.rglob("*") if path.suffix in suffixes]
  texts = {str(path.relative_to(PACKAGE)): path.read_text() for path in paths}
  return {path: text for path, text in texts.items() if not path.startswith("papers/")}


@all_papers
def test_every_paper_has_words_and_a_page():
  assert sorted(WORDS) == FOLDERS and len(FOLDERS) >= 10
  assert {folder for folder, _, _ in paper_table.PAPERS} <= set(FOLDERS)
  for name in FOLDERS:
    page = (PACKAGE / "papers" / name / "README.md").read_text()
    assert page.count("\n") <= 60 and "**Claim.**" in page and "\n    " in page, name
    assert f"(../../../experiments/papers/{name}/README.md)" in page, name
    for target in re.findall(r"\]\(([^)#:]+)\)", page):
      assert (PACKAGE / "papers" / name / target).exists(), f"{name}: {target}"
    prose = [line for line in page.splitlines() if not line.startswith("|") and "](" not in line]
    assert max(map(len, prose)) <= 100, name
    modules = {path.name for path in (PACKAGE / "papers" / name).glob("*.py")} - {"__init__.py"}
    assert {m for m in modules if f"({m})" not in page} == set(), name
    assert offenders({"page": page}, {name: WORDS[name]}), f"{name}: a word of it stands nowhere"


def test_no_word_of_a_paper_in_a_core_room():
  files = core()
  assert len(files) > 200
  assert offenders({path: text for path, text in files.items() if path != TABLE}) == []


@pytest.mark.parametrize(("line", "paper"), [
    ("if cfg.has_pipo:", "pipo"),
    ("PIPO's step comes first", "pipo"),
    ('needs={"adapter_residual"}', "arca"),
    ("the coefficient of OCC", "occ"),
    ("from x import mtp_ce", "occ"),
    ("soft tokens are vectors", "soft_tokens"),
    ("Source: arXiv 2407.12863.", "tvm"),
    ("a tournament of rows", "judges"),
])
def test_the_rule_of_words_bites(line, paper):
  assert offenders({"runs/x.py": f"ok\n{line}"}) == [f"runs/x.py:2 ({paper}): {line}"]


def test_the_rule_of_words_leaves_other_words_alone():
  for line in ("occurs once", "is fixed by arcade", "model.mtp reads mtp_log_probs",
               "parameters.head_rows", "the token budget", "a judge's verdict",
               "124070128631"):
    assert offenders({"x.py": line}) == [], line


def test_the_table_names_papers():
  """Otherwise the words would be the wrong ones."""
  assert {"arca", "occ", "pipo"} <= {
      paper for paper in WORDS if pattern(WORDS[paper]).search(core()[TABLE])}


def imports_of_papers(source: str) -> list[int]:
  """Returns the lines of a file that import a paper, wherever in the file, or name one as a module.
  """
  lines = []
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      named = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      named = [f"{node.module}.{alias.name}" for alias in node.names]
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
      named = [node.value]
    else:
      continue
    if any(re.match(r"jaxrl_llm\.papers(\.|$)", name) for name in named):
      lines.append(node.lineno)
  return lines


def test_the_core_imports_no_paper():
  assert {path: lines for path, text in core((".py",)).items()
          if path != TABLE and (lines := imports_of_papers(text))} == {}


@pytest.mark.parametrize("source", [
    "import experiments.papers.occ", "from jaxrl_llm import papers",
    "from experiments.papers import occ",
    "def f():\n  from experiments.papers.occ import losses",
    'import importlib\nimportlib.import_module("experiments.papers.occ")'])
def test_the_rule_of_imports_bites(source):
  assert len(imports_of_papers(source)) == 1
  assert imports_of_papers(source.replace("papers", "tasks")) == []


# --- folders taken out of a copy


def copy_package(folder: Path) -> Path:
  shutil.copytree(PACKAGE, folder / "jaxrl_llm", ignore=shutil.ignore_patterns("__pycache__"))
  return folder


def without(folder: Path, *command: str) -> subprocess.CompletedProcess:
  """Runs Python in a copy of the package, which is the only one that can be imported."""
  environment = os.environ | programs.ENVIRONMENT | {
      "PYTHONPATH": os.pathsep.join([str(folder), programs.ENVIRONMENT["PYTHONPATH"]]),
      "PYTHONDONTWRITEBYTECODE": "1"}
  return subprocess.run([sys.executable, *command], cwd=folder, env=environment,
                        capture_output=True, text=True, timeout=900, check=False)


@pytest.fixture(scope="module")
def remains(tmp_path_factory) -> dict[str, dict]:
  """What is left of a copy by the paper that was removed; "nothing" and "all" are two further."""
  folder = copy_package(tmp_path_factory.mktemp("copy"))
  done = without(folder, str(ROOT / "tests/papers_removed.py"), str(folder))
  assert done.returncode == 0, done.stderr[-2000:]
  lines = [json.loads(line) for line in done.stdout.splitlines()]
  return {line.pop("removed"): line for line in lines}


def brings(kind: str, *papers: str) -> set[str]:
  return {name for folder, of, names in paper_table.PAPERS for name in names
          if of == kind and folder in papers}


@pytest.mark.slow
@pytest.mark.parametrize("removed", [*FOLDERS, "all"])
def test_a_paper_can_be_removed(remains, removed):
  """Every other module imports, the tables lose its names and no others, and so does the listing.
  """
  complete, left = remains["nothing"], remains[removed]
  gone = FOLDERS if removed == "all" else [removed]
  assert complete["failed"] == left["failed"] == []
  for kind, names in complete["names"].items():
    assert set(names) - set(left["names"][kind]) == brings(kind, *gone), kind
    assert set(left["names"][kind]) <= set(names), kind
  keys = set(complete["keys"]) - set(left["keys"])
  assert {key.split(".")[0] for key in keys} <= {"term", "transform", "advantage"}
  assert not {name for name in left["loaded"] if name.split(".")[2] in gone}
  if {"occ", "pipo"} & set(gone):
    assert keys


@pytest.mark.slow
def test_all_papers_were_there_before(remains):
  """Otherwise nothing was removed."""
  loaded = {name.split(".")[2] for name in remains["nothing"]["loaded"]}
  assert loaded == set(FOLDERS) and remains["all"]["loaded"] == []
  assert {"pipo", "arca"} <= set(remains["nothing"]["names"]["preset"])


@pytest.mark.paper("judges")
def test_a_core_that_reads_a_paper_fails_without_it(tmp_path):
  """A knot that is tied on purpose."""
  folder = copy_package(tmp_path)
  with open(folder / "jaxrl_llm/ops/rows.py", "a") as file:
    file.write("\nfrom experiments.papers.judges import tournaments\n")
  shutil.rmtree(folder / "jaxrl_llm/papers/judges")
  done = without(folder, "-c", "import jaxrl_llm.ops.rows")
  assert done.returncode == 1 and "experiments.papers.judges" in done.stderr


@pytest.mark.slow
def test_a_run_without_any_paper(tmp_path):
  folder = copy_package(tmp_path)
  for name in FOLDERS:
    shutil.rmtree(folder / "jaxrl_llm/papers" / name)
  shutil.copy(ROOT / "experiments/main.py", folder)
  config = ROOT / "tests/runs/tiny.py"
  done = without(folder, "main.py", f"--config={config}:grpo",
                 f"--workdir={folder / 'run'}", "--config.iterations=2")
  assert done.returncode == 0, done.stderr[-2000:]
  lines = (folder / "run/metrics.jsonl").read_text().splitlines()
  assert [json.loads(line)["iteration"] for line in lines][-1] == 2
  refused = without(folder, "main.py", f"--config={config}:pipo",
                    f"--workdir={folder / 'other'}")
  assert refused.returncode == 1 and "preset 'pipo': known are" in refused.stderr


# --- what CHANGELOG says of names


def test_the_version_has_a_section_of_changes():
  version = re.search(r'version="(.*?)"', (ROOT / "setup.py").read_text())[1]
  text = (ROOT / ".github/CHANGELOG.md").read_text()
  assert re.findall(r"^## (\S+)", text, re.M)[0] == version
