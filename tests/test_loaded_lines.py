"""How much of the package one run loads, a ceiling that only falls: whoever adds says what leaves."""

import subprocess
import sys
from pathlib import Path

import programs

ROOT = Path(__file__).parent.parent
MOST_LINES = 39000
SIZES = ("--config.iterations=1", "--config.warm_start.steps=1", "--config.warm_start.batch_size=2",
         "--config.model.width=8", "--config.model.num_layers=1", "--config.model.head_dim=4",
         "--config.model.mlp_width=8", "--config.rollout.prompts=4", "--config.rollout.group_size=2",
         "--config.task.heldout_problems=4", "--config.evaluation.samples=1")
# Runs the command, then prints the files of the package that were imported.
SCRIPT = """
import runpy, sys
try:
  runpy.run_path(sys.argv[0], run_name="__main__")
finally:
  print(*(module.__file__ for name, module in list(sys.modules.items())
          if name.split(".")[0] in ("jaxrl_llm", "experiments") and getattr(module, "__file__", None)),
        sep="\\n")
"""


def loaded_files(folder: Path) -> list[Path]:
  """Returns the files of the package that a quickstart run of ctpo imports."""
  flags = ["--config=configs/quickstart.py:ctpo", f"--workdir={folder}", *SIZES]
  script = f"import sys\nsys.argv = sys.argv[1:]\nsys.path[:0] = ['.', 'experiments']\n{SCRIPT}"
  done = subprocess.run([sys.executable, "-c", script, "experiments/main.py", *flags], cwd=ROOT,
                        env=programs.environment(), capture_output=True, text=True, check=False)
  assert (folder / "metrics.jsonl").exists(), done.stderr[-2000:]
  return [Path(line) for line in done.stdout.splitlines() if line.endswith(".py")]


def test_a_quickstart_run_loads_few_lines(tmp_path):
  files = loaded_files(tmp_path / "run")
  of_package = [path for path in files if ROOT / "jaxrl_llm" in path.parents]
  assert len(of_package) > 100, "a run imports more than that"
  assert sum(len(path.read_text().splitlines()) for path in of_package) <= MOST_LINES
