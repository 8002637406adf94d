"""Runs the campaign of bad inputs and counts how the commands ended.

`PYTHONPATH=.:tests python tests/faults/recount.py [PATTERN ...] [--errors]` prints a line for each
case that did not end as it should, and a table of verdicts by kind; with `--errors` what each
command printed. A pattern chooses among `kind: name`.
"""

import argparse
import collections
import re
import sys
import tempfile
from pathlib import Path

import campaign
import command_cases
import config_file_cases
import data_cases
import folder_cases
import machine_cases
import plugin_cases
import pretrained_cases
import reported_cases
import server_cases
import setting_cases

KINDS = {
    "reported tracebacks": reported_cases.TRACEBACKS,
    "reported silent": reported_cases.SILENT,
    "keys": setting_cases.KEYS,
    "sizes": setting_cases.SIZES,
    "config files": config_file_cases.CASES,
    "data": data_cases.CASES,
    "plugins": plugin_cases.CASES,
    "folders": folder_cases.CASES,
    "pretrained": pretrained_cases.CASES,
    "commands": command_cases.CASES,
    "servers": server_cases.CASES,
    "processes": machine_cases.PROCESSES,
    "environment": machine_cases.ENVIRONMENT,
    "sandbox": machine_cases.SANDBOX,
}


def cases() -> dict[str, campaign.Case]:
  """Returns every case by `kind: name`."""
  return {f"{kind}: {name}": case for kind, table in KINDS.items()
          for name, case in table.items()}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("patterns", nargs="*")
  parser.add_argument("--errors", action="store_true")
  arguments = parser.parse_args()
  chosen = {name: case for name, case in cases().items()
            if not arguments.patterns or any(re.search(p, name) for p in arguments.patterns)}
  verdicts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
  with tempfile.TemporaryDirectory() as folder:
    sources = campaign.sources(Path(folder))
    for number, (name, case) in enumerate(chosen.items()):
      here = Path(folder) / str(number)
      here.mkdir()
      ended = campaign.execute(case, here, sources)
      end = campaign.verdict(ended, case.texts, case.status)
      verdicts[name.split(": ")[0]][end.split(" ")[0]] += 1
      if end != campaign.CLEAN or arguments.errors:
        print(f"{end} | {name} | {ended.seconds:.1f} s | {ended.errors[-1500:]}", flush=True)
  print_table(verdicts)


def print_table(verdicts: dict[str, collections.Counter]) -> None:
  names = sorted({name for counter in verdicts.values() for name in counter})
  print("| kind | cases |", " | ".join(names), "|")
  print("|---" + "|--:" * (len(names) + 1) + "|")
  total = sum(verdicts.values(), collections.Counter())
  for kind, counter in [*verdicts.items(), ("all", total)]:
    print(f"| {kind} | {counter.total()} |", " | ".join(str(counter[name]) for name in names), "|")


if __name__ == "__main__":
  sys.exit(main())
