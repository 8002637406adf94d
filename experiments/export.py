"""Export a run: a Hugging Face checkpoint directory, or its adapter in the format of PEFT.

  python experiments/export.py --workdir=runs/a --out=exported
  python experiments/export.py --workdir=runs/a --out=adapter --adapter
"""

from absl import flags

from experiments.commands import command_line, saved
from jaxrl_llm.models.hf.errors import CheckpointError
from jaxrl_llm.parallel import processes
from jaxrl_llm.store.checkpoints import TornCheckpointsError

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.")
_OUT = flags.DEFINE_string("out", None, "Directory to write; it must not hold a checkpoint.")
_CHECKPOINT = flags.DEFINE_string("checkpoint", "latest",
                                  "Iteration of the checkpoint, `latest` or `best`.")
_DTYPE = flags.DEFINE_enum(
    "dtype", None, ["float32", "bfloat16", "float16"],
    "Type of all stored weights; default: the one that holds them without rounding. An adapter is "
    "float32.")
_PLUGINS = flags.DEFINE_string("plugins", "",
                               "`run`: import the plugins that the run's config names.")
_ADAPTER = flags.DEFINE_bool("adapter", False, "Write only the low-rank adapter.")


def main():
  write = saved.export_adapter if _ADAPTER.value else saved.export
  options = {} if _DTYPE.value is None else {"dtype": _DTYPE.value}
  iteration = write(_WORKDIR.value, _OUT.value, _CHECKPOINT.value,
                    plugins=_PLUGINS.value, **options)
  if processes.is_main():
    print(f"{_OUT.value}: iteration {iteration} of {_WORKDIR.value}")


if __name__ == "__main__":
  command_line.run(main, required=("workdir", "out"), folders=("workdir", "out"),
                   errors=(CheckpointError, TornCheckpointsError), multi_process=True)
