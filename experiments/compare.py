"""Compare runs: mean over seeds, with 95 % intervals, of runs that differ in nothing else.

  python experiments/compare.py runs/a runs/b runs/c --out=runs/compared
  python experiments/compare.py runs/* --metric=-eval/length --by=estimator.name,updates.staleness \
      --out=runs/compared

Prints a table; writes compare.png, compare.html and compare.md. Runs may have different lengths or
still be going on: a group is compared up to the last iteration that all its runs have logged.
"""

import argparse
import sys

from jaxrl_llm.config import ConfigError
from jaxrl_llm.reporting import compare
from jaxrl_llm.reporting.reader import RunError
from jaxrl_llm.store.folders import path_of


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("workdirs", nargs="+", help="folders of runs")
  parser.add_argument("--metric", default="eval/accuracy",
                      help="metric to compare; with a minus in front, lower is better")
  parser.add_argument("--by", default="", help="config keys that tell groups apart, by commas; "
                      "default: all in which the runs differ, apart from the seed")
  parser.add_argument("--out", required=True, help="folder to write")
  arguments = parser.parse_args()
  try:
    keys = [key.strip() for key in arguments.by.split(",") if key.strip()]
    out = path_of(arguments.out).resolve()  # a pattern finds it, too, the second time
    workdirs = [folder for folder in arguments.workdirs if path_of(folder).resolve() != out]
    print(compare.write(compare.compare(workdirs, arguments.metric, keys), arguments.out))
  except (ConfigError, RunError, OSError) as error:
    sys.exit(f"error: {error}")


if __name__ == "__main__":
  main()
