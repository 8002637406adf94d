"""The kinds of isolation between a program and its machine, and what each of them means."""

import dataclasses

from jaxrl_llm.fields import ConfigError, did_you_mean

# What the absence of each kind of isolation means for a program.
LACKS = {
    "user":
        "a program runs as the trainer's user: it can signal the trainer unless processes are "
        "isolated, and reads and writes the trainer's files unless files are; for root, no limit "
        "on processes is in force",
    "user_namespace":
        "the process that starts programs has the trainer's privileges, and programs may make "
        "namespaces",
    "processes":
        "a program sees other processes; one that it detaches may outlive a killed worker",
    "files":
        "a program reads and writes whatever its user may; the total size of its files is not "
        "bounded",
    "devices":
        "a program sees the host's null, zero and urandom and can lock them; read-only if files "
        "are isolated, else it may change their times, and their modes as the trainer's user",
    "network":
        "a program reaches the network",
    "ipc":
        "a program reaches shared memory, queues and semaphores of the host that its user may use",
    "no_new_privileges":
        "a program may gain privileges by executing setuid files",
    "system_calls":
        "programs share keyrings with one another and with the trainer, hold up to open_files x "
        "file_mb of memory more in each process by memfds and some MiB for each socket, may use "
        "every family of sockets (VSOCK reaches the machine's host), and, as the trainer's user, "
        "change limits and priorities of the process that starts programs",
}


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

  def describe(self) -> str:
    """Returns one line for each kind: whether it is in force, and what its absence means."""
    lines = []
    for name in NAMES:
      granted = getattr(self, name)
      lines.append(f"{name}: yes." if granted else f"{name}: NO; {LACKS[name]}.")
    return "\n".join(lines)


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
