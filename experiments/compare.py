"""Compare runs: mean over seeds, with 95 % intervals, of runs that differ in nothing else.

Train with some methods, one after the other, and see them side by side; then any runs there are:

  python experiments/compare.py --train='none@reinforce?advantage=grpo&anchor=behavior,cispo' \
      --config.iterations=40 --metric=eval/avg@8 --out=runs/compared
  python experiments/compare.py --train='ctpo,ideas/mine.py:mine?power=0.5' \
      --config.updates.anchor=behavior --config.correction.level=none \
      --config.correction.cap=2.0 --metric=eval/avg@8 --out=runs/mine
  python experiments/compare.py runs/* --metric=-eval/length --by=estimator.name,updates.staleness \
      --out=runs/compared

An entry of --train is `[label@][file.py:]name[?key=value&key=value ...]`, as in the arena. The name
is a preset's; or an estimator's, of the package or of a plugin's file, which then replaces that of
the preset grpo. Flags --config.<key>=<value> hold for all entries, and a note below the table lists
the keys in which the runs differ.

Prints a table; writes compare.png, compare.html and compare.md. Runs may have different lengths or
still be going on: a group is compared up to the last iteration that all its runs have logged.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from experiments.commands.command_line import with_fix
from experiments.tables_lib import compare, method_text
from jaxrl_llm.config import ConfigError, load_plugins
from jaxrl_llm.reporting.reader import RunError
from jaxrl_llm.store.folders import path_of

MAIN = Path(__file__).with_name("main.py")
PLUGINS = "--config.plugins="


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("workdirs", nargs="*", help="folders of runs")
  parser.add_argument("--train", default="", metavar="METHODS", help="methods, by commas: trains "
                      "one run for each, in folders of --out; other flags --config.<key>=<value> "
                      "hold for all of them")
  parser.add_argument("--config", default="configs/offpolicy.py", help="config of --train")
  parser.add_argument("--metric", default="eval/accuracy",
                      help="metric to compare; with a minus in front, lower is better")
  parser.add_argument("--by", default="", help="config keys that tell groups apart, by commas; "
                      "default: all in which the runs differ, apart from the seed")
  parser.add_argument("--out", required=True, help="folder to write")
  arguments, flags = parser.parse_known_args()
  _check(parser, arguments, flags)
  try:
    methods = _methods(arguments.train, flags)
    trained = [_trained(arguments, label, methods[label], flags) for label in methods]
    keys = [key.strip() for key in arguments.by.split(",") if key.strip()]
    out = path_of(arguments.out).resolve()  # a pattern finds it, too, the second time
    workdirs = [folder for folder in arguments.workdirs if path_of(folder).resolve() != out]
    labels = list(methods) if methods and not workdirs and not keys else ()
    comparison = compare.compare(workdirs + trained, arguments.metric, keys, labels)
    text = compare.write(comparison, arguments.out)
    print(f"{text}\npage: {os.path.join(arguments.out, 'compare.html')}")
  except (ConfigError, RunError, OSError) as error:
    sys.exit(f"error: {with_fix(error)}")


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace,
           flags: list[str]) -> None:
  """Refuses what neither --train nor a comparison reads."""
  foreign = [flag for flag in flags if not (arguments.train and flag.startswith("--config."))]
  if foreign:
    parser.error(f"{' '.join(foreign)}: no flag of this command. Fix: --config.<key>=<value>, "
                 "together with --train")
  if not arguments.train and not arguments.workdirs:
    parser.error("no runs. Fix: folders of runs, or --train=<methods>")


def _methods(text: str, flags: list[str]) -> dict[str, method_text.MethodText]:
  """Returns the methods of --train by their labels, before anything is trained.

  Raises:
    ConfigError: a text, a file or a name is wrong, or two methods have one label.
  """
  load_plugins(tuple(_plugins(flags)))
  methods: dict[str, method_text.MethodText] = {}
  for entry in filter(None, map(str.strip, text.split(","))):
    method = method_text.split(entry)
    method_text.load(method)
    label = method.label or entry.rpartition(":")[2]
    if label in methods:
      raise ConfigError(f"--train: two methods are labelled {label!r}. Fix: <label>@{entry}.")
    methods[label] = method
  return methods


def _plugins(flags: list[str]) -> list[str]:
  """Returns what --config.plugins names, in one text, if it is given."""
  return [flag.removeprefix(PLUGINS) for flag in flags if flag.startswith(PLUGINS)][-1:]


def _flags(method: method_text.MethodText, flags: list[str]) -> list[str]:
  """Returns the flags of a run but for its config file: those of all runs stand before its own."""
  estimator = [] if method.is_preset else [f"--config.estimator.name={method.name}"]
  plugins = [f"{PLUGINS}{','.join([*_plugins(flags), method.plugin])}"] if method.plugin else []
  return [*estimator, *flags, *plugins,
          *(f"--config.{key}={value}" for key, value in method.options)]


def _trained(arguments: argparse.Namespace, label: str, method: method_text.MethodText,
             flags: list[str]) -> str:
  """Trains one run, or goes on with it; returns its folder. Ends the command where it fails."""
  folder = os.path.join(arguments.out, re.sub(r"[^\w.=-]+", "_", label))
  preset = method.name if method.is_preset else "grpo"
  command = [sys.executable, str(MAIN), f"--config={arguments.config}:{preset}",
             f"--workdir={folder}", *_flags(method, flags)]
  print(f"{label}: {' '.join(command[1:])}", flush=True)
  if status := subprocess.run(command, check=False).returncode:
    sys.exit(status)
  return folder


if __name__ == "__main__":
  main()
