"""Train: flags and a config in, `trainer.run` out. No logic lives here.

  python experiments/main.py --config=configs/quickstart.py:minpro --config.seed=1 --workdir=runs/a
"""

import sys

from absl import app, flags, logging
from ml_collections import config_flags

from jaxrl_llm import config as config_lib
from jaxrl_llm.runs import trainer

# Unknown keys and wrong types pass here, because the messages of `from_dict` name range and fix.
_CONFIG = config_flags.DEFINE_config_file("config", None,
                                          "Config file: `path.py` or `path.py:preset`.",
                                          lock_config=False, accept_new_attributes=True)
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Folder of the run; an interrupted run goes on from its last checkpoint.")
flags.mark_flags_as_required(["config", "workdir"])


def main(_):
  logging.set_verbosity(logging.WARNING)
  trainer.run(config_lib.from_dict(_CONFIG.value), _WORKDIR.value)


def parse_flags(argv):
  try:
    return app.parse_flags_with_usage(argv)
  # An unknown section. `from_dict` refuses unknown keys of a known one.
  except KeyError as error:
    raise config_lib.ConfigError(f"unknown key: {error.args[0]}") from error


if __name__ == "__main__":
  try:
    app.run(main, flags_parser=parse_flags)
  except (config_lib.ConfigError, *trainer.RUN_ERRORS, OSError) as error:
    sys.exit(f"error: {error}")
