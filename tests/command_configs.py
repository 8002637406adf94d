"""The config that experiments/main.py makes of its arguments, in this process."""

from unittest import mock

from absl import flags
from ml_collections import config_flags

from experiments.commands import command_flags
from jaxrl_llm.config import Config


def config_of(*arguments: str) -> Config:
  values, argv = flags.FlagValues(), ["main.py", *arguments]
  choice = config_flags.DEFINE_config_file("config", None, lock_config=False, flag_values=values,
                                           accept_new_attributes=True, sys_argv=argv)
  with mock.patch.object(command_flags.flags, "FLAGS", values):
    command_flags.parse(argv)
    return command_flags.config_of(choice)
