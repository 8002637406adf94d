"""Train: flags and a config in, `trainer.run` out. No logic lives here.

Train, with another method (README.md: choose the method), and with other values:

  python experiments/main.py --config=configs/quickstart.py --workdir=runs/a
  python experiments/main.py --config=configs/quickstart.py:minpro --workdir=runs/b --config.seed=1

On several hosts, in each of them (nothing but the first line under Cloud TPU or SLURM):

  python experiments/main.py --config=configs/quickstart.py --workdir=runs/a \
      --coordinator=10.0.0.1:8476 --processes=2 --process=0

List all keys, their defaults, and the numbers of all methods:

  python -m jaxrl_llm.config

Evaluate a run (its plot and report are runs/a/curves.png and runs/a/report.html):

  python experiments/evaluate.py --workdir=runs/a --out=runs/a/evaluation
"""

from absl import flags
from ml_collections import config_flags

from experiments.commands import command_flags, command_line, disk
from experiments.report import OBSERVERS
from jaxrl_llm.runs import trainer

# Unknown keys and wrong types pass here, because the messages of `from_dict` name range and fix.
_CONFIG = config_flags.DEFINE_config_file("config", None,
                                          "Config file: `path.py` or `path.py:preset`.",
                                          lock_config=False, accept_new_attributes=True)
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Folder of the run; an interrupted run resumes from its last checkpoint.")


def main():
  cfg = command_flags.config_of(_CONFIG, trainer.check)
  with disk.named(_WORKDIR.value):
    trainer.run(cfg, _WORKDIR.value, OBSERVERS)


if __name__ == "__main__":
  command_line.run(main, required=("config", "workdir"), folders=("workdir",),
                   errors=(*trainer.RUN_ERRORS, disk.DiskError), multi_process=True,
                   early=trainer.EARLY_ENDS)
