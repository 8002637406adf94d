"""Runs the quickstart's experiment and writes its table and figure.

  python experiments/quickstart/sweep.py --runs=runs/quickstart_sweep

The experiment is three seeds of one preset, the same seeds with permuted rewards as control, and
one seed of other presets. Finished runs under --runs are not run again; one of another config is
refused. Runs of one seed share the warm start, which depends only on the seed. Writes results.md
and curves.png beside this file.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from experiments.report.run_folder import RunFolder, read_run
from experiments.tables_lib import page_parts, plots
from jaxrl_llm.reporting import tables

HERE = Path(__file__).parent
SEEDS = (0, 1, 2)
DEFAULT = "grpo"
SAMPLED, GREEDY = "eval/avg@8", "eval/accuracy"
HEADER = ("run", "sampled accuracy (avg@8) after the warm start, %", "at the end, %",
          "greedy accuracy after the warm start, %", "greedy, at the end, %",
          "tokens without gradient, mean %", "RL, seconds")
OTHERS = ("gspo", "ctpo", "minpro")


def cells() -> dict[str, list[str]]:
  """Returns the arguments of each run, without --workdir, by its name."""
  out = {}
  for seed in SEEDS:
    arguments = [_config(DEFAULT), f"--config.seed={seed}"]
    out[f"{DEFAULT}_seed{seed}"] = arguments
    out[f"permuted_seed{seed}"] = [*arguments, "--config.task.shuffle_rewards=True"]
  others = {f"{preset}_seed0": [_config(preset), "--config.seed=0"] for preset in OTHERS}
  return dict(sorted(out.items())) | others  # the seeds of the default preset, then its control


def _config(preset: str) -> str:
  return f"--config=configs/quickstart.py:{preset}"


def run(name: str, arguments: list[str], runs: Path) -> None:
  """Runs main.py, which leaves a finished run as it is, with the warm start of the seed."""
  workdir = runs / name
  shared = runs / f"{DEFAULT}_{name.rsplit('_', 1)[1]}" / "warm_start"
  if shared.exists() and not (workdir / "warm_start").exists():
    shutil.copytree(shared, workdir / "warm_start")
  command = [sys.executable, "experiments/main.py", *arguments, f"--workdir={workdir}"]
  if subprocess.run(command, check=False).returncode:
    sys.exit(f"error: {name} broke off; its message is above.")


def row(name: str, finished: RunFolder) -> list[str]:
  """Returns the cells below HEADER."""
  ends = [f"{100 * finished.series(metric)[1][at]:.1f}" for metric in (SAMPLED, GREEDY)
          for at in (0, -1)]
  dropped = float(np.mean(finished.series("clip/dropped")[1]))
  seconds = np.sum(finished.series("time/iteration")[1])
  return [name, *ends, f"{100 * dropped:.2f}", f"{seconds:.0f}"]


def pairs(finished: dict[str, RunFolder]) -> str:
  """Returns the README's table: sampled accuracy after the warm start -> at the end, by seed."""
  rows = [[str(seed), *(_ends(finished[f"{kind}_seed{seed}"]) for kind in (DEFAULT, "permuted"))]
          for seed in SEEDS]
  return tables.markdown_table(["seed", "rewards as verified", "rewards permuted (control)"], rows)


def _ends(run: RunFolder) -> str:
  first, last = run.series(SAMPLED)[1][[0, -1]]
  return f"{100 * first:.1f} % → {100 * last:.1f} %"


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--runs", type=Path, default=Path("runs/quickstart_sweep"),
                      help="folder of the runs (default runs/quickstart_sweep)")
  runs = parser.parse_args().runs
  for name, arguments in cells().items():
    run(name, arguments, runs)
  done = {name: read_run(runs / name) for name in cells()}
  table = page_parts.narrow_tables(HEADER, [row(name, r) for name, r in done.items()])
  environments = [r.environment for r in done.values()]
  commits = sorted({str(e.get("git_commit"))[:10] for e in environments})
  text = (
      f"Written by `sweep.py`; commit {', '.join(commits)}, jax "
      f"{environments[0]['packages']['jax']}, {environments[0]['cpus']} CPU cores.\n\n"
      f"{pairs(done)}\n{table}")
  (HERE / "results.md").write_text(text)
  shown = {name.removesuffix("_seed0"): r for name, r in done.items() if name.endswith("seed0")}
  plots.plot_compare(shown, HERE / "curves.png", metric="reward/correct",
                     title="correct among sampled completions")
  print(text)


if __name__ == "__main__":
  main()
