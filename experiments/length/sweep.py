"""Do rewards that prefer short answers shorten them, and what does that cost?

  python experiments/length/sweep.py --list
  python experiments/length/sweep.py --jobs=2
  python experiments/length/sweep.py --render

Rewards x lengths of the problem on the task of configs/chain.py. Writes a table of
README.md, length.png and accuracy.png beside this file.
"""

from pathlib import Path

from experiments.report.run_folder import RunFolder
from experiments.tables_lib import page_parts, plots, sweeps
from experiments.tables_lib.accuracy import longest, padded
from experiments.tables_lib.compare import interval
from experiments.tables_lib.sweeps import Cell, Sweep

HERE = Path(__file__).parent
SEEDS = (0, 1, 2, 3, 4)
BASE = ("--config=configs/chain.py",)
PROBLEMS = {
    "5 terms": (),
    "3 terms": ("--config.task.num_terms=3", "--config.rollout.max_prompt_tokens=5",
                "--config.rollout.max_new_tokens=16"),
}
GUESSED, WORKED = 3, {"5 terms": 19, "3 terms": 11}  # tokens of an answer
LIMIT = {"5 terms": 24, "3 terms": 16}


def rewards(problem: str) -> dict[str, tuple[str, ...]]:
  """Returns the flags of each reward; the limit on the answer depends on the problem."""
  return {
      "correct or not": (),
      "linear penalty": (f"--config.shaping.overlong_buffer={LIMIT[problem] - 1}",
                         "--config.shaping.overlong_factor=0.5"),
      "overlong penalty": (f"--config.shaping.overlong_buffer={LIMIT[problem] // 4}",),
      "GRPO-lambda": ("--config.shaping.name=grpo_lambda",),
      "GRPO-lambda, all groups": ("--config.shaping.name=grpo_lambda",
                                  "--config.shaping.fraction=1.0"),
  }


PAIRS = tuple((problem, reward) for problem in PROBLEMS for reward in rewards(problem))
HEADER = ("problem", "reward", "length at the start, tokens", "length at the end, tokens",
          "seeds that work it out", "accuracy at the end", "mean accuracy over the run")


def _key(problem: str, reward: str, seed: int) -> str:
  return f"{problem}_{reward}_seed{seed}".lower().replace(",", "").replace(" ", "_")


def cells() -> list[Cell]:
  """Seed by seed, so that an unfinished sweep has whole seeds."""
  return [Cell(_key(*pair, seed), (*BASE, *PROBLEMS[pair[0]], *rewards(pair[0])[pair[1]],
                                   f"--config.seed={seed}"))
          for seed in SEEDS for pair in PAIRS]


def measure(run: RunFolder) -> dict:
  """Returns held-out accuracy and length of greedy answers by iteration."""
  iterations, accuracy = run.series("eval/accuracy")
  return {"iterations": iterations.tolist(), "accuracy": accuracy.round(6).tolist(),
          "length": run.series("eval/length")[1].round(4).tolist()}


def render(results: dict[str, dict], folder: Path) -> None:
  """Writes the table into README.md, and the figures."""
  rows, curves = [], {"length": {}, "accuracy": {}}
  for pair in PAIRS:
    keys = [_key(*pair, seed) for seed in SEEDS]
    if results.keys() >= set(keys):
      runs = [results[key]["measured"] for key in keys]
      length, accuracy = (padded([one[name] for one in runs]) for name in curves)
      worked = length[:, -1] > (GUESSED + WORKED[pair[0]]) / 2
      rows.append((*pair, interval(length[:, 0]), interval(length[:, -1]),
                   f"{worked.sum()} of {len(worked)}", interval(accuracy[:, -1]),
                   interval(accuracy.mean(1))))
      for name, values in (("length", length), ("accuracy", accuracy)):
        curves[name].setdefault(pair[0], {})[pair[1]] = (
            longest(runs, "iterations"), values)
  page_parts.replace_part(folder / "README.md", "sweep.py",
                      page_parts.narrow_tables(HEADER, rows, 2) + sweeps.made_at(results))
  for name, panels in curves.items():
    if panels:
      plots.plot_panels(panels, folder / f"{name}.png", f"held-out {name}")


SWEEP = Sweep(HERE, cells(), measure, render)

if __name__ == "__main__":
  sweeps.main(SWEEP, __doc__)
