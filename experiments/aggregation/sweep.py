"""Which weighting of tokens, where length follows correctness and where it does not?

  python experiments/aggregation/sweep.py --list
  python experiments/aggregation/sweep.py --jobs=2
  python experiments/aggregation/sweep.py --render

Aggregations x tasks of config.py. Writes the table of README.md, accuracy.png and length.png beside
this file.
"""

from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from jaxrl_llm.config import AdvantageConfig, AggregationConfig
from jaxrl_llm.lab import sweeps
from jaxrl_llm.lab.accuracy import longest, padded
from jaxrl_llm.lab.sweeps import Cell, Sweep
from jaxrl_llm.objective.advantages import get_advantage
from jaxrl_llm.objective.aggregation import loss_weights
from jaxrl_llm.reporting import plots, tables
from jaxrl_llm.reporting.compare import interval
from jaxrl_llm.reporting.reader import RunFolder
from jaxrl_llm.types import AdvantageInputs

HERE = Path(__file__).parent
SEEDS = (0, 1, 2, 3, 4)
WORKED = ("longer", "alike", "shorter")
AGGREGATIONS = ("token", "sequence", "fixed", "balanced")
PAIRS = tuple((worked, name) for worked in WORKED for name in AGGREGATIONS)
HEADER = ("worked answers are", "aggregation", "accuracy at the end", "mean accuracy over the run",
          "length of guesses, start", "guesses, end", "length of worked answers, start",
          "worked, end", "share of positive gradient, %")


def cells() -> list[Cell]:
  """Seed by seed, so that an unfinished sweep has whole seeds."""
  return [Cell(f"{worked}_{name}_seed{seed}", (
      f"--config=experiments/aggregation/config.py:{worked}", f"--config.aggregation.name={name}",
      f"--config.seed={seed}")) for seed in SEEDS for worked, name in PAIRS]


def measure(run: RunFolder) -> dict:
  """Returns held-out accuracy, and by iteration the lengths of guesses and of worked answers and
  the share of the gradient's weight on positive advantages.
  """
  evaluated, accuracy = run.series("eval/accuracy")
  kept = run.rollout_iterations()
  by_iteration = [_of_rows(run.rollouts(iteration), run.config) for iteration in kept]
  return {"evaluated": evaluated.tolist(), "accuracy": accuracy.round(6).tolist(),
          "iterations": kept, "gradient_norm": float(run.series("optimizer/grad_norm")[1].mean())
          } | {name: [one[name] for one in by_iteration] for name in by_iteration[0]}


def _of_rows(rows: Sequence[dict], config: dict) -> dict[str, float | None]:
  lengths = np.array([len(row["tokens"]) - row["prompt_length"] for row in rows])
  guessed = np.array([row["completion"].startswith("=") for row in rows])
  share = positive_share(lengths, np.array([row["trained_reward"] for row in rows], np.float32),
                         config)
  return {"guesses": _mean(lengths[guessed]), "worked": _mean(lengths[~guessed]), "share": share}


def _mean(values: np.ndarray) -> float | None:
  return round(float(values.mean()), 4) if len(values) else None


def positive_share(lengths: np.ndarray, rewards: np.ndarray, config: dict) -> float | None:
  """Returns the share of sum(weight |advantage|) on tokens with a positive advantage.

  Weights are those of the run's optimizer batches. None where every advantage is 0.

  Args:
    lengths: [B], completion tokens of each row; groups are contiguous.
    rewards: [B] f32.
    config: of the run.
  """
  size, parts = config["rollout"]["group_size"], config["updates"]["optimizer_batches"]
  mask = jnp.arange(config["rollout"]["max_new_tokens"]) < lengths[:, None]
  group = np.arange(len(rewards)) // size
  advantages = get_advantage("grpo")(
      AdvantageInputs(jnp.asarray(rewards), mask, jnp.zeros(mask.shape, jnp.int32),
                      jnp.asarray(group)), AdvantageConfig("grpo"))
  total = positive = 0.0
  for part in range(parts):
    at = np.flatnonzero(group % parts == part)
    weights = loss_weights(mask[at], advantages[at], jnp.asarray(group[at]), AggregationConfig(
        config["aggregation"]["name"], config["rollout"]["max_new_tokens"]))
    size_of = np.asarray(weights * jnp.abs(advantages[at]))
    total += float(size_of.sum())
    positive += float(size_of[np.asarray(advantages[at]) > 0].sum())
  return round(positive / total, 6) if total else None


def render(results: dict[str, dict], folder: Path) -> None:
  """Writes the table into README.md, and the figures."""
  rows, accuracy, length = [], {}, {}
  for worked, name in PAIRS:
    keys = [f"{worked}_{name}_seed{seed}" for seed in SEEDS]
    if results.keys() >= set(keys):
      measured = [results[key]["measured"] for key in keys]
      curve = padded([one["accuracy"] for one in measured])
      rows.append((worked, name, interval(curve[:, -1]), interval(curve.mean(1)),
                   *(_ends(measured, kind, at) for kind in ("guesses", "worked") for at in (0, -1)),
                   interval(100 * np.array([np.mean(known(one["share"])) for one in measured]))))
      accuracy.setdefault(worked, {})[name] = (longest(measured, "evaluated"), curve)
      length.setdefault(worked, {})[name] = (longest(measured, "iterations"),
                                             padded([one["worked"] for one in measured]))
  tables.replace_part(folder / "README.md", "sweep.py",
                      tables.markdown_table(HEADER, rows) + sweeps.made_at(results))
  for title, panels in (("accuracy", accuracy), ("length of worked answers", length)):
    if panels:
      plots.plot_panels(panels, folder / f"{title.split()[0]}.png", title)


def known(values: list[float | None]) -> list[float]:
  """Those of the iterations that had one."""
  return [value for value in values if value is not None]


def _ends(measured: list[dict], kind: str, at: int) -> str:
  """The length at the first or last iteration that had rows of the kind."""
  return interval(np.array([known(one[kind])[at] for one in measured]))


SWEEP = Sweep(HERE, cells(), measure, render)

if __name__ == "__main__":
  sweeps.main(SWEEP, __doc__)
