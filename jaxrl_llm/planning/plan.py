"""The planner's command: from a config and a target's name to analyses of its programs."""

import json
import sys

from jaxrl_llm.build.resolve import resolve
from jaxrl_llm.config import Config
from jaxrl_llm.planning import abstract, programs, report, targets
from jaxrl_llm.planning.analysis import Analysis, analyse
from jaxrl_llm.planning.shapes import with_shapes
from jaxrl_llm.planning.targets import Target


def run(cfg: Config, target: str, names: tuple[str, ...] = (), path: str = "") -> None:
  """Prints what the programs of a run's iteration cost on a target.

  Args:
    cfg: of the run.
    target: such as `v5p:4x4x4`.
    names: programs that are wanted; empty: all.
    path: of a JSON file that is to hold the same; empty: none.

  Raises:
    ConfigError: before anything compiles.
  """
  per_program, described = analyses(cfg, target, names)
  print(report.as_text(per_program, described))
  if path:
    with open(path, "w") as file:
      json.dump(report.as_data(per_program, described), file, indent=2)
      file.write("\n")


def analyses(cfg: Config, target: str,
             names: tuple[str, ...] = ()) -> tuple[list[Analysis], Target]:
  """Returns an analysis of each program, and the target. Arguments and errors as `run`."""
  targets.parse(target)  # a wrong name is refused before anything else
  cfg = with_shapes(resolve(cfg))
  described = targets.describe(target)
  planned = abstract.plan(cfg, described.devices)
  per_program = []
  for program in programs.of_iteration(planned, names):
    print(f"compiling {program.name} ...", file=sys.stderr, flush=True)
    per_program.append(analyse(program, described))
  return per_program, described
