"""The real command in several processes that share a run."""

import socket
import tempfile
from pathlib import Path

import forked
import programs

ROOT = Path(__file__).parents[2]
CASES = "tests/parallel/small_runs.py"
# Threads of XLA: more devices than cores take turns.
FLAGS = f"{programs.FLAGS} --xla_cpu_multi_thread_eigen=false"


class Group:
  """`count` processes of `devices` CPU devices each, and their output.

  Args:
    flags: of the command, for all processes.
    script: in experiments/.
    environment: further variables.
  """

  def __init__(self, count: int, devices: int, *flags: str, script: str = "main",
               environment: dict[str, str] | None = None):
    env = programs.environment(
        XLA_FLAGS=f"{FLAGS} --xla_force_host_platform_device_count={devices}",
        **environment or {})
    place = [f"--coordinator=127.0.0.1:{free_port()}", f"--processes={count}"] if count > 1 else []
    self.outputs = [tempfile.TemporaryFile("w+") for _ in range(count)]
    self.processes = []
    for index, output in enumerate(self.outputs):
      arguments = [f"experiments/{script}.py", *flags, *place,
                   *([f"--process={index}"] if place else [])]
      # Forks have one seed of hashes; a process of several may not depend on the others' seeds.
      begin = forked.begin if 0 < index == count - 1 else forked.Command
      self.processes.append(begin(arguments, ROOT, env, output))

  def wait(self, seconds: float = 900.0) -> list[int]:
    """Returns the exit statuses; kills all if one takes longer."""
    try:
      return [process.wait(seconds) for process in self.processes]
    finally:
      for process in self.processes:
        process.kill()
        process.wait()

  def text(self, index: int) -> str:
    self.outputs[index].seek(0)
    return self.outputs[index].read()

  def succeed(self) -> None:
    statuses = self.wait()
    assert not any(statuses), (statuses, *map(self.text, range(len(statuses))))


def free_port() -> int:
  """Returns a port that is free now, as is the one after it."""
  while True:
    with socket.socket() as one, socket.socket() as two:
      one.bind(("127.0.0.1", 0))
      try:
        two.bind(("127.0.0.1", one.getsockname()[1] + 1))
        return one.getsockname()[1]
      except (OSError, OverflowError):
        continue


def train(count: int, devices: int, workdir: Path, kind: str, *overrides: str,
          environment: dict[str, str] | None = None) -> Group:
  return Group(count, devices, f"--config={CASES}:{kind}", f"--workdir={workdir}",
               *(f"--config.{item}" for item in overrides), environment=environment)
