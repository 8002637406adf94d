"""The lines that one run loads, of the package, of what commands share and of the report: a ceiling
that only falls (CONTRIBUTING.md).
"""

import subprocess
import sys
from pathlib import Path

import programs

ROOT = Path(__file__).parent.parent
PACKAGE, CLIENTS = ROOT / "jaxrl_llm", ROOT / "experiments"
COMMANDS = {CLIENTS / "commands", CLIENTS / "report"}
MOST_LINES, MOST_WITH_COMMANDS = 19783, 21835
FLAGS = ("--config=configs/quickstart.py:ctpo", *(f"--config.{key}" for key in (
    "iterations=1", "warm_start.steps=1", "warm_start.batch_size=2", "model.width=8",
    "model.num_layers=1", "model.head_dim=4", "model.mlp_width=8", "rollout.prompts=4",
    "rollout.group_size=2", "task.heldout_problems=4", "evaluation.samples=1")))
# Runs a command, then prints the files of the modules that were imported.
SCRIPT = """
import runpy, sys
sys.argv = sys.argv[1:]
sys.path[:0] = [".", "experiments"]
try:
  runpy.run_path(sys.argv[0], run_name="__main__")
finally:
  files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
  print(*filter(None, files), sep="\\n")
"""


def loaded(folder: Path, *command: str) -> list[Path]:
  """Returns the files below a folder that a command of Python imports, itself left out."""
  done = subprocess.run([sys.executable, "-c", SCRIPT, *command], cwd=ROOT, text=True, check=False,
                        env=programs.environment(), capture_output=True)
  assert done.returncode == 0, done.stderr[-2000:]
  return [Path(line) for line in done.stdout.splitlines()
          if line.endswith(".py") and folder in Path(line).parents]


def lines(files: list[Path]) -> int:
  return sum(len(file.read_text().splitlines()) for file in files)


def test_a_quickstart_run_loads_few_lines(tmp_path):
  files = loaded(ROOT, "experiments/main.py", f"--workdir={tmp_path / 'run'}", *FLAGS)
  assert (tmp_path / "run/metrics.jsonl").exists()
  of_package = [file for file in files if PACKAGE in file.parents]
  of_commands = [file for file in files if COMMANDS & {*file.parents}]
  assert len(of_package) > 100 and lines(of_package) <= MOST_LINES
  assert lines(of_package + of_commands) <= MOST_WITH_COMMANDS
  others = [file for file in files if CLIENTS in file.parents and file not in of_commands]
  assert of_commands and others == [], "a run needs no other client"


def test_what_a_command_imports_is_counted(tmp_path):
  """On its way, too: by the modules that it names and by those that they name."""
  command = tmp_path / "command.py"
  command.write_text("import jaxrl_llm.method_numbers\nfrom experiments.planning import targets\n")
  files = {file.name: file for file in loaded(ROOT, str(command))}
  assert {"method_numbers.py", "fields.py", "targets.py"} <= set(files)
  assert lines([PACKAGE / "fields.py", PACKAGE / "method_numbers.py"]) > 300
