"""Submit a run, or the missing runs of a sweep, to SLURM.

A run has one process on each node, which uses all GPUs that the job has there:

  python experiments/launch/slurm.py run --name=a --nodes=2 --gpus=8 --cpus=32 --time=8:00:00 \
    -- --config=configs/qwen3_4b_ctpo_deepscaler.py --workdir=/shared/runs/a

A sweep is an array job with one task for each run that has no result yet:

  python experiments/launch/slurm.py sweep experiments/mismatch/sweep.py --name=mismatch \
    --gpus=0 --cpus=4 --time=1:00:00 --at-once=8

--dry-run prints the batch script and submits nothing. README.md beside this file says how to watch,
resume and stop.
"""

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import submit

INSTALL = "run it where SLURM's commands are, on a login node of the cluster"
TIME = re.compile(r"(\d+-)?\d+(:\d\d){0,2}")  # minutes, h:mm:ss, d-h:mm:ss
OPTION = re.compile(r"[a-z][-a-z]*(=[^\s'\"]+)?")
LONGEST = 60
OWN = {"job-name", "nodes", "ntasks", "ntasks-per-node", "array", "output", "cpus-per-task",
       "gpus-per-node", "time", "signal", "requeue", "open-mode"}  # what the script itself says


def parser() -> argparse.ArgumentParser:
  cli = submit.Parser(description=__doc__)
  kinds = cli.add_subparsers(dest="kind", required=True, metavar="run|sweep")
  run, sweep = kinds.add_parser("run"), kinds.add_parser("sweep")
  run.add_argument("--nodes", type=int, required=True, help="each has one process")
  sweep.add_argument("file", type=Path, help="experiments/<table>/sweep.py")
  sweep.add_argument("--at-once", type=int, default=0, help="tasks at a time; 0: as many as fit")
  for one in (run, sweep):
    one.add_argument("--name", required=True, help="of the job")
    one.add_argument("--gpus", type=int, required=True, help="on each node; 0: none")
    one.add_argument("--cpus", type=int, required=True, help="cores on each node")
    one.add_argument("--time", required=True, help="limit, such as 8:00:00 or 1-00:00:00")
    one.add_argument("--warning", type=int, default=120,
                     help="seconds before the limit at which the run is told to save and end")
    one.add_argument("--option", action="append", default=[], metavar="KEY=VALUE",
                     help="further option of sbatch, such as partition=gpu; may be repeated")
    one.add_argument("--repo", type=Path, default=submit.ROOT,
                     help="this repository, as the nodes see it")
    one.add_argument("--python", default=sys.executable,
                     help="interpreter that has the package, as the nodes see it")
    one.add_argument(submit.DRY_RUN, action="store_true",
                     help="print the script, submit nothing; it may stand anywhere")
  return cli


def check(flags: argparse.Namespace) -> None:
  submit.check_name(flags.name, LONGEST)
  for key, least in {"nodes": 1, "gpus": 0, "cpus": 1, "warning": 1, "at_once": 0}.items():
    if key in flags:
      submit.check_count(f"--{key.replace('_', '-')}", getattr(flags, key), least)
  if not TIME.fullmatch(flags.time):
    submit.refuse(f"--time={flags.time}: allowed are minutes, h:mm:ss and d-hh:mm:ss. Fix: "
                  "--time=8:00:00.")
  for option in flags.option:
    if not OPTION.fullmatch(option):
      submit.refuse(f"--option={option}: allowed is an option of sbatch without its dashes and "
                    "without blanks. Fix: --option=partition=gpu.")
    if option.split("=")[0] in OWN:
      submit.refuse(f"--option={option}: the script says this itself. Fix: leave it out; see "
                    "slurm.py run --help for the flags that change it.")


def run_script(flags: argparse.Namespace, run: Sequence[str]) -> tuple[str, Path]:
  """Returns the batch script of a run, and the folder of its log."""
  folder = Path(submit.check_run(run) or flags.repo / "runs" / flags.name)
  head = _directives(flags, f"nodes={flags.nodes}", "ntasks-per-node=1",
                     f"output={folder}/slurm-%j.out")
  return _script(head, flags, shlex.join([submit.MAIN, *run])), folder


