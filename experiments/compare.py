"""Compare runs: mean over seeds, with 95 % intervals, of runs that differ in nothing else.

Train with some methods, one after the other, and see them side by side; then any runs there are:

  python experiments/compare.py --train=rloo,gspo --config=configs/offpolicy.py \
      --config.iterations=40 --metric=eval/avg@8 --out=runs/compared
  python experiments/compare.py runs/* --metric=-eval/length --by=estimator.name,updates.staleness \
      --out=runs/compared

Prints a table; writes compare.png, compare.html and compare.md. Runs may have different lengths or
still be going on: a group is compared up to the last iteration that all its runs have logged.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from jaxrl_llm.config import ConfigError
from jaxrl_llm.reporting import compare
from jaxrl_llm.reporting.reader import RunError
from jaxrl_llm.runs.command_line import with_fix
from jaxrl_llm.store.folders import path_of

MAIN = Path(__file__).with_name("main.py")


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("workdirs", nargs="*", help="folders of runs")
  parser.add_argument("--train", default="", metavar="PRESETS", help="presets of --config, by "
                      "commas: trains one run for each, in folders of --out; other flags "
                      "--config.<key>=<value> hold for all of them")
  parser.add_argument("--config", default="configs/offpolicy.py", help="config of --train")
  parser.add_argument("--metric", default="eval/accuracy",
                      help="metric to compare; with a minus in front, lower is better")
  parser.add_argument("--by", default="", help="config keys that tell groups apart, by commas; "
                      "default: all in which the runs differ, apart from the seed")
  parser.add_argument("--out", required=True, help="folder to write")
  arguments, flags = parser.parse_known_args()
  presets = [name.strip() for name in arguments.train.split(",") if name.strip()]
  _check(parser, arguments, presets, flags)
  trained = [_trained(arguments, preset, flags) for preset in presets]
  try:
    keys = [key.strip() for key in arguments.by.split(",") if key.strip()]
    out = path_of(arguments.out).resolve()  # a pattern finds it, too, the second time
    workdirs = [folder for folder in arguments.workdirs if path_of(folder).resolve() != out]
    labels = presets if presets and not workdirs and not keys else ()
    comparison = compare.compare(workdirs + trained, arguments.metric, keys, labels)
    text = compare.write(comparison, arguments.out)
    print(f"{text}\npage: {os.path.join(arguments.out, 'compare.html')}")
  except (ConfigError, RunError, OSError) as error:
    sys.exit(f"error: {with_fix(error)}")


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace, presets: list[str],
           flags: list[str]) -> None:
  """Refuses what neither --train nor a comparison reads."""
  foreign = [flag for flag in flags if not (presets and flag.startswith("--config."))]
  if foreign:
    parser.error(f"{' '.join(foreign)}: no flag of this command. Fix: --config.<key>=<value>, "
                 "together with --train")
  if not presets and not arguments.workdirs:
    parser.error("no runs. Fix: folders of runs, or --train=<presets>")


def _trained(arguments: argparse.Namespace, preset: str, flags: list[str]) -> str:
  """Trains one run, or goes on with it; returns its folder. Ends the command where it fails."""
  folder = os.path.join(arguments.out, preset)
  command = [sys.executable, str(MAIN), f"--config={arguments.config}:{preset}",
             f"--workdir={folder}", *flags]
  print(f"{preset}: {' '.join(command[1:])}", flush=True)
  if status := subprocess.run(command, check=False).returncode:
    sys.exit(status)
  return folder


if __name__ == "__main__":
  main()
