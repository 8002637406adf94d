"""Which importance ratio holds on old rollouts whose lengths vary?

  python experiments/staleness_lengths/sweep.py --list
  python experiments/staleness_lengths/sweep.py --jobs=2
  python experiments/staleness_lengths/sweep.py --seeds=9      two seeds more
  python experiments/staleness_lengths/sweep.py --render

Methods of ../staleness at one staleness on the task of task.py, each at the learning rate that its
screening chose for completions of 32 tokens; nothing was screened here. Writes the tables of
README.md and accuracy.png beside this file.
"""

import functools
from pathlib import Path

from experiments.tables_lib import accuracy, sweeps
from experiments.tables_lib.sweeps import Cell, Sweep

HERE = Path(__file__).parent
staleness_long = sweeps.module(HERE.parent / "staleness_long/sweep.py")
SEEDS = tuple(range(7))
AGE, ITERATIONS = 8, 45
# Preset, learning rate, and what is set beside it, as in ../staleness.
METHODS = {
    "no ratio": ("grpo", "3e-5", ("--config.estimator.name=reinforce",)),
    staleness_long.REFERENCE: ("grpo", "1e-4", ()),
    "GSPO": ("gspo", "3e-4", ()),
    "CISPO": ("cispo", "1e-4", ()),
    "MinPRO": ("minpro", "1e-4", ()),
    "CTPO": ("ctpo", "3e-4", ("--config.correction.level=none", "--config.correction.cap=2.0")),
    "full sequence": ("seq_is", "3e-4", ()),
}
# Twice the mistakes of the task of one length: shorter completions meet fewer.
TASK = ("--config.plugins=experiments/staleness_lengths/task.py",
        "--config.task.name=stopping_recurrence", "--config.task.mistake_contexts=(4, 4, 8)",
        "--config.task.misread=4", "--config.rollout.min_new_tokens=2",
        "--config.task.heldout_problems=64")


def cells() -> list[Cell]:
  """Seed by seed, so that an unfinished sweep has all methods of a seed."""
  return [Cell(f"{name.replace(' ', '-')}_seed{seed}",
               (f"--config=configs/offpolicy.py:{preset}", *TASK, *flags,
                "--config.updates.anchor=behavior", f"--config.updates.staleness={AGE}",
                f"--config.optimizer.learning_rate={rate}", f"--config.iterations={ITERATIONS}",
                f"--config.seed={seed}"))
          for seed in SEEDS for name, (preset, rate, flags) in METHODS.items()]


SWEEP = Sweep(HERE, cells(), accuracy.measure_sampled, functools.partial(
    staleness_long.render, methods=METHODS, planned=len(cells()),
    title="accuracy, lengths that vary"))

if __name__ == "__main__":
  sweeps.main(SWEEP, __doc__)
