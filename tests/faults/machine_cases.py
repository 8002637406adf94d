"""Several processes that do not fit, variables of the environment, limits of the machine, and
sandboxes that cannot be what is asked of them.
"""

import contextlib
import socket

from campaign import SMALL, Case, main


def processes(*flags: str, texts: tuple[str, ...] = (), **fields) -> Case:
  return Case((f"--config={SMALL}", "--workdir={here}/new", *flags), texts, **fields)


def variables(*texts: str, **environment: str) -> Case:
  """Returns a case of a run under these variables."""
  return Case((f"--config={SMALL}", "--workdir={here}/new"), texts, environment=environment)


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
    "others that do not come": processes(
        ALONE, "--processes=3", "--process=0", BRIEF, texts=("1", "2"), context=free),
    "negative wait": processes("--wait_for_processes=-1", texts=("wait_for_processes=-1",)),
    "a million processes": processes(ALONE, "--processes=1000000", "--process=0", BRIEF,
                                     texts=("process",), context=free),
}
ENVIRONMENT = {
    "unknown platform": variables("JAX_PLATFORMS", "abacus", JAX_PLATFORMS="abacus"),
    "SLURM without numbers": variables("the engine", SLURM_JOB_ID="7", SLURM_NTASKS="x",
                                       SLURM_STEP_NUM_TASKS="x", SLURM_STEP_NODELIST="a",
                                       SLURM_NODELIST="a", SLURM_PROCID="x", SLURM_LOCALID="0"),
}
SANDBOX = {
    "isolation of no kind": sandbox({"tool.require": "('magic',)"}, "require", "magic"),
    "time without end": sandbox({"tool.timeout": "1e300"}, "tool.timeout"),
    "protocol that the tokenizer cannot write": sandbox({}, "tool"),
}
