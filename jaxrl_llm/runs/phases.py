"""Time of a run by phase, sampling speed, memory, and its profile.

Everything measured here differs from run to run, so all its metrics begin with `time/`.
"""

import contextlib
import resource
import sys
import time
from pathlib import Path

import jax

from jaxrl_llm.store import folders

# In the order of an iteration. `other` is the writing of metrics and completions.
PHASES = ("rollout", "verify", "update", "evaluation", "checkpoint", "report", "other")
# Tokens per second leave these out: they should not depend on how often a run evaluates or saves.
BETWEEN = ("evaluation", "checkpoint", "report")
GIB = 2**30


class Clock:
  """Wall time of a run over all its processes, in seconds; the pauses between them do not count."""

  def __init__(self):
    self._begin = time.perf_counter()

  def resume(self, lines: list[dict]) -> None:
    """Adds the time of the processes before, as far as their lines of metrics tell."""
    self._begin -= max((line.get("time/elapsed", 0.0) for line in lines), default=0.0)

  def metrics(self) -> dict[str, float]:
    return {"time/elapsed": time.perf_counter() - self._begin}


class Phases:
  """Divides the wall time of the loop's thread into phases.

  A span of time runs from one line of metrics to the next. It begins when the line before is made,
  so the checkpoint of an iteration, and what the host leaves of its update, count in the next one.
  """

  def __init__(self):
    self._begin = self._last = time.perf_counter()
    self._spent = dict.fromkeys(PHASES, 0.0)

  def lap(self, phase: str) -> None:
    """Counts the time since the last call as that phase's."""
    now = time.perf_counter()
    self._spent[phase] += now - self._last
    self._last = now

  def wait(self, array: jax.Array) -> None:
    """Waits for the updates, which end with this array, and counts the time for the updates.

    Otherwise it would count for whatever needs the parameters next: rollouts or an evaluation.
    """
    jax.block_until_ready(array)
    self.lap("update")

  def iterated(self, values: dict[str, float]) -> None:
    """Counts the time of `iterate`: rollouts and verification as measured there, the rest as the
    update's. If rollouts were sampled ahead, only the time that the loop waited counts. Repeated
    rounds of dynamic sampling count as rollouts with their verification.
    """
    now = time.perf_counter()
    rollout = values.get("time/waited", values["time/rollout"])
    verify = 0.0 if "time/waited" in values else values.get("time/verify", 0.0)
    self._spent["rollout"] += rollout
    self._spent["verify"] += verify
    self._spent["update"] += max(0.0, now - self._last - rollout - verify)
    self._last = now

  def take(self, tokens: float) -> dict[str, float]:
    """Returns the metrics of the span that ends now; the next one begins.

    Args:
      tokens:   tokens of the completions that were sampled in it.
    """
    self.lap("other")
    total = max(self._last - self._begin, 1e-9)
    training = max(total - sum(self._spent[phase] for phase in BETWEEN), 1e-9)
    values = {
        "time/iteration": total,
        "time/tokens_per_second": tokens / training,
        "time/peak_memory": peak_memory(),
        **{f"time/share/{phase}": spent / total for phase, spent in self._spent.items()},
    }
    self._begin, self._spent = self._last, dict.fromkeys(PHASES, 0.0)
    return values


def peak_memory() -> float:
  """Returns GiB: the largest peak of a local device so far or, where devices do not report it, the
  peak of the process's resident memory.
  """
  stats = [device.memory_stats() or {} for device in jax.local_devices()]
  peaks = [device["peak_bytes_in_use"] for device in stats if "peak_bytes_in_use" in device]
  if peaks:
    return max(peaks) / GIB
  resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return resident * (1 if sys.platform == "darwin" else 1024) / GIB


@contextlib.contextmanager
def profiled(directory: Path, iterations: tuple[int, ...], iteration: int):
  """Traces what happens inside if `iteration` is one of `iterations`; yields whether it is.

  The trace is in directory/profile/iteration_<n>, which TensorBoard and Perfetto show. Programs
  must have finished on the devices before the context ends to be in the trace.
  """
  if iteration not in iterations:
    yield False
    return
  with folders.local(directory / "profile" / f"iteration_{iteration:05d}") as local:
    with jax.profiler.trace(str(local)):
      yield True
