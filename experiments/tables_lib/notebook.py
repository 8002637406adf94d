"""Functions for the notebooks in colab/: runs at notebook size, and reports inside the page.

With JAXRL_FAST=1 in the environment every helper takes the smallest sizes (checkout.py).
"""

import html
import io
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from IPython.display import HTML, Image, Markdown, display

from experiments.commands import cache, disk
from experiments.report import OBSERVERS
from experiments.report.run_folder import read_run
from experiments.tables_lib import arena, plots
from experiments.tables_lib.checkout import ROOT, SIZES, checkout_env, fast, fresh
from experiments.tables_lib.exact import studies, study_tables
from experiments.tables_lib.replay import replay_run
from jaxrl_llm.config import ConfigError, EstimatorConfig, from_dict
from jaxrl_llm.reporting.tables import MISSING, markdown_table
from jaxrl_llm.runs import trainer
from jaxrl_llm.store import workdir

_DEVICES = "import jax; print(*(device.device_kind for device in jax.devices()), sep=', ')"
# What a run of 0.1 million parameters takes, as far as it was measured.
_ON_CPU = "two to six minutes a run on two cores; here there are {cores}"
_ELSEWHERE = ("not measured on such a device, which a policy this small leaves idle; on a CPU "
              "two to six minutes a run")


def begin() -> None:
  """Shows versions and devices, and keeps compiled programs for the runs of this notebook.

  Another process looks at the devices, so that this one leaves them to the commands that it
  starts: a TPU serves one process at a time.
  """
  cache.keep_programs()
  logging.getLogger("absl").setLevel(logging.WARNING)  # checkpoints log each of their steps
  facts = {"python": platform.python_version(), **workdir.versions(workdir.PACKAGES)}
  facts["commit"] = last_line(["git", "rev-parse", "HEAD"])
  facts["devices"] = last_line([sys.executable, "-c", _DEVICES])
  facts["time"] = expected(facts["devices"], os.cpu_count() or 1)
  rows = [(name, text or MISSING) for name, text in facts.items()]
  display(Markdown(markdown_table(("", "here"), rows)))


def expected(devices: str, cores: int) -> str:
  """Returns what a run takes on these devices, in words.

  Args:
    devices: kinds, as JAX names them.
    cores: of the machine's processor.
  """
  return _ON_CPU.format(cores=cores) if "cpu" in devices.lower() else _ELSEWHERE


def last_line(command: list[str]) -> str:
  """Returns the last line that a command prints in the repository's root, or else of its errors."""
  process = subprocess.run(command, cwd=ROOT, env=checkout_env(), capture_output=True, text=True,
                           check=False)
  lines = (process.stderr if process.returncode else process.stdout).strip().splitlines()
  return lines[-1] if lines else ""


def sized(config):
  """Returns a ConfigDict at the sizes of the notebook: as it is, or with JAXRL_FAST=1 at SIZES."""
  if fast():
    config.update_from_flattened_dict(SIZES)
  return config


def run(config, name: str) -> Path:
  """Trains as `sized(config)` says; returns the run's folder.

  Raises:
    SystemExit: with one line, for a mistake in the config or a run that cannot continue.
  """
  folder = fresh(name)
  try:
    with disk.named(folder):
      trainer.run(from_dict(sized(config)), folder, OBSERVERS)
  except (ConfigError, OSError, disk.DiskError, *trainer.RUN_ERRORS) as error:
    sys.exit(f"error: {error}")
  return folder


def show_report(folder: Path) -> None:
  """Shows a run's report.html."""
  show_page(Path(folder) / "report.html")


def show_page(path: Path, height: int = 640) -> None:
  """Shows an HTML page in a frame of `height` pixels, so that its style stays its own."""
  text = html.escape(Path(path).read_text())
  frame = f'<iframe srcdoc="{text}" width="100%" height="{height}" frameborder="0"></iframe>'
  display(HTML(f"<div>{frame}</div>"))


def named(folders: Sequence[Path]) -> dict[str, Path]:
  """Returns folders by their last names, as many as distinguish them."""
  parts = list(dict.fromkeys(Path(folder).resolve().parts for folder in folders))
  count = 1
  while len({path[-count:] for path in parts}) < len(parts):
    count += 1
  return {"/".join(path[-count:]): Path(*path) for path in parts}


def compare(*folders: Path, metric: str = "eval/accuracy") -> None:
  """Shows one metric of several runs: a table, and the curves by the names of the folders.

  Raises:
    SystemExit: with one line, if a run does not have the metric.
  """
  runs = {name: read_run(folder) for name, folder in named(folders).items()}
  rows, curves = [], io.BytesIO()
  for name, run in runs.items():
    values = run.series(metric)[1]
    if not values.size:
      sys.exit(f"error: {name} has no metric {metric!r}. Fix: one of those in its metrics.jsonl.")
    rows.append((name, *(f"{value:.4g}" for value in (values[0], values[-1], values.max()))))
  plots.plot_compare(runs, curves, metric=metric, title=metric)
  display(Markdown(markdown_table((metric, "first", "last", "highest"), rows)))
  display(Image(curves.getvalue(), width=720))


def exact_table(*custom: EstimatorConfig) -> None:
  """Shows exact bias and variance of the plain weights, and of your own estimators below them.

  Every sequence of 4 tokens over 3 symbols is enumerated; the figures are means over random
  policies.
  """
  methods = {k: studies.WEIGHTS[k] for k in ("none", "token", "cumulative", "full sequence")}
  for cfg in custom:
    numbers = ", ".join(f"{name} {value}" for name, value in cfg.given)
    methods[f"{cfg.name}, {numbers}" if numbers else cfg.name] = cfg
  rows = studies.single_study("notebook", methods,
                              studies.Population(3, 4 if fast() else 100, seed=0), horizons=(4,),
                              drifts=(0.1, 0.3, 0.6))
  for metric in ("bias", "variance"):
    display(Markdown(study_tables.across(rows, metric, "drift")))


def arena_map(*methods: str, length: int = 64) -> None:
  """Shows complete runs of methods in the arena: where each holds, by learning rate and staleness.

  Completions have `length` tokens, and the policy is a small one on automata (experiments/arena).

  Raises:
    SystemExit: with one line, for a method that cannot run.
  """
  small: dict[str, Any] = {"length": length}
  if fast():
    small = {"length": 16, "iterations": 4, "evaluations": 2}
  lab, steps = arena.Lab("warm", **small), (0.04, 0.16) if fast() else arena.STEPS
  try:
    runs = lab.sweep(methods[-1:] if fast() else methods, steps, ages=(4, 16),
                     seeds=2 if fast() else 8)
  except ConfigError as error:
    sys.exit(f"error: {error}")
  display(runs.phase(), Markdown(runs.table()))


def replay(folder: Path) -> None:
  """Shows a run's saved rollouts put through every registered estimator."""
  replay_run.run(folder)
  show_page(Path(folder) / "replay.html")
