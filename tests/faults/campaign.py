"""Bad inputs as data: each is a real command in a fork, and how it ended is named.

A case names what is wrong, the arguments and files of a command, and what its error must say. The
tables are in the `*_cases.py` beside this file, by kind. In arguments, {here} is the case's folder;
`run/` in it is a copy of a finished run, `base/` of its exported checkpoint, where a case needs
them.
"""

import contextlib
import dataclasses
import functools
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import forked
import programs

ROOT = Path(__file__).parents[2]
SMALL = "tests/faults/small.py"
LIMIT = 240.0  # seconds; none of them needs ten on an idle machine
CLEAN = "clean"
# What a line before the error may be: a warning of the package, of one line, or progress.
LINE_BEFORE = re.compile(r"W\d{4} [\d:. ]+\d+ \w+\.py:\d+\] |usage: | {3,}\S|$"
                      r"|[\w ]+: +\d+%\|")  # the last: progress
# A line behind the error's first one: a list of problems, or a continued text.
LISTED = re.compile(r"\d+\. |\s+\S|Fix: |These flags mend ")


@dataclasses.dataclass(frozen=True)
class Case:
  """A command that must end in one error.

  Attributes:
    flags: its arguments.
    texts: what the error must name: the key or file, and the value where there is one.
    script: of experiments/.
    files: name below the case's folder -> content.
    prepare: gets the case's folder before the command starts.
    needs: copies in the case's folder: run, base.
    context: gets the case's folder; surrounds the command, whose values fill in the flags.
    environment: further variables; None removes one.
    status: the exit statuses that are right.
    limit: seconds.
  """

  flags: tuple[str, ...]
  texts: tuple[str, ...] = ()
  script: str = "main"
  files: dict[str, str | bytes] = dataclasses.field(default_factory=dict)
  prepare: Callable[[Path], None] | None = None
  needs: tuple[str, ...] = ()
  context: Callable | None = None
  environment: dict[str, str | None] = dataclasses.field(default_factory=dict)
  status: tuple[int, ...] = (1, 2, 3)
  limit: float = LIMIT


@dataclasses.dataclass(frozen=True)
class Ended:
  """How a command ended.

  Attributes:
    status: its exit status; None where it was still running at its limit.
    output, errors: what it printed.
    seconds: that it ran.
  """

  status: int | None
  output: str
  errors: str
  seconds: float = 0.0


def main(values: dict[str, str], *texts: str, kind: str = "plain", **fields) -> Case:
  """Returns a case of main.py on the small config, with values of keys."""
  keys = tuple(f"--config.{key}={value}" for key, value in values.items())
  return Case((f"--config={SMALL}:{kind}", "--workdir={here}/new", *keys), texts, **fields)


def verdict(ended: Ended, texts: Iterable[str], statuses: Iterable[int] = (1, 2, 3)) -> str:
  """Returns CLEAN, or what is wrong with the end of a command that was given a bad input."""
  printed = ended.output + ended.errors
  if ended.status is None:
    return "hang"
  if "Traceback (most recent call last)" in printed:
    return "traceback"
  if ended.status == 0:
    return "silent"
  if ended.status not in statuses:
    return f"status {ended.status}"
  lines = ended.errors.splitlines()
  places = [i for i, line in enumerate(lines) if re.match(r"(\w+\.py: )?error: ", line)]
  if len(places) != 1:
    return f"{len(places)} errors"
  before, error = lines[:places[0]], lines[places[0]:]
  if not all(map(LINE_BEFORE.match, before)) or not all(map(LISTED.match, error[1:])):
    return "noise"
  text = "\n".join(error)
  absent = [word for word in texts if word not in text]
  if absent:
    return f"unnamed {absent[0]}"
  # The fix of a user's own Python is its line, which the error names; a usage says what is allowed.
  usage = bool(before) and before[0].startswith("usage: ")
  line = re.search(r"\.py(: |, )line \d+|\.py\): \w+: ", text)
  return CLEAN if "Fix: " in text or usage or line else "no fix"


def execute(case: Case, here: Path, sources: dict[str, Path]) -> Ended:
  """Runs a case's command in an empty folder.

  Args:
    sources: of the copies that cases need, by name.
  """
  for name in case.needs:
    shutil.copytree(sources[name], here / name)
  for name, content in case.files.items():
    path = here / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
  if case.prepare is not None:
    case.prepare(here)
  with case.context(here) if case.context else contextlib.nullcontext({}) as values:
    return command(case, {"here": str(here)} | values)


def command(case: Case, values: dict[str, str]) -> Ended:
  """Runs the command of a case; at its limit it is interrupted, then killed."""
  fill = lambda text: functools.reduce(
      lambda t, item: t.replace(f"{{{item[0]}}}", item[1]), values.items(), text)
  environment = programs.environment() | {"JAXRL_LLM_CACHE": ""}
  for name, value in case.environment.items():
    environment.pop(name, None)
    if value is not None:
      environment[name] = fill(value)
  begin = time.monotonic()
  process = forked.Command([f"experiments/{case.script}.py", *map(fill, case.flags)], ROOT,
                           environment)
  try:
    output, errors = process.communicate(timeout=case.limit)
    status = process.returncode
  except subprocess.TimeoutExpired:
    status = None
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
      process.wait(5)
    process.kill()
    output, errors = process.communicate()
  finally:
    process.kill()
  return Ended(status, output, errors, time.monotonic() - begin)


def sources(folder: Path) -> dict[str, Path]:
  """Makes what cases copy: a finished run of two iterations, and its exported checkpoint."""
  run, base = folder / "run", folder / "base"
  for case in (Case((f"--config={SMALL}", f"--workdir={run}")),
               Case((f"--workdir={run}", f"--out={base}"), script="export")):
    ended = command(dataclasses.replace(case, limit=300.0), {})
    if ended.status != 0:
      raise RuntimeError(f"{case.flags} failed: {ended.errors}")
  return {"run": run, "base": base}


