"""The quickstart's table and figure: every preset, three seeds, and the control with permuted rewards.

  python experiments/quickstart/sweep.py --runs=runs/quickstart_sweep

Runs that are finished under --runs are not run again. Runs of one seed share its warm start, which depends on the
seed alone. Writes results.md and curves.png beside this file.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from jaxrl_llm.presets import PRESETS
from jaxrl_llm.reporting import plots, reader, tables

HERE = Path(__file__).parent
SEEDS = (0, 1, 2)
DEFAULT = "grpo"


def cells() -> dict[str, list[str]]:
  """Name of each run -> its arguments beyond --workdir."""
  config = lambda preset: f"--config=configs/quickstart.py:{preset}"
  out = {f"{DEFAULT}_seed{s}": [config(DEFAULT), f"--config.seed={s}"] for s in SEEDS}
  out |= {f"permuted_seed{s}": [config(DEFAULT), f"--config.seed={s}", "--config.task.shuffle_rewards=True"]
          for s in SEEDS}
  return out | {f"{preset}_seed0": [config(preset), "--config.seed=0"] for preset in PRESETS if preset != DEFAULT}


def run(name: str, arguments: list[str], runs: Path) -> None:
  workdir = runs / name
  if (workdir / "report.html").exists():
    return
  shared = runs / f"{DEFAULT}_{name.rsplit('_', 1)[1]}" / "warm_start"
  if shared.exists() and not (workdir / "warm_start").exists():
    shutil.copytree(shared, workdir / "warm_start")
  subprocess.run([sys.executable, "experiments/main.py", *arguments, f"--workdir={workdir}"], check=True)


def row(name: str, finished: reader.Run) -> list[str]:
  accuracy = finished.series("eval/accuracy")[1]
  mean = lambda key: float(np.mean(finished.series(key)[1]))
  seconds = finished.series("time/iteration")[1]
  return [name, f"{100 * accuracy[0]:.1f}", f"{100 * accuracy[-1]:.1f}", f"{100 * mean('clip/dropped'):.2f}",
          f"{finished.series('reward/correct')[1][-1]:.3f}", f"{np.sum(seconds):.0f}"]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--runs", type=Path, default=Path("runs/quickstart_sweep"))
  runs = parser.parse_args().runs
  for name, arguments in cells().items():
    run(name, arguments, runs)
  finished = {name: reader.read_run(runs / name) for name in cells()}
  header = ["run", "held-out accuracy after the warm start, %", "at the end, %", "tokens without gradient, mean %",
            "correct rollouts in the last iteration", "RL, seconds"]
  table = tables.markdown_table(header, [row(name, r) for name, r in finished.items()])
  packages = next(iter(finished.values())).environment.get("packages", {})
  (HERE / "results.md").write_text(f"jax {packages.get('jax')}, 2 CPU cores.\n\n{table}")
  plots.plot_compare({name: r for name, r in finished.items() if name.endswith("seed0")}, HERE / "curves.png")
  print(table)


if __name__ == "__main__":
  main()
