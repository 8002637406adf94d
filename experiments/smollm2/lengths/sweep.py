r"""Do rewards for short answers shorten those of SmolLM2-135M-Instruct, and what does that cost?

  python experiments/main.py --config=configs/smollm2_slips.py --workdir=runs/repeats \
      --config.plugins=experiments/smollm2/lengths/task.py --config.task.name=repeated_chains \
      --config.task.steps=3 --config.rollout.max_new_tokens=80 --config.iterations=1
  python experiments/export.py --workdir=runs/repeats --checkpoint=0 --plugins=run \
      --out=runs/repeats_start
  python experiments/smollm2/lengths/sweep.py --list
  python experiments/smollm2/lengths/sweep.py                       what is missing
  python experiments/smollm2/lengths/sweep.py --render

All runs begin at the model after the imitation of worked answers of which every second line is said
twice (task.py), which the first two commands make. Writes the table of README.md and curves.png
beside this file.
"""

from pathlib import Path

import numpy as np

from experiments.report.run_folder import RunFolder
from experiments.tables_lib import accuracy, page_parts, plots, sweeps
from experiments.tables_lib.sweeps import Cell, Sweep

HERE = Path(__file__).parent
START = "runs/repeats_start"
SEEDS = (0, 1)
LIMIT = 80  # tokens of a completion
RECENT = 5  # iterations whose completions give a length
REWARDS = {
    "correct or not": (),
    "linear penalty": (f"--config.shaping.overlong_buffer={LIMIT - 1}",
                       "--config.shaping.overlong_factor=0.5"),
    "GRPO-lambda": ("--config.shaping.name=grpo_lambda",),
}
SIZES = ("--config.plugins=experiments/smollm2/lengths/task.py",
         "--config.task.name=repeated_chains", "--config.task.steps=3",
         "--config.rollout.prompts=4", f"--config.rollout.max_new_tokens={LIMIT}",
         "--config.iterations=20", "--config.optimizer.learning_rate=1e-5",
         "--config.task.heldout_problems=48", "--config.evaluation.every=10",
         "--config.evaluation.samples=8", "--config.checkpoint.every=10")
HEADER = ("reward", "n", "right at the start", "right at the end", "greedy at the end",
          "tokens at the start", "tokens at the end", "tokens at equal accuracy")


def cell(reward: str, seed: int) -> Cell:
  """Returns a run."""
  return Cell(f"{reward.replace(' ', '-')}_seed{seed}", (
      "--config=configs/smollm2_slips.py", *REWARDS[reward], f"--config.pretrained={START}",
      "--config.warm_start.steps=0", *SIZES, f"--config.seed={seed}"))


def measure(run: RunFolder) -> dict:
  """Returns sampled and greedy accuracy by iteration, and the mean length of the completions of
  the RECENT iterations up to it; at iteration 0 of the first, which the start sampled.
  """
  measured = accuracy.measure_sampled(run)
  sampled_at, length = run.series("rollout/length")
  tokens = [length[(sampled_at > max(i - RECENT, 0)) & (sampled_at <= max(i, 1))].mean()
            for i in measured["iterations"]]
  return measured | {"length": [round(float(mean), 3) for mean in tokens]}


def tokens_at(measured: dict, level: float) -> float:
  """Returns the length at which a run's sampled accuracy first is `level`, linear between
  evaluations; NaN if it never is.
  """
  right, tokens = measured["sampled"], measured["length"]
  for i in range(1, len(right)):
    low, high = right[i - 1], right[i]
    if low <= level <= high and low < high:
      return tokens[i - 1] + (tokens[i] - tokens[i - 1]) * (level - low) / (high - low)
  return np.nan


def common_level(runs: list[dict]) -> float:
  """Returns the highest sampled accuracy that all runs of a seed reach."""
  return min(max(run["sampled"]) for run in runs)


def render(results: dict[str, dict], folder: Path) -> None:
  """Writes the table of the seeds that all rewards have into README.md, and the figure."""
  runs = {seed: {reward: results[cell(reward, seed).name]["measured"] for reward in REWARDS}
          for seed in SEEDS if all(cell(reward, seed).name in results for reward in REWARDS)}
  if not runs:
    return
  levels = {seed: common_level(list(of_seed.values())) for seed, of_seed in runs.items()}
  rows, panels = [], {"accuracy of the sampled": {}, "tokens / 100": {}}
  for reward in REWARDS:
    seeds = [of_seed[reward] for of_seed in runs.values()]
    at_level = [tokens_at(of_seed[reward], levels[seed]) for seed, of_seed in runs.items()]
    rows.append((reward, str(len(seeds)), *(
        accuracy.span(values, digits) for values, digits in (
            ([run["sampled"][0] for run in seeds], 2), ([run["sampled"][-1] for run in seeds], 2),
            ([run["greedy"][-1] for run in seeds], 2), ([run["length"][0] for run in seeds], 1),
            ([run["length"][-1] for run in seeds], 1), (at_level, 1)))))
    times = np.array(seeds[0]["iterations"])
    panels["accuracy of the sampled"][reward] = (times, accuracy.padded(
        [run["sampled"] for run in seeds]))
    panels["tokens / 100"][reward] = (times, accuracy.padded(
        [run["length"] for run in seeds]) / 100)
  page_parts.replace_part(folder / "README.md", "sweep.py", page_parts.narrow_tables(HEADER, rows)
                          + sweeps.made_at(results))
  plots.plot_panels(panels, folder / "curves.png", "share, or tokens / 100")


SWEEP = Sweep(HERE, [cell(reward, seed) for seed in SEEDS for reward in REWARDS], measure, render)

if __name__ == "__main__":
  sweeps.main(SWEEP, __doc__)
