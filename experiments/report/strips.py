"""Completions of the same held-out problems at each evaluation: how a run's text changes.

workdir/heldout.jsonl has a line for each problem and evaluation: iteration, prompt, answer,
completion, correct.
"""

import dataclasses
import json
import os
from collections.abc import Iterable

from experiments.report.run_folder import RunFolder
from jaxrl_llm.reporting.reader import read_lines
from jaxrl_llm.store.files import write_atomically
from jaxrl_llm.store.folders import path_of

FILE = "heldout.jsonl"
PROBLEMS = 3  # the first held-out ones
SHOWN = 8  # evaluations of a problem on a page: the first, the last, and some between


@dataclasses.dataclass(frozen=True)
class Strip:
  """A problem's greedy completions, as (iteration, text, whether it is correct), in order."""

  prompt: str
  answer: str
  completions: list[tuple[int, str, bool]]


def add(workdir: str | os.PathLike, iteration: int,
        completions: Iterable[tuple[str, str, str, bool]]) -> None:
  """Adds the completions of an evaluation, as (prompt, answer, completion, correct).

  Lines of this iteration and of later ones, left by a run that was then resumed from a checkpoint,
  are dropped.
  """
  path = os.path.join(workdir, FILE)
  earlier = read_lines(path) if path_of(path).exists() else []
  lines = [line for line in earlier if line["iteration"] < iteration]
  names = ("prompt", "answer", "completion", "correct")
  lines += [{"iteration": iteration} | dict(zip(names, values, strict=True))
            for values in completions]
  write_atomically(path, "".join(json.dumps(line) + "\n" for line in lines))


def read(run: RunFolder) -> list[Strip]:
  """Returns a strip for each problem; none where the run has no such file.

  Lines of later iterations than the last line of metrics are left out: they were cut there, too.

  Raises:
    RunError: a line is not what `add` writes.
  """
  path = os.path.join(run.workdir, FILE)
  if not path_of(path).exists():
    return []
  last = run.metrics[-1]["iteration"] if run.metrics else -1
  by_prompt: dict[tuple[str, str], dict[int, tuple[str, bool]]] = {}
  for line in read_lines(path):
    if line["iteration"] <= last:
      by_iteration = by_prompt.setdefault((line["prompt"], str(line["answer"])), {})
      by_iteration[line["iteration"]] = (line["completion"], bool(line["correct"]))
  return [Strip(*key, _spread([(i, *by_iteration[i]) for i in sorted(by_iteration)]))
          for key, by_iteration in by_prompt.items()]


def _spread(entries: list) -> list:
  """Returns at most SHOWN entries: the first, the last, and evenly spaced ones between."""
  count = min(SHOWN, len(entries))
  step = (len(entries) - 1) / max(1, count - 1)
  return [entries[round(index * step)] for index in range(count)]
