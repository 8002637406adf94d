"""The planner's command: from a config and a target's name to analyses of its programs."""

import dataclasses
import json
import sys

from experiments.planning import abstract, programs, report, targets
from experiments.planning.analysis import analyse
from experiments.planning.shapes import with_shapes
from jaxrl_llm.config import Config, ConfigError
from jaxrl_llm.wiring.resolve import resolve


def run(cfg: Config, target: str, names: tuple[str, ...] = (), path: str = "",
        mean_length: float = 1.0) -> None:
  """Prints what the programs of a run's iteration cost on a target.

  Args:
    cfg: config of the run.
    target: such as `v5p:4x4x4`.
    names: programs that are wanted; empty: all.
    path: of a JSON file that is to hold the same; empty: none.
    mean_length: of completions, over their limit.

  Raises:
    ConfigError: before anything compiles; or, after all is printed and written, a program that the
      devices do not hold.
  """
  if not 0.0 < mean_length <= 1.0:
    raise ConfigError(f"--mean_length={mean_length:g}: allowed are shares above 0, up to 1. Fix: "
                      "--mean_length=0.4.")
  kind, *_ = targets.parse(target)  # a wrong name is refused before anything else
  cfg = resolve(cfg, targets.CHIPS[kind].platform)
  cfg = dataclasses.replace(cfg, model=with_shapes(cfg.model, cfg.pretrained))
  described = targets.describe(target)
  planned = abstract.plan(cfg, described.devices)
  analyses = []
  for program in programs.iteration_programs(planned, names, mean_length):
    print(f"compiling {program.name} ...", file=sys.stderr, flush=True)
    analyses.append(analyse(program, described))
  if mean_length < 1.0:
    print(f"completions of {mean_length:g} of rollout.max_new_tokens in the mean")
  print(report.as_text(analyses, described))
  if path:
    contents = report.as_data(analyses, described) | {"mean_length": mean_length}
    with open(path, "w") as file:
      json.dump(contents, file, indent=2)
      file.write("\n")
  print(report.verdict(analyses, described))
