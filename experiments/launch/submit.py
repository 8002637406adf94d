"""Shared parts of the launch scripts: one-line refusals, checks of the run's own flags, --dry-run.

It imports nothing but the standard library, so that a login node needs no JAX.
"""

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NoReturn

ROOT = Path(__file__).parents[2]
MAIN = "experiments/main.py"
DRY_RUN = "--dry-run"
BUCKET = "gs://"
PLACE = ("coordinator", "processes", "process")  # what the engine or the script says of a process
FLAG = re.compile(r"--([A-Za-z_][\w.]*)(=.*)?", re.DOTALL)
# Kubernetes makes host names of names, and Cloud TPU allows no more.
NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def refuse(text: str) -> NoReturn:
  """Ends the command with one line."""
  print(f"error: {text}", file=sys.stderr)
  sys.exit(1)


class Parser(argparse.ArgumentParser):
  """Says what is wrong in one line, and takes no abbreviated flags."""

  def __init__(self, **keywords):
    super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
                     **keywords)

  def error(self, message: str) -> NoReturn:
    refuse(f"{message}. Fix: see {self.prog} --help.")


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
  """Returns the arguments before and after the first `--`.

  `--dry-run` may be anywhere, also after it: no run has such a flag.
  """
  rest = [text for text in arguments if text != DRY_RUN]
  end = rest.index("--") if "--" in rest else len(rest)
  return rest[:end], rest[end + 1:]


def is_dry(arguments: Sequence[str]) -> bool:
  """Returns whether `--dry-run` is one of the arguments."""
  return DRY_RUN in arguments


def check_name(value: str, longest: int) -> None:
  if not NAME.fullmatch(value) or len(value) > longest:
    refuse(f"--name={value}: allowed are a to z, 0 to 9 and - inside, first a letter, at most "
           f"{longest} characters. Fix: --name=run-a.")


def check_count(flag: str, value: int, least: int) -> None:
  if value < least:
    refuse(f"{flag}={value}: allowed is {least} to inf. Fix: {flag}={max(1, least)}.")


def check_run(flags: Sequence[str]) -> PurePosixPath | None:
  """Refuses flags of experiments/main.py that cannot work; returns the run's folder, None if it is
  in a bucket.
  """
  names = {}
  for text in flags:
    match = FLAG.fullmatch(text)
    if match is None:
      refuse(f"{text}: after -- only flags of {MAIN} are allowed, each as --<name>=<value>. "
             f"Fix: --<name>={text}.")
    if match[1] in PLACE:
      refuse(f"{text}: the processes learn from this launch which one each is. Fix: leave it out.")
    names[match[1]] = (match[2] or "=")[1:]
  for name in ("config", "workdir"):
    if not names.get(name):
      refuse(f"--{name} is not given. Fix: -- --config=<file> --workdir=<folder> at the end.")
  folder = names["workdir"]
  if folder.startswith(BUCKET):
    return None
  if "://" in folder:
    refuse(f"--workdir={folder}: of addresses, only those of Google's buckets are written. Fix: "
           "gs://<bucket>/<folder>, or a folder that all hosts see.")
  if not folder.startswith("/"):
    refuse(f"--workdir={folder}: allowed is an absolute path, because the hosts have other current "
           "folders. Fix: a folder that all hosts see, such as /shared/runs/a.")
  return PurePosixPath(folder)


def hand_in(command: Sequence[str], install: str, dry_run: bool, text: str | None = None,
            folder: Path | None = None) -> None:
  """Runs a command of the engine, with `text` as its input; a dry run prints both.

  A text alone goes to stdout, so that it can be kept in a file or piped into the command.

  Args:
    install: how one gets the command.
    folder: that must be there before; it is made if need be.
  """
  line = shlex.join(command)
  if dry_run:
    print(line if text is None else text, end="\n" if text is None else "")
    if text is not None:
      print(f"not submitted; without --dry-run this is the input of: {line}", file=sys.stderr)
    return
  if shutil.which(command[0]) is None:
    refuse(f"{command[0]}: not found on this machine. Fix: {install}, or --dry-run, which prints "
           "what would be submitted.")
  if folder is not None:
    try:
      folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
      refuse(f"{folder}: {error.strerror}. Fix: a folder that this machine sees and may write.")
  status = subprocess.run(command, input=text, text=True, check=False).returncode
  if status:
    refuse(f"{command[0]} ended with status {status}; its message is above.")
