"""Several processes that do not fit, variables of the environment, limits of the machine, and
sandboxes that cannot be what is asked of them.
"""

import contextlib
import socket

from campaign import SMALL, Case, main


def processes(*flags: str, texts: tuple[str, ...] = (), **fields) -> Case:
  return Case((f"--config={SMALL}", "--workdir={here}/new", *flags), texts, **fields)


def variables(*texts: str, **environment: str) -> Case:
  return Case((f"--config={SMALL}", "--workdir={here}/new"), texts, environment=environment)


@contextlib.contextmanager
def taken(here):
  """A coordinator's port, and the one after it, at which somebody else listens."""
  for port in range(21_000, 30_000, 7):
    with contextlib.ExitStack() as stack:
      try:
        for number in (port, port + 1):
          stack.enter_context(socket.create_server(("127.0.0.1", number)))
      except OSError:
        continue
      yield {"port": str(port)}
      return


@contextlib.contextmanager
def free(here):
  """A port at which nobody listens."""
  with socket.socket() as place:
    place.bind(("127.0.0.1", 0))
    port = place.getsockname()[1]
  yield {"port": str(port)}


def sandbox(values: dict[str, str], *texts: str) -> Case:
  return main({"tool.name": "python", "tool.protocol": "tag"} | values, *texts, kind="turns")


ALONE = "--coordinator=127.0.0.1:{port}"
BRIEF = "--wait_for_processes=1"
PROCESSES = {
    "number of a word": processes("--process=first", texts=("process", "first")),
    "host that has no address": processes(
        "--coordinator=no-such-host.invalid:8476", "--processes=2", "--process=1", BRIEF,
        texts=("no-such-host.invalid",)),
    "coordinator that does not come": processes(
        ALONE, "--processes=2", "--process=1", BRIEF, texts=("process 0",), context=free),
    "others that do not come": processes(
        ALONE, "--processes=3", "--process=0", BRIEF, texts=("1", "2"), context=free),
    "port that is taken": processes(
        ALONE, "--processes=2", "--process=0", BRIEF, context=taken),
    "stranger in place of the coordinator": processes(
        ALONE, "--processes=2", "--process=1", BRIEF, texts=("process 0",), context=taken),
    "negative wait": processes("--wait_for_processes=-1", texts=("wait_for_processes=-1",)),
    "endless wait": processes("--wait_for_processes=inf", texts=("wait_for_processes=inf",)),
    "wait of a word": processes("--wait_for_processes=long", texts=("wait_for_processes",)),
    "a million processes": processes(ALONE, "--processes=1000000", "--process=0", BRIEF,
                                     texts=("process",), context=free),
}
ENVIRONMENT = {
    "unknown platform": variables("JAX_PLATFORMS", "abacus", JAX_PLATFORMS="abacus"),
    "platform that is not here": variables("JAX_PLATFORMS", "rocm", JAX_PLATFORMS="rocm"),
    "coordinator without a count": variables("JAX_COORDINATOR_ADDRESS",
                                             JAX_COORDINATOR_ADDRESS="h:1"),
    "SLURM without numbers": variables("the engine", SLURM_JOB_ID="7", SLURM_NTASKS="x",
                                       SLURM_STEP_NUM_TASKS="x", SLURM_STEP_NODELIST="a",
                                       SLURM_NODELIST="a", SLURM_PROCID="x", SLURM_LOCALID="0"),
    "Open MPI without a rank": variables("OMPI", OMPI_MCA_orte_hnp_uri="1.0;tcp://x:1",
                                         OMPI_COMM_WORLD_SIZE="2"),
    "devices below 0": variables(
        "XLA_FLAGS", XLA_FLAGS="--xla_force_host_platform_device_count=-1"),
}
SANDBOX = {
    "isolation of no kind": sandbox({"tool.require": "('magic',)"}, "require", "magic"),
    "memory of nothing": sandbox({"tool.memory_mb": "1"}, "tool.memory_mb = 1"),
    "memory without end": sandbox({"tool.memory_mb": "9" * 30}, "tool.memory_mb"),
    "time without end": sandbox({"tool.timeout": "1e300"}, "tool.timeout"),
    "output without end": sandbox({"tool.output_chars": "9" * 30}, "tool.output_chars"),
    "a million workers": sandbox({"rollout.tool_workers": "1000000"}, "workers"),
    "protocol that the tokenizer cannot write": sandbox({}, "tool"),
}
