"""`jax.distributed` from flags, or from the engine that launched the processes."""

import dataclasses
import functools
import logging
import os
import re
import sys
import time
from typing import TYPE_CHECKING

import jax
from jax._src import clusters

from jaxrl_llm.config import ConfigError

if TYPE_CHECKING:  # a run of one process calls no roll
  from experiments.commands.roll_call import RollCall

Distributed = tuple[str | None, int | None, int | None, list[int] | None]
WAIT = 300.0  # seconds in which all processes must have come
# A process that died is noticed by the roll call; JAX's own, slower check is the second net.
HEARTBEAT = 50  # seconds
CPU_THREADS = 32
GRACE = 2.0  # seconds in which the roll call may notice that another process died first
logger = logging.getLogger(__name__)
_roll_call: "RollCall | None" = None


class AbsentError(RuntimeError):
  """Not all processes of the run have come in time; the message names the missing ones."""


@dataclasses.dataclass(frozen=True)
class Place:
  """The place of a process among the run's processes.

  Attributes:
    coordinator: host:port of process 0; the roll call has the port after it.
    count, index: of the processes; which one this is.
    devices: numbers of the local devices that it may use; None: all.
  """

  coordinator: str
  count: int
  index: int
  devices: list[int] | None = None


def start(coordinator: str | None = None, processes: int | None = None, process: int | None = None,
          wait: float = WAIT) -> None:
  """Joins the other processes of the run, before anything asks JAX for devices.

  Without arguments they are the processes that Cloud TPU, SLURM, Kubernetes or Open MPI launched;
  if none of these did, or they launched one process only, nothing happens. `processes=1` says so,
  too.

  Args:
    coordinator: host:port of process 0.
    processes: how many there are.
    process: which one this is, from 0.
    wait: seconds in which all must have come.

  Raises:
    ConfigError: only some of the arguments are given, or they do not fit together.
    AbsentError: naming the processes that did not come.
  """
  global _roll_call
  place = _place_of_flags(coordinator, processes, process) or _launched(wait)
  if place is None or place.count == 1:
    return
  from experiments.commands.roll_call import RollCall
  roll_call = RollCall(_roll_call_address(place.coordinator), place.count, place.index,
                       functools.partial(_end_process, place.index))
  roll_call.begin(wait)
  # A run handles SIGTERM itself (store/signals.py); JAX's service would take the signal from it.
  jax.config.update("jax_enable_preemption_service", False)
  # A collective between processes blocks a thread of the CPU backend for each local device, and
  # needs others to come to its end. By default there are as many threads as cores.
  os.environ.setdefault("PJRT_NPROC", str(max(CPU_THREADS, os.cpu_count() or 1)))
  jax.distributed.initialize(place.coordinator, place.count, place.index, place.devices,
                             initialization_timeout=60, heartbeat_timeout_seconds=HEARTBEAT,
                             shutdown_timeout_seconds=60)
  _roll_call = roll_call
  if place.index:
    logging.getLogger("jaxrl_llm").setLevel(logging.ERROR)  # process 0 says the same
  else:
    logger.warning("%d processes with %d devices in all; process 0 of them is %s", place.count,
                   jax.device_count(), place.coordinator)


def finish() -> None:
  """Leaves the run, after everything has been done."""
  global _roll_call
  if _roll_call is not None:
    _roll_call.leave()
    _roll_call = None
    jax.distributed.shutdown()


def fail(reason: str) -> bool:
  """Tells the other processes why this one ends, so that they end, too; False if there are none.

  Then exit by `os._exit`: at a normal exit JAX waits for the others. If this process fails because
  another one died, it does not return: the roll call names that one, and ends this process.
  """
  if _roll_call is None:
    return False
  time.sleep(GRACE)
  _roll_call.leave(reason.split("\n")[0][:500])
  return True


def _end_process(index: int, line: str) -> None:
  """Ends process `index`, which is this one. Its main thread may wait for the other in vain."""
  print(f"error: {line}; process {index} ends, too. The same command, started again, resumes",
        file=sys.stderr, flush=True)
  os._exit(1)


def _place_of_flags(coordinator: str | None, processes: int | None,
                    process: int | None) -> Place | None:
  """Returns the place that flags name; None without any."""
  if processes == 1:
    return Place("", 1, 0)
  flags = {"--coordinator": coordinator, "--processes": processes, "--process": process}
  missing = [flag for flag, value in flags.items() if value is None]
  if len(missing) == len(flags):
    return None
  if missing:
    raise ConfigError(f"{', '.join(missing)}: not given. Fix: all of {', '.join(flags)}, or none "
                      "of them where an engine launches the processes.")
  host, _, port = coordinator.rpartition(":")
  if not host or not port.isdigit() or not 0 < int(port) < 65535:
    raise ConfigError(f"--coordinator={coordinator}: allowed is <host>:<port> with a port of 1 to "
                      "65534. Fix: the address of process 0, such as 10.0.0.1:8476.")
  if processes < 1 or not 0 <= process < processes:
    raise ConfigError(f"--processes={processes} --process={process}: allowed are 1 to inf "
                      "processes, numbered from 0. Fix: --process=0 to "
                      f"--process={max(1, processes) - 1}.")
  return Place(coordinator, processes, process)


def _launched(wait: float) -> Place | None:
  """Returns the place that an engine gave this process; None if none launched it."""
  try:
    place = Place(*_launched_place(os.environ.get("JAX_COORDINATOR_ADDRESS"), int(wait)))
  except (KeyError, ValueError, IndexError) as error:
    raise ConfigError(
        "the variables of the engine that launched this process do not say where it stands "
        f"({type(error).__name__}: {error}). Fix: the flags --coordinator, --processes and "
        "--process, or --processes=1.") from error
  if place.coordinator is None:
    return None
  if place.count is None or place.index is None:
    raise ConfigError(
        f"JAX_COORDINATOR_ADDRESS={place.coordinator}, but no engine says how many processes there "
        "are. Fix: the flags --coordinator, --processes and --process, or unset the variable.")
  # JAX gives a process of SLURM the device of its number on the host, even if no other one is
  # there.
  single_process = re.fullmatch(r"1(\(x\d+\))?", os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
  return dataclasses.replace(place, devices=None) if single_process else place


def _launched_place(coordinator: str | None, seconds: int) -> Distributed:
  """Returns what an engine (Cloud TPU, SLURM, Kubernetes, Open MPI) says of this process.

  `jax.distributed.initialize` asks the same, but then waits without saying for whom.

  Args:
    coordinator: host:port of process 0, if it is known.
    seconds: to wait for an answer.

  Returns:
    (coordinator, number of processes, index of this one, numbers of its local devices), None where
    nothing launched it.
  """
  return clusters.ClusterEnv.auto_detect_unset_distributed_params(
      coordinator, None, None, None, None, seconds)


def _roll_call_address(coordinator: str) -> str:
  """Returns the address of the roll call: a port next to the coordinator's, which JAX uses."""
  host, port = coordinator.rsplit(":", 1)
  return f"{host}:{int(port) + (1 if int(port) < 65535 else -1)}"
