"""What one program of a policy may use."""

import dataclasses

from jaxrl_llm.fields import ConfigError

LARGEST = 1 << 20  # of a limit


@dataclasses.dataclass(frozen=True)
class Limits:
  """Resource limits of one program.

  Attributes:
    timeout: seconds of wall-clock time.
    cpu_seconds: seconds (integer) of processor time of one process.
    memory_mb: MiB of address space of one process; all of a program's processes together use at
      most `processes` times as much. Besides, there are its files (directory_mb), and the kernel's
      buffers of its pipes and sockets: at most 1 MiB for an open handle.
    processes: processes and threads alive at the same time, the first included.
    file_mb: MiB of one file.
    directory_mb: MiB of all its files together, held in memory; in force if `files` are isolated.
    open_files: file handles of one process.
    output_chars: characters of output that are kept, half of them from each end.
    code_bytes: size of the program in UTF-8.
  """

  timeout: float = 3.0
  cpu_seconds: int = 2
  memory_mb: int = 256
  processes: int = 8
  file_mb: int = 1
  directory_mb: int = 8
  open_files: int = 32
  output_chars: int = 4096
  code_bytes: int = 32768

  def __post_init__(self):
    lowest = {"timeout": 0.05, "memory_mb": 64, "open_files": 8, "output_chars": 16}
    highest = {"code_bytes": 1 << 26}
    for key, value in dataclasses.asdict(self).items():
      low, high = lowest.get(key, 1), highest.get(key, LARGEST)
      has_type = isinstance(value, int) or (key == "timeout" and isinstance(value, float))
      if not has_type or isinstance(value, bool) or not low <= value <= high:
        kind = "number" if key == "timeout" else "whole number"
        raise ConfigError(f"PythonSandbox: {key} = {value!r}: allowed is a {kind} in "
                          f"[{low}, {high}]. Fix: {key}={getattr(type(self), key)}.")
