"""Measures executions per second of trivial programs in the Python sandbox.

  python experiments/bench/sandbox.py
  python experiments/bench/sandbox.py --workers 4 --programs 200 --repeats 9 --json out.json

Every repetition runs each row once, in turn, so that a slow moment of the machine meets all rows.
The start of the workers is not counted. The row `interpreter` starts a new `python -I -S` for every
program instead, without any limit.

Target: the row `sandbox` reaches at least 100 executions per second on 2 cores.
"""

import argparse
import concurrent.futures
import functools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

from jaxrl_llm.rollouts.tools import PythonSandbox

PROGRAM = "print(6 * 7)"


def interpreter(codes: list[str], workers: int) -> list[str]:
  """Returns the outputs of a new interpreter for each program."""
  with concurrent.futures.ThreadPoolExecutor(workers) as threads:
    return list(threads.map(interpret, codes))


def interpret(code: str) -> str:
  """Returns the output of a new interpreter."""
  command = [sys.executable, "-I", "-S", "-c", code]
  return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def rates(workers: int, programs: int, repeats: int) -> dict[str, list[float]]:
  """Returns executions per second, by row and repetition; raises if an output is wrong."""
  with PythonSandbox(workers) as sandbox, PythonSandbox(1) as single:

    def parallel(codes):
      return [result.output for result in sandbox.run_many(codes)]

    def sequential(codes):
      return [single.run(code).output for code in codes]

    rows = {"sandbox": parallel, "one worker": sequential,
            "interpreter": functools.partial(interpreter, workers=workers)}
    speeds = {name: [] for name in rows}
    for _ in range(repeats):
      for name, run in rows.items():
        begin = time.perf_counter()
        outputs = run([PROGRAM] * programs)
        speeds[name].append(programs / (time.perf_counter() - begin))
        if set(outputs) != {"42\n"}:
          raise RuntimeError(f"{name}: {PROGRAM!r} gave {sorted(set(outputs))}")
    print(f"without isolation by: {', '.join(sandbox.isolation.missing) or 'nothing'}\n")
  return speeds


def table(speeds: dict[str, list[float]]) -> str:
  lines = ["| row | executions per second, median | smallest | largest |", "|---|---|---|---|"]
  lines += [f"| {name} | {statistics.median(row):.0f} | {min(row):.0f} | {max(row):.0f} |"
            for name, row in speeds.items()]
  return "\n".join(lines)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--workers", type=int, default=2, help="workers of the sandbox (default 2)")
  parser.add_argument("--programs", type=int, default=100,
                      help="programs per repetition and row (default 100)")
  parser.add_argument("--repeats", type=int, default=5, help="repetitions (default 5)")
  parser.add_argument("--json", type=Path, help="file of all numbers")
  args = parser.parse_args()
  for name in ("workers", "programs", "repeats"):
    if getattr(args, name) < 1:
      parser.error(f"--{name} {getattr(args, name)}: must be at least 1")
  speeds = rates(args.workers, args.programs, args.repeats)
  print(table(speeds))
  if args.json:
    environment = {"python": platform.python_version(), "system": platform.platform(),
                   "cores": len(os.sched_getaffinity(0))}
    result = {"workers": args.workers, "programs": args.programs, "executions_per_second": speeds,
              "environment": environment}
    args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
  main()
