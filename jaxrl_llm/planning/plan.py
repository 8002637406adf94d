"""The planner's command: from a config and a target's name to analyses of its programs."""

import dataclasses
import json
import sys

from jaxrl_llm.build import abstract
from jaxrl_llm.build.resolve import resolve
from jaxrl_llm.config import Config
from jaxrl_llm.planning import programs, report, targets
from jaxrl_llm.planning.analysis import analyse
from jaxrl_llm.planning.shapes import with_shapes


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
  targets.parse(target)  # a wrong name is refused before anything else
  cfg = resolve(cfg)
  cfg = dataclasses.replace(cfg, model=with_shapes(cfg.model, cfg.pretrained))
  described = targets.describe(target)
  planned = abstract.plan(cfg, described.devices)
  analyses = []
  for program in programs.of_iteration(planned, names):
    print(f"compiling {program.name} ...", file=sys.stderr, flush=True)
    analyses.append(analyse(program, described))
  print(report.as_text(analyses, described))
  if path:
    with open(path, "w") as file:
      json.dump(report.as_data(analyses, described), file, indent=2)
      file.write("\n")
