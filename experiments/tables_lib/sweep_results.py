"""Results of runs: one file per table, a line a run, and whether a run would differ today.

A result is identified by its flags, among them the seed, and by the code of the config file and the
plugins that they name. The package's text is no part of it: an edit of a docstring, or of code that
a run does not reach, changes no number. Whether it changed one is found by running the beginning
again: a result holds the metrics of its first iterations (`fingerprint`), with the version of jax,
the processor and the number of cores, beyond which rounding differs and no comparison is possible.
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from experiments.report.run_folder import RunFolder
from jaxrl_llm.reporting.writers import write_atomically

FILE = "results.jsonl"
CHANGED = "+changes"  # how store/workdir.py marks a commit with uncommitted changes of Python files
ITERATIONS = 2  # whose metrics make a fingerprint
METRICS = ("eval/accuracy", "reward/correct", "rollout/length", "policy/entropy", "loss/total",
           "optimizer/grad_norm")
PRECISION = 1e-3  # relative; a run made again on the same machine is equal to the bit
SAME, NOT_COMPARABLE = "same", "not comparable"


def read(folder: Path) -> dict[str, dict]:
  """Returns the results of a table by name, in the order of its file; none without a file.

  Raises:
    ValueError: a line is no result; the message names it.
  """
  path = folder / FILE
  records = {}
  for number, line in enumerate(path.read_text().splitlines() if path.exists() else (), 1):
    try:
      record = json.loads(line)
      records[record["name"]] = record
    except (ValueError, KeyError, TypeError) as error:
      raise ValueError(f"{path}, line {number}: {error!r}, no result. Fix: remove the line; "
                       "the sweep then makes that run again.") from error
  return records


def write(folder: Path, records: list[dict]) -> None:
  """Enters results, each in place of one of its name; other processes may do the same concurrently.
  """
  folder.mkdir(parents=True, exist_ok=True)
  with _locked(folder / f".{FILE}.lock"):
    lines = read(folder) | {record["name"]: record for record in records}
    write_atomically(folder / FILE,
                     "".join(json.dumps(record) + "\n" for record in lines.values()))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
  with open(path, "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    yield
  path.unlink(missing_ok=True)


def fingerprint(run: RunFolder, cores: int | None) -> dict:
  """Returns the metrics of a run's first iterations, and what they depend on in addition to the
  code.

  Only the first evaluation counts: the last iteration, which is another one in a run that is
  started again, is evaluated out of turn.
  """
  metrics = {}
  for name in METRICS:
    iterations, values = run.series(name)
    last = 0 if name.startswith("eval/") else ITERATIONS
    metrics[name] = [float(f"{value:.6g}") for value in values[iterations <= last]]
  return {"jax": run.environment.get("packages", {}).get("jax"), "cores": cores,
          "processor": run.environment.get("processor"), "metrics": metrics}


def compare(recorded: dict | None, today: dict) -> str:
  """Returns SAME, "changed: " and in what, or NOT_COMPARABLE and why, for two fingerprints."""
  if not recorded:
    return f"{NOT_COMPARABLE}: the result has no fingerprint"
  for key in ("jax", "processor", "cores"):
    if recorded[key] != today[key]:
      return f"{NOT_COMPARABLE}: {key} was {recorded[key]}, is {today[key]}"
  for name, values in recorded["metrics"].items():
    now = today["metrics"].get(name, [])
    if len(values) != len(now) or any(abs(value - current) > PRECISION * max(abs(value), 1e-6)
                                      for value, current in zip(values, now, strict=True)):
      return f"changed: {name} was {values}, is {now}"
  return SAME


def made_at(records: dict[str, dict]) -> str:
  """Returns a sentence that names the commits of results, the newest last.

  Runs with uncommitted changes are counted.
  """
  if not records:
    return ""
  commits = list(dict.fromkeys(short_commit(record) for record in records.values()))
  changed = sum(str(record["commit"]).endswith(CHANGED) for record in records.values())
  changes = f", {changed} of them beside uncommitted changes" if changed else ""
  return f"\n{len(records)} runs, made at commit {', '.join(commits)}{changes}."


def short_commit(record: dict) -> str:
  """Returns the commit that made a result, as tables show it."""
  return str(record["commit"]).removesuffix(CHANGED)[:10]


def group(name: str) -> str:
  """Returns the name of a run without its seed: "base_ctpo" of "base_ctpo_seed3"."""
  return name.rsplit("_seed", 1)[0]


def by_seed(records: dict[str, dict]) -> dict[str, dict[int, dict]]:
  """Returns the results of each group by seed, in the order of the groups' first results."""
  groups: dict[str, dict[int, dict]] = {}
  for name, record in records.items():
    groups.setdefault(group(name), {})[record["seed"]] = record
  return {name: dict(sorted(seeds.items())) for name, seeds in groups.items()}
