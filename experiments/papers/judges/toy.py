"""Does deleting conflicts find the true order better? Tournaments of items with known utilities.

  python experiments/papers/judges/toy.py                   # the tournaments, and the tables
  python experiments/papers/judges/toy.py --run=runs/judges # also what a finished run logged

Writes results.json and the tables of README.md.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from scipy import stats

from experiments.papers.judges import tournaments
from experiments.report.run_folder import read_run
from experiments.tables_lib.compare import half_width
from experiments.tables_lib.page_parts import narrow_tables, replace_part
from jaxrl_llm.reporting.reader import RunError
from jaxrl_llm.reporting.tables import markdown_table
from jaxrl_llm.store.files import write_atomically

HERE = Path(__file__).parent
ITEMS, TRIALS, SEED = 8, 200, 0
# Of each judge: how a pair is decided, with its number.
JUDGES = {
    "no noise": ("flips", 0.0),
    "1 in 10 reversed": ("flips", 0.1),
    "1 in 5 reversed": ("flips", 0.2),
    "1 in 3 reversed": ("flips", 1 / 3),
    "logistic, scale 1": ("logistic", 1.0),
    "Gaussian with ties, scale 0.7": ("ties", 0.7),
}
TIE = 0.5  # distance of two noisy utilities up to which they tie
METHODS = ("symmetric", "first", "copeland")
HEADER = ("judge", "conflict rate", "acyclic after cleaning", "equal to Copeland without a cycle",
          "ρ, all best orders", "ρ, first best order", "ρ, Copeland",
          "all best orders - Copeland")
LOGGED = ("reward/component/conflict", "reward/component/task")


def preferences(rng: np.random.Generator, utilities: np.ndarray, kind: str,
                scale: float) -> np.ndarray:
  """Returns a judge's verdicts [n, n] in {-1, 0, 1} on items of known utilities [n].

  A verdict follows the utilities, but "flips" reverses it with probability `scale`; "logistic" lets
  i win with probability sigmoid((u_i - u_j) / scale); "ties" adds Gaussian noise of this standard
  deviation to u_i - u_j and calls what is within TIE a tie.
  """
  shape = (len(utilities),) * 2
  gap = utilities[:, None] - utilities
  if kind == "flips":
    verdict = np.sign(gap) * np.where(rng.random(shape) < scale, -1, 1)
  elif kind == "logistic":
    verdict = np.where(rng.random(shape) < 1 / (1 + np.exp(-gap / scale)), 1, -1)
  else:
    noisy = gap + scale * rng.normal(size=shape)
    verdict = np.where(np.abs(noisy) <= TIE, 0, np.sign(noisy))
  return np.triu(verdict, 1) - np.triu(verdict, 1).T


def trial(rng: np.random.Generator, kind: str, scale: float) -> dict:
  """Returns what one tournament of ITEMS items shows; correlations are Spearman's."""
  utilities = rng.normal(size=ITEMS)
  asked = preferences(rng, utilities, kind, scale)
  upper = np.triu(rng.choice([-1, 1], asked.shape), 1)
  directions = upper - upper.T
  rewards = {order: tournaments.dgr_rewards(asked, order, directions) for order in METHODS[:2]}
  rewards["copeland"] = tournaments.scaled(asked.sum(1))
  conflict = tournaments.has_conflict(asked)
  equal = all(np.array_equal(rewards[order], rewards["copeland"]) for order in METHODS[:2])
  return {
      "conflict": conflict, "equal": None if conflict else equal,
      "acyclic": not tournaments.has_conflict(tournaments.kept_wins(asked, "first", directions)),
      **{name: float(stats.spearmanr(utilities, scores).statistic)
         for name, scores in rewards.items()},
  }


def measure(trials: int) -> dict[str, dict]:
  """Returns the statistics of each judge, by its name in JUDGES."""
  metrics = {}
  for name, (kind, scale) in JUDGES.items():
    rng = np.random.default_rng(SEED)
    rows = [trial(rng, kind, scale) for _ in range(trials)]
    gain = np.array([row["symmetric"] - row["copeland"] for row in rows])
    clean = [row["equal"] for row in rows if not row["conflict"]]
    metrics[name] = {
        "trials": trials, "conflict": float(np.mean([row["conflict"] for row in rows])),
        "acyclic": sum(row["acyclic"] for row in rows), "clean": len(clean), "equal": sum(clean),
        **{method: float(np.mean([row[method] for row in rows])) for method in METHODS},
        "gain": float(gain.mean()), "gain_half_width": half_width(gain),
    }
  return metrics


def table(metrics: dict[str, dict]) -> str:
  """Returns the table of `measure`."""
  rows = [(name, f"{one['conflict']:.3f}", f"{one['acyclic']} of {one['trials']}",
           f"{one['equal']} of {one['clean']}", *(f"{one[method]:.4f}" for method in METHODS),
           f"{one['gain']:+.4f} ± {one['gain_half_width']:.4f}") for name, one in metrics.items()]
  return narrow_tables(HEADER, rows)


def logged(run: Path) -> dict[str, list]:
  """Returns the components that a finished run of a tournament logged, by iteration."""
  lines = [line for line in read_run(run).metrics if LOGGED[0] in line]
  return {name: [line[name] for line in lines] for name in ("iteration", *LOGGED)}


def run_table(components: dict[str, list]) -> str:
  """Returns the table of `logged`."""
  names = list(components)
  return markdown_table(tuple(names), [tuple(f"{value:.4g}" for value in row)
                                       for row in zip(*components.values(), strict=True)])


def render(results: dict, page: Path) -> None:
  """Writes both tables into the page."""
  replace_part(page, "toy.py, tournaments", table(results["tournaments"]))
  replace_part(page, "toy.py, run", run_table(results["run"]))


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--trials", type=int, default=TRIALS, help="tournaments per judge")
  parser.add_argument("--run", type=Path, help="folder of a finished run; default: keep the table")
  parser.add_argument("--out", type=Path, default=HERE, help="folder of README.md")
  flags = parser.parse_args()
  if flags.trials < 2:
    sys.exit(f"error: --trials={flags.trials}: one tournament has no interval. Fix: 2 or more.")
  path = flags.out / "results.json"
  results = json.loads(path.read_text()) if path.exists() else {"run": {}}
  try:
    if flags.run:
      results["run"] = logged(flags.run)
    results["tournaments"] = measure(flags.trials)
    write_atomically(path, json.dumps(results, indent=1) + "\n")
    render(results, flags.out / "README.md")
  except (RunError, OSError) as error:
    sys.exit(f"error: {error}")


if __name__ == "__main__":
  main()
