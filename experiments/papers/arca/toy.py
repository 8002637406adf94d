"""Does credit by the adapters' residual help low-rank training?

  python experiments/papers/arca/toy.py            # what is missing, then the tables
  python experiments/papers/arca/toy.py --render   # the tables again, from the committed results

Writes results/seed<n>.json and the tables of README.md beside this file.
"""

import tempfile
from pathlib import Path

import jax
import numpy as np

from experiments.tables_lib import seed_results
from jaxrl_llm.build import setup
from jaxrl_llm.build.warm_start import warm_start
from jaxrl_llm.config import base_config, from_dict
from jaxrl_llm.models import hf
from jaxrl_llm.reporting.compare import interval
from jaxrl_llm.reporting.reader import read_run
from jaxrl_llm.reporting.tables import markdown_table, replace_part
from jaxrl_llm.runs import trainer

HERE = Path(__file__).parent
SEEDS = (0, 1, 2, 3, 4)
RANKS = (1, 8)
METHODS = {
    "GRPO": {"name": "grpo"},
    "ARCA": {"name": "arca"},
    "reference gap": {"name": "arca", "signal": "reference_gap"},
}
LEARNING_RATE = 3e-4
LEARNT = 0.9  # accuracy of a policy that works sums out; guesses are right at most in 0.85
HEADER = ("rank", "method", "seeds that work it out", "accuracy at the end",
          "the end minus GRPO's", "mean accuracy over the run", "mean accuracy minus GRPO's",
          "Gini at the end", "tokens in effect at the end")


def config(seed: int, **sections):
  """The task of configs/chain.py with 3 terms; `sections` replaces values."""
  made = base_config()
  made.iterations, made.seed = 40, seed
  made.model.update(vocab_size=17, width=128, num_layers=4, num_heads=4, num_kv_heads=2,
                    head_dim=32, mlp_width=384)
  made.task.update(name="modular_chain", num_terms=3, worked_share=0.3, heldout_problems=256)
  made.rollout.update(prompts=32, group_size=8, max_prompt_tokens=5, max_new_tokens=16, window=8)
  made.updates.update(optimizer_batches=4, micro_batches=4)
  made.optimizer.update(learning_rate=LEARNING_RATE)
  made.evaluation.every = 5
  made.aggregation.name = "sequence"
  for name, values in sections.items():
    made[name].update(values)
  return made


def pretrain(seed: int, path: Path) -> None:
  """Writes the checkpoint that a seed's adapters stand on: demonstrations of mixed quality."""
  supervised = {"steps": 1000, "batch_size": 64, "micro_batches": 4, "learning_rate": 3e-3}
  cfg, task, learner, sampler = setup.build(setup.resolve(from_dict(
      config(seed, warm_start=supervised))))
  sampler.close()
  start = warm_start(cfg, learner, task.tokenizer, path / "start")
  hf.save_pretrained(path / "base", learner.model, jax.device_get(start.params),
                     tokenizer=task.tokenizer)


def train(seed: int, rank: int, advantage: dict, folder: Path, base: Path) -> dict:
  """Trains adapters; returns what the page shows of the run."""
  made = config(seed, advantage=advantage, parameters={"train": "lora", "lora_rank": rank})
  made.pretrained = str(base)
  if advantage.get("signal") == "reference_gap":
    made.kl.coef = 1e-6  # so that the reference is scored; as a penalty it is nothing
  trainer.run(from_dict(made), folder)
  run = read_run(folder)
  iterations, accuracy = run.series("eval/accuracy")
  found = {"iterations": iterations.tolist(), "accuracy": accuracy.round(6).tolist()}
  if advantage["name"] == "arca":
    for name in ("gini", "effective_tokens"):
      found[name] = run.series(f"credit/{name}")[1].round(5).tolist()
  return found


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
  replace_part(page, "toy.py", markdown_table(HEADER, rows))


if __name__ == "__main__":
  seed_results.main(__doc__, HERE, SEEDS, measure, write_tables)
