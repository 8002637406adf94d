"""Does training differ where the sampler computes in other numerics?

  python experiments/mismatch/sweep.py --list
  python experiments/mismatch/sweep.py --jobs=2
  python experiments/mismatch/sweep.py --render

Samplers x corrections on the task of configs/chain_offpolicy.py with fresh rollouts, so that
numerics are the only difference between sampler and trainer. Writes a table of README.md and
training.png beside this file.
"""

from pathlib import Path

from jaxrl_llm.lab import accuracy, sweeps
from jaxrl_llm.lab.sweeps import Cell, Sweep
from jaxrl_llm.reporting import plots, tables

HERE = Path(__file__).parent
SEEDS = (0, 1, 2, 3, 4)
BASE = ("--config=configs/chain_offpolicy.py:grpo", "--config.updates.staleness=0",
        "--config.updates.anchor=recomputed")
SAMPLERS = {
    "the trainer's": (),
    "bfloat16": ("--config.rollout.dtype=bfloat16",),
    "int8": ("--config.rollout.quantization=int8",),
    "noise 1": ("--config.rollout.logit_noise=1.0",),
}
NOISY = "noise 1"  # the only one whose gap is large enough for a correction to matter
PRUNED = "--config.vocabulary.min_p=0.05"
CORRECTIONS = {
    "nothing": (),
    "token truncation": ("--config.correction.level=token", "--config.correction.cap=2.0"),
    "sequence truncation": ("--config.correction.level=sequence", "--config.correction.cap=2.0"),
    "geometric rejection": ("--config.correction.reject=(('seq_mean_k1', 0.9, 1.1),)",),
    "DVP on both sides": (PRUNED,),
    "DVP in the sampler": (PRUNED, "--config.vocabulary.side=sampler"),
    "DVP in the trainer": (PRUNED, "--config.vocabulary.side=trainer"),
}
PAIRS = (*((name, "nothing") for name in SAMPLERS),
         *((NOISY, name) for name in CORRECTIONS if name != "nothing"))
HEADER = ("sampler", "correction", *accuracy.HEADER)


def _key(sampler: str, correction: str, seed: int) -> str:
  name = f"{sampler}_{correction}_seed{seed}".lower().replace("'", "")
  return name.replace(" ", "_")


def cells() -> list[Cell]:
  return [Cell(_key(*pair, seed), (*BASE, *SAMPLERS[pair[0]], *CORRECTIONS[pair[1]],
                                   f"--config.seed={seed}"))
          for pair in PAIRS for seed in SEEDS]


def render(results: dict[str, dict], folder: Path) -> None:
  """Writes the table into README.md, and the figure."""
  rows, curves = [], {}
  for pair in PAIRS:
    keys = [_key(*pair, seed) for seed in SEEDS]
    if results.keys() >= set(keys):
      found = [results[key]["measured"] for key in keys]
      rows.append((*pair, *accuracy.row(found)))
      curves[", ".join(pair)] = accuracy.curves(found)
  tables.replace_part(folder / "README.md", "sweep.py",
                      tables.markdown_table(HEADER, rows) + sweeps.made_at(results))
  if curves:
    plots.plot_groups(curves, folder / "training.png", "eval/accuracy")


SWEEP = Sweep(HERE, cells(), accuracy.measure, render)

if __name__ == "__main__":
  sweeps.main(SWEEP, __doc__)
