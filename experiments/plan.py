"""Plan: what an iteration needs of a TPU slice or GPU machine, without having one.

Memory, collectives, operations and a roofline of every program, compiled for a described target:

  python experiments/plan.py --config=configs/qwen3_4b_ctpo_deepscaler.py --target=v5p:4x4x8

With other values, of two programs only, and as a file:

  python experiments/plan.py --config=configs/qwen3_4b_ctpo_deepscaler.py --target=v5p:4x4x4 \
    --config.mesh.fsdp=64 --programs=step,score --json=plan.json

With completions of .4 of their limit in the mean, which packing and the engine make use of:

  python experiments/plan.py --config=configs/qwen3_4b_ctpo_deepscaler.py --target=v5p:2x2x2 \
    --config.updates.token_budget=18432 --mean_length=.4

Two slices of TPUs, joined by the network between them: --target='v5p:2x2x2*2'.

It reads no weights, no data and no network. experiments/planning/README.md explains the columns.
"""

import os

from absl import flags
from ml_collections import config_flags

from experiments.commands import command_flags, command_line
from experiments.planning import plan

# Unknown keys and wrong types pass here, because the messages of `from_dict` name range and fix.
_CONFIG = config_flags.DEFINE_config_file("config", None,
                                          "Config file: `path.py` or `path.py:preset`.",
                                          lock_config=False, accept_new_attributes=True)
_TARGET = flags.DEFINE_string("target", None, "Device to compile for: v5p:4x4x4, v5e:1, h100:8.")
_PROGRAMS = flags.DEFINE_list("programs", [], "Programs, such as step,score; none: all.")
_MEAN_LENGTH = flags.DEFINE_float("mean_length", 1.0, "Mean tokens of a completion over "
                                  "rollout.max_new_tokens; 1: every row is sampled to its limit.")
_JSON = flags.DEFINE_string("json", None, "File for the same as JSON.")


def main():
  plan.run(command_flags.config_of(_CONFIG), _TARGET.value, tuple(_PROGRAMS.value),
           _JSON.value or "", _MEAN_LENGTH.value)


if __name__ == "__main__":
  os.environ["JAX_PLATFORMS"] = "cpu"  # no device of this machine is asked
  command_line.run(main, required=("config", "target"), folders=("json",), errors=())
