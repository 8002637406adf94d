"""`python -m jaxrl_llm.config`: the commented listing of the keys that a run reads.

`--config=configs/<file>.py:<preset>` and `--config.<key>=<value>` say which run; `--all` lists all
keys.
"""

import sys

from absl import flags
from ml_collections import config_flags

from jaxrl_llm.config import ConfigError, base_config, describe, from_dict


def get_config():
  """Returns the config of the listing without --config."""
  return base_config()


def main(arguments: list[str]) -> None:
  if "--help" in arguments:
    print(__doc__)
    return
  values = flags.FlagValues()
  flags.DEFINE_bool("all", False, "lists all keys, with their defaults", flag_values=values)
  try:
    # New attributes are accepted here, so that `from_dict` names the nearest key of a wrong one.
    config = config_flags.DEFINE_config_file("config", __file__, "the run", lock_config=False,
                                             accept_new_attributes=True, flag_values=values,
                                             sys_argv=arguments)
    values(arguments)
    print(describe(None if values["all"].value else from_dict(config.value)))
  except (ConfigError, flags.Error, AttributeError, KeyError, OSError) as error:
    sys.exit(f"error: {error}")


if __name__ == "__main__":
  main(sys.argv)
