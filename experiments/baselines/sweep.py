"""Which baseline, and from how many rows of a prompt on?

  python experiments/baselines/sweep.py --list
  python experiments/baselines/sweep.py --jobs=2 --only=policy   # the frozen policies
  python experiments/baselines/sweep.py --jobs=2
  python experiments/baselines/sweep.py --render

Runs whose name begins with `policy` only make a policy, on which the gradient of every baseline is
measured (jaxrl_llm/lab/gradient_noise.py). The others train with one. Writes the tables of
README.md beside this file.
"""

import dataclasses
from pathlib import Path

import numpy as np

from jaxrl_llm.config import AdvantageConfig
from jaxrl_llm.lab import accuracy, gradient_noise, sweeps
from jaxrl_llm.lab.sweeps import Cell, Sweep
from jaxrl_llm.reporting import tables
from jaxrl_llm.reporting.compare import interval
from jaxrl_llm.reporting.reader import RunFolder

HERE = Path(__file__).parent
SEEDS = (0, 1, 2, 3, 4)
CONFIG = "--config=experiments/baselines/config.py"
SIZES = (4, 8, 16, 32)  # rows of a prompt
PROMPTS = 128  # on which gradients are measured
STAGES = {"early": 3, "halfway": 8}  # iterations of training
MEASURED = {
    "GRPO": AdvantageConfig("grpo"),
    "group mean": AdvantageConfig("dr_grpo"),
    "RLOO": AdvantageConfig("rloo"),
    "OPO": AdvantageConfig("opo"),
    "OTB of the sequence": AdvantageConfig("otb", granularity="sequence"),
    "OTB": AdvantageConfig("otb"),
    "OTB, step weights": AdvantageConfig("otb", weight="step"),
    "OTB, leave one out": AdvantageConfig("otb", leave_one_out=True),
    "OTB for tools": AdvantageConfig("tir_otb"),
    "TEMPO": AdvantageConfig("tempo"),
    "GAE(0.95)": AdvantageConfig("gae", lam=0.95, whiten=False),
}
TRAINED = {
    "RLOO": ("--config.advantage.name=rloo",),
    "OPO": ("--config.advantage.name=opo",),
    "OTB of the sequence": ("--config.advantage.name=otb",
                            "--config.advantage.granularity=sequence"),
    "OTB": ("--config.advantage.name=otb",),
    "TEMPO": ("--config.advantage.name=tempo",),
    "GAE": ("--config.advantage.name=gae",),
}
# After 1,000 steps of warm start some seeds cannot work an answer out, and RL finds nothing.
TRAINING = (CONFIG, "--config.warm_start.steps=2000", "--config.iterations=40",
            "--config.evaluation.every=2")
ROWS, FEW = 256, 16  # rows of a batch; prompts of a batch where these are equal
BUDGETS = {"equal tokens": lambda size: ROWS // size, "equal prompts": lambda size: FEW}
HEADER = ("budget", "rows of a prompt", "baseline", "accuracy at the end",
          "mean accuracy over the run", "tokens until 90 %, thousands", "tokens, thousands",
          "gradient norm, median", "its 95 % quantile")


def cells() -> list[Cell]:
  """Returns the policies, then the training runs, seed by seed; batches that both budgets share
  are there once.
  """
  policies = [Cell(f"policy_{stage}_seed{seed}", (
      CONFIG, "--config.advantage.name=gae", f"--config.iterations={iterations}",
      f"--config.seed={seed}"))
      for seed in SEEDS for stage, iterations in STAGES.items()]
  shapes = dict.fromkeys((size, prompts(size)) for prompts in BUDGETS.values() for size in SIZES)
  return policies + [Cell(_key(name, *shape, seed), (
      *TRAINING, *baseline, f"--config.rollout.group_size={shape[0]}",
      f"--config.rollout.prompts={shape[1]}", f"--config.seed={seed}"))
      for seed in SEEDS for shape in shapes for name, baseline in TRAINED.items()]


def _key(name: str, size: int, prompts: int, seed: int) -> str:
  return f"{name.lower().replace(' ', '_')}_{prompts}_prompts_of_{size}_rows_seed{seed}"


def measure(run: RunFolder) -> dict:
  """Returns the noise of every baseline on the run's policy, or the curves of a training run."""
  if Path(run.workdir).name.startswith("policy"):
    noises = gradient_noise.of_run(run.workdir, MEASURED, SIZES, PROMPTS)
    return {name: {size: dataclasses.asdict(noise) for size, noise in by_size.items()}
            for name, by_size in noises.items()}
  norm = run.series("optimizer/grad_norm")[1]
  return {**accuracy.with_tokens(run),
          "norm": {str(q): float(np.quantile(norm, q)) for q in (0.5, 0.95)}}


def noise_table(results: dict[str, dict], stage: str) -> str:
  """A row for each baseline: its signal, and its noise relative to RLOO's, by number of rows."""
  keys = [f"policy_{stage}_seed{seed}" for seed in SEEDS]
  rows = []
  if results.keys() >= set(keys):
    measured = [results[key]["measured"] for key in keys]
    for name in MEASURED:
      of = lambda name, size, field: np.array([one[name][str(size)][field] for one in measured])
      rows.append((name, *(interval(of(name, size, "signal")) for size in (SIZES[0], SIZES[-1])),
                   *(interval(of(name, size, "noise") / of("RLOO", size, "noise"))
                     for size in SIZES)))
  return tables.markdown_table(
      ("baseline", *(f"signal, {size} rows" for size in (SIZES[0], SIZES[-1])),
       *(f"noise, {size} rows" for size in SIZES)), rows)


def training_table(results: dict[str, dict]) -> str:
  rows = []
  for budget, prompts in BUDGETS.items():
    for size in SIZES:
      for name in TRAINED:
        keys = [_key(name, size, prompts(size), seed) for seed in SEEDS]
        if results.keys() >= set(keys):
          measured = [results[key]["measured"] for key in keys]
          right = accuracy.curves(measured)[1]
          rows.append((budget, size, name, interval(right[:, -1]), interval(right.mean(1)),
                       accuracy.tokens_until(measured),
                       interval(np.array([one["tokens"][-1] / 1000 for one in measured])),
                       *(interval(np.array([one["norm"][q] for one in measured]))
                         for q in ("0.5", "0.95"))))
  return tables.markdown_table(HEADER, rows)


def render(results: dict[str, dict], folder: Path) -> None:
  """Writes the tables into README.md."""
  for stage in STAGES:
    tables.replace_part(folder / "README.md", f"sweep.py, {stage}", noise_table(results, stage))
  tables.replace_part(folder / "README.md", "sweep.py, training",
                      training_table(results) + sweeps.made_at(results))


SWEEP = Sweep(HERE, cells(), measure, render)

if __name__ == "__main__":
  sweeps.main(SWEEP, __doc__)
