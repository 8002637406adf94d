"""Export a run: a Hugging Face checkpoint directory, or its adapter in the format of PEFT.

  python experiments/export.py --workdir=runs/a --out=exported
  python experiments/export.py --workdir=runs/a --out=adapter --adapter
"""

import sys

from absl import app, flags, logging

from jaxrl_llm.config import ConfigError
from jaxrl_llm.models.safetensors_files import CheckpointError
from jaxrl_llm.runs import saved
from jaxrl_llm.runs.checkpoints import TornCheckpointsError

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.")
_OUT = flags.DEFINE_string("out", None, "Directory to write; it must not hold a checkpoint.")
_CHECKPOINT = flags.DEFINE_string("checkpoint", "latest",
                                  "Iteration of the checkpoint, or `latest`.")
_DTYPE = flags.DEFINE_enum(
    "dtype", None, ["float32", "bfloat16", "float16"],
    "Type of the stored weights; default: as they are trained. An adapter is float32.")
_ADAPTER = flags.DEFINE_bool("adapter", False, "Write only the low-rank adapter.")
flags.mark_flags_as_required(["workdir", "out"])


def main(_):
  logging.set_verbosity(logging.WARNING)
  write = saved.export_adapter if _ADAPTER.value else saved.export
  options = {} if _DTYPE.value is None else {"dtype": _DTYPE.value}
  iteration = write(_WORKDIR.value, _OUT.value, _CHECKPOINT.value, **options)
  print(f"{_OUT.value}: iteration {iteration} of {_WORKDIR.value}")


if __name__ == "__main__":
  try:
    app.run(main)
  except (ConfigError, CheckpointError, TornCheckpointsError, OSError) as error:
    sys.exit(f"error: {error}")
