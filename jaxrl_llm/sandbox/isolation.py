"""The kinds of isolation between a program and its machine; README.md says what each means."""

import dataclasses

from jaxrl_llm.fields import ConfigError, did_you_mean


@dataclasses.dataclass(frozen=True)
class Isolation:
  """The kinds of isolation that the system granted.

  Limits on time, memory, processes, files and output hold in any case.
  """

  user: bool = False
  user_namespace: bool = False
  processes: bool = False
  files: bool = False
  devices: bool = False
  network: bool = False
  ipc: bool = False
  no_new_privileges: bool = False
  system_calls: bool = False

  @property
  def missing(self) -> tuple[str, ...]:
    return tuple(name for name in NAMES if not getattr(self, name))


NAMES = tuple(field.name for field in dataclasses.fields(Isolation))


def names(key: str, fields) -> frozenset[str]:
  """Checks that `fields` holds only names of `Isolation` fields, and returns them.

  Raises:
    ConfigError: an unknown name; the message lists the known ones.
  """
  for name in fields:
    if name not in NAMES:
      raise ConfigError(f"{key} = {name!r}: allowed are {', '.join(NAMES)}." +
                        did_you_mean(str(name), NAMES))
  return frozenset(fields)
