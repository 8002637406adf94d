"""Processor seconds from the command to the end of the first iteration, with warm caches.

  python experiments/bench/startup.py --repeats=5

Starts configs/quickstart.py with JAX's compilation cache (`jax` in results/startup.json; `kept`
were programs that needed no tracing, which is no longer there). One start, which is not counted,
fills the caches, Python's own for modules among them, and trains the warm start. Adds to
results/startup.json, by commit, and writes the table of README.md.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from experiments.tables_lib.page_parts import replace_part
from jaxrl_llm.reporting.tables import markdown_table

ROOT = Path(__file__).parents[2]
RESULT = Path(__file__).parent / "results" / "startup.json"
TICK = os.sysconf("SC_CLK_TCK")


def seconds_of(process: int) -> float:
  """Returns the processor seconds of a process and its threads so far."""
  fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
  return (int(fields[11]) + int(fields[12])) / TICK


def start(workdir: Path, environment: dict[str, str]) -> float:
  """Returns processor seconds until the first iteration is in metrics.jsonl, and ends the run."""
  command = [sys.executable, "experiments/main.py", "--config=configs/quickstart.py",
             f"--workdir={workdir}"]
  with (tempfile.TemporaryFile() as output,
        subprocess.Popen(command, cwd=ROOT, env=os.environ | environment, stdout=output,
                         stderr=subprocess.STDOUT) as process):
    while process.poll() is None:
      if iterations(workdir / "metrics.jsonl"):
        seconds = seconds_of(process.pid)
        process.terminate()
        return seconds
      time.sleep(0.02)
    output.seek(0)
    raise RuntimeError(f"{' '.join(command)} ended early: {output.read().decode()[-2000:]}")


def iterations(file: Path) -> int:
  """Returns the last iteration that a run has written; 0 before the first."""
  try:
    lines = file.read_text().splitlines()
  except OSError:
    return 0
  return max((json.loads(line)["iteration"] for line in lines if line.endswith("}")), default=0)


def measure(repeats: int) -> dict[str, list[float]]:
  """Returns the seconds of `repeats` starts, by the kind of programs."""
  seconds = []
  with tempfile.TemporaryDirectory() as folder:
    environment = {"JAXRL_LLM_CACHE": f"{folder}/cache", "PYTHONDONTWRITEBYTECODE": "",
                   "PYTHONPYCACHEPREFIX": f"{folder}/modules"}
    for repeat in range(repeats + 1):
      result = start(Path(folder) / f"start_{repeat}", environment)
      if repeat:
        seconds.append(round(result, 2))
  return {"jax": seconds}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--repeats", type=int, default=5)
  seconds = measure(parser.parse_args().repeats)
  commit = subprocess.run(("git", "rev-parse", "--short", "HEAD"), cwd=ROOT, check=True, text=True,
                          capture_output=True).stdout.strip()
  results = json.loads(RESULT.read_text()) if RESULT.exists() else {}
  results[commit] = seconds
  RESULT.write_text(json.dumps(results, indent=2) + "\n")
  rows = [(at, name, f"{statistics.median(values):.2f}",
           f"{min(values):.2f} to {max(values):.2f}", len(values))
          for at, ways in results.items() for name, values in ways.items()]
  table = markdown_table(("commit", "programs from", "median, s", "range", "starts"), rows)
  replace_part(RESULT.parents[1] / "README.md", "startup.py", table)
  print(table)


if __name__ == "__main__":
  main()
