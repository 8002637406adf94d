"""Does credit by the adapters' residual help low-rank training?

  python experiments/papers/arca/toy.py            # what is missing, then the tables
  python experiments/papers/arca/toy.py --render   # the tables again, from the committed results

Writes results/seed<n>.json and the tables of README.md beside this file.
"""

import tempfile
from pathlib import Path

import jax
import numpy as np

from experiments.papers.arca.config import SUPERVISED, sizes
from experiments.report.run_folder import read_run
from experiments.tables_lib import seed_results
from experiments.tables_lib.compare import interval
from experiments.tables_lib.page_parts import narrow_tables, replace_part
from jaxrl_llm.config import from_dict
from jaxrl_llm.models import hf
from jaxrl_llm.runs import trainer
from jaxrl_llm.wiring import setup
from jaxrl_llm.wiring.warm_start import warm_start

HERE = Path(__file__).parent
SEEDS = (0, 1, 2, 3, 4)
RANKS = (1, 8)
METHODS = {
    "GRPO": {"name": "grpo"},
    "ARCA": {"name": "arca"},
    "reference gap": {"name": "arca", "signal": "reference_gap"},
}
LEARNT = 0.9  # accuracy of a policy that works sums out; guesses are right at most in 0.85
HEADER = ("rank", "method", "seeds that work it out", "accuracy at the end",
          "the end minus GRPO's", "mean accuracy over the run", "mean accuracy minus GRPO's",
          "Gini at the end", "tokens in effect at the end")


def config(seed: int, **sections):
  """Returns the table's task; `sections` replaces values."""
  settings = sizes()
  settings.seed, settings.aggregation.name = seed, "sequence"
  for name, values in sections.items():
    settings[name].update(values)
  return settings


def pretrain(seed: int, path: Path) -> None:
  """Writes the checkpoint that a seed's adapters stand on: demonstrations of mixed quality."""
  cfg, task, learner, sampler = setup.build(setup.resolve(from_dict(
      config(seed, warm_start=SUPERVISED))))
  sampler.close()
  start = warm_start(cfg, learner, task.tokenizer, path / "start")
  hf.save_pretrained(path / "base", learner.model, jax.device_get(start.params),
                     tokenizer=task.tokenizer)


def train(seed: int, rank: int, advantage: dict, folder: Path, base: Path) -> dict:
  """Trains adapters; returns what the page shows of the run."""
  settings = config(seed, advantage=advantage, parameters={"train": "lora", "lora_rank": rank})
  settings.pretrained = str(base)
  if advantage.get("signal") == "reference_gap":
    settings.kl.coef = 1e-6  # so that the reference is scored; as a penalty it is nothing
  trainer.run(from_dict(settings), folder)
  run = read_run(folder)
  iterations, accuracy = run.series("eval/accuracy")
  curves = {"iterations": iterations.tolist(), "accuracy": accuracy.round(6).tolist()}
  if advantage["name"] == "arca":
    for name in ("gini", "effective_tokens"):
      curves[name] = run.series(f"credit/{name}")[1].round(5).tolist()
  return curves


def measure(seed: int) -> dict:
  """Returns {rank: {method: curves}}."""
  with tempfile.TemporaryDirectory() as folder:
    root = Path(folder)
    pretrain(seed, root)
    return {str(rank): {name: train(seed, rank, advantage, root / f"{rank} {name}", root / "base")
                        for name, advantage in METHODS.items()} for rank in RANKS}


def write_tables(results: list[dict], page: Path) -> None:
  """Writes the table into the page."""
  rows = []
  for rank in map(str, RANKS):
    curves = {name: np.array([one[rank][name]["accuracy"] for one in results]) for name in METHODS}
    for name, accuracy in curves.items():
      cells = [f"{np.sum(accuracy[:, -1] > LEARNT)} of {len(accuracy)}"]
      for of in (lambda x: x[:, -1], lambda x: x.mean(1)):
        cells += [interval(of(accuracy)),
                  "" if name == "GRPO" else interval(of(accuracy) - of(curves["GRPO"]))]
      last = [np.array([one[rank][name][field][-1] for one in results])
              for field in ("gini", "effective_tokens")] if name != "GRPO" else []
      rows.append((rank, name, *cells, *map(interval, last), *([""] * (2 - len(last)))))
  replace_part(page, "toy.py", narrow_tables(HEADER, rows, 2))


if __name__ == "__main__":
  seed_results.main(__doc__, HERE, SEEDS, measure, write_tables)
