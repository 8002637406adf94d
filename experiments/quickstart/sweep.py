"""The quickstart's table and figure: three seeds of one preset, its control with permuted rewards,
and other ratios.

  python experiments/quickstart/sweep.py --runs=runs/quickstart_sweep

Runs that are finished under --runs are not run again. Runs of one seed share its warm start, which
depends on the seed alone. Writes results.md and curves.png beside this file.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from jaxrl_llm.reporting import plots, reader, tables

HERE = Path(__file__).parent
SEEDS = (0, 1, 2)
DEFAULT = "grpo"
OTHERS = ("reinforce", "rloo", "dr_grpo", "gspo", "seq_is", "ctpo", "minpro")


def cells() -> dict[str, list[str]]:
  """Name of each run -> its arguments beyond --workdir."""
  config = lambda preset: f"--config=configs/quickstart.py:{preset}"
  out = {f"{DEFAULT}_seed{s}": [config(DEFAULT), f"--config.seed={s}"] for s in SEEDS}
  out |= {
      f"permuted_seed{s}": [
          config(DEFAULT), f"--config.seed={s}", "--config.task.shuffle_rewards=True"
      ] for s in SEEDS
  }
  return out | {f"{preset}_seed0": [config(preset), "--config.seed=0"] for preset in OTHERS}


def run(name: str, arguments: list[str], runs: Path) -> None:
  workdir = runs / name
  if (workdir / "report.html").exists():
    return
  shared = runs / f"{DEFAULT}_{name.rsplit('_', 1)[1]}" / "warm_start"
  if shared.exists() and not (workdir / "warm_start").exists():
    shutil.copytree(shared, workdir / "warm_start")
  subprocess.run([sys.executable, "experiments/main.py", *arguments, f"--workdir={workdir}"],
                 check=True)


def row(name: str, finished: reader.Run) -> list[str]:
  accuracy = finished.series("eval/accuracy")[1]
  mean = lambda key: float(np.mean(finished.series(key)[1]))
  seconds = finished.series("time/iteration")[1]
  return [
      name, f"{100 * accuracy[0]:.1f}", f"{100 * accuracy[-1]:.1f}",
      f"{100 * mean('clip/dropped'):.2f}", f"{finished.series('reward/correct')[1][-1]:.3f}",
      f"{np.sum(seconds):.0f}"
  ]


def pairs(finished: dict[str, reader.Run]) -> str:
  """The README's table: accuracy after the warm start -> at the end, with the rewards as verified
  and permuted.
  """
  ends = lambda r: [f"{100 * a:.1f} %" for a in r.series("eval/accuracy")[1][[0, -1]]]
  rows = [[
      str(s), *(" → ".join(ends(finished[f"{kind}_seed{s}"])) for kind in (DEFAULT, "permuted"))
  ] for s in SEEDS]
  return tables.markdown_table(["seed", "rewards as verified", "rewards permuted (control)"], rows)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--runs", type=Path, default=Path("runs/quickstart_sweep"))
  runs = parser.parse_args().runs
  for name, arguments in cells().items():
    run(name, arguments, runs)
  finished = {name: reader.read_run(runs / name) for name in cells()}
  header = [
      "run", "held-out accuracy after the warm start, %", "at the end, %",
      "tokens without gradient, mean %", "correct rollouts in the last iteration", "RL, seconds"
  ]
  table = tables.markdown_table(header, [row(name, r) for name, r in finished.items()])
  made_by = [r.environment for r in finished.values()]
  commits = sorted({str(e.get("git_commit"))[:10] for e in made_by})
  text = (
      f"Written by `sweep.py`; commit {', '.join(commits)}, jax {made_by[0]['packages']['jax']}, "
      f"{made_by[0]['cpus']} CPU cores.\n\n{pairs(finished)}\n{table}")
  (HERE / "results.md").write_text(text)
  shown = {name.removesuffix("_seed0"): r for name, r in finished.items() if name.endswith("seed0")}
  plots.plot_compare(shown, HERE / "curves.png", metric="reward/correct",
                     title="correct among sampled completions")
  print(text)


if __name__ == "__main__":
  main()