def sweep_script(flags: argparse.Namespace) -> tuple[str, Path]:
  """Returns the batch script of the runs that a sweep lacks, and the folder of their logs."""
  file = flags.file.resolve()
  if not file.is_file() or submit.ROOT not in file.parents:
    submit.refuse(f"{flags.file}: no file of this repository. Fix: experiments/<table>/sweep.py, "
                  "from the repository's folder.")
  listed = subprocess.run([sys.executable, str(flags.file), "--list"], text=True,
                          capture_output=True, check=False)
  if listed.returncode:
    submit.refuse(f"{flags.file} --list ended with status {listed.returncode}: "
                  f"{listed.stderr.strip().splitlines()[-1:]}. Fix: a file with a SWEEP.")
  lines = re.findall(r"^(\d+) (missing|done) ", listed.stdout, re.MULTILINE)
  missing = [int(number) for number, state in lines if state == "missing"]
  if not missing:
    submit.refuse(f"{flags.file}: none of its {len(lines)} runs is missing. Fix: nothing to run; "
                  f"python {flags.file} --render writes the table.")
  folder = flags.repo / "runs" / file.parent.name
  limit = f"%{flags.at_once}" if flags.at_once else ""
  head = _directives(flags, "nodes=1", "ntasks=1", f"array={ranges(missing)}{limit}",
                     f"output={folder}/slurm-%A_%a.out")
  command = shlex.quote(str(file.relative_to(submit.ROOT))) + ' --index="$SLURM_ARRAY_TASK_ID"'
  return _script(head, flags, command), folder


def ranges(numbers: Sequence[int]) -> str:
  """Returns rising numbers as SLURM writes them: 0-3,7,9-10."""
  spans: list[list[int]] = []
  for number in numbers:
    if spans and spans[-1][-1] == number - 1:
      spans[-1][1:] = [number]
    else:
      spans.append([number])
  return ",".join("-".join(map(str, one)) for one in spans)


def _directives(flags: argparse.Namespace, *options: str) -> str:
  gpus = [f"gpus-per-node={flags.gpus}"] if flags.gpus else []
  every = [f"job-name={flags.name}", *options, f"cpus-per-task={flags.cpus}", *gpus,
           f"time={flags.time}", f"signal=TERM@{flags.warning}", "requeue", "open-mode=append",
           *flags.option]
  return "".join(f"#SBATCH --{option}\n" for option in every)


def _script(head: str, flags: argparse.Namespace, command: str) -> str:
  return f"""#!/bin/bash
{head}
# The signal goes to what srun starts, not to this shell. A process that has saved ends with status
# 143; the others may still write then, so srun must not end them. srun asks again for the cores,
# because since SLURM 22.05 it does not take their number from the job.
set -euo pipefail
cd {shlex.quote(str(flags.repo))}
srun --kill-on-bad-exit=0 --cpus-per-task={flags.cpus} \\
  {shlex.quote(flags.python)} -u {command}
"""


def main() -> None:
  arguments, behind = submit.split(sys.argv[1:])
  flags = parser().parse_args(arguments)
  check(flags)
  if flags.kind == "sweep" and behind:
    submit.refuse(f"{behind[0]}: a sweep's runs have their flags in its file. Fix: leave out what "
                  "follows --.")
  script, folder = sweep_script(flags) if flags.kind == "sweep" else run_script(flags, behind)
  if re.search(r"[\s%]", str(folder)):
    submit.refuse(f"{folder}: SLURM's log is written there, whose path may have no blank and no %. "
                  "Fix: another folder.")
  # A job whose log has no folder ends without a word, so the folder is made before.
  submit.hand_in(["sbatch"], INSTALL, submit.is_dry(sys.argv), script, folder)


if __name__ == "__main__":
  main()
