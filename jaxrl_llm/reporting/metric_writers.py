"""Copies of a run's metrics for other programs: TensorBoard, and those that plugins bring.

metrics.jsonl is the record, which is always written. A copy may fail, for example for lack of a
network: that is warned of once, and the run continues. A writer of your own, in a plugin:

  from jaxrl_llm import register
  from jaxrl_llm.reporting.metric_writers import MetricWriter

  @register.metric_writer("lines", path="copy.txt")
  class Lines(MetricWriter):
    def write(self, iteration, values):
      with open(self.numbers.path, "a") as file:
        print(iteration, values, file=file)
"""

import contextlib
import glob
import logging
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

from jaxrl_llm.registry import METRIC_WRITERS, Choice
from jaxrl_llm.store.folders import is_bucket, path_of, put, remove

logger = logging.getLogger(__name__)


def register(name: str, numbers: type | None = None, *, replace: bool = False, **defaults):
  """Returns a decorator that enters a metric writer in the table; see `MetricWriter`.

  Args:
    name: one of the names in `writer.name`.
    numbers, replace, **defaults: as in `registry.Table.register`.
  """
  return METRIC_WRITERS.register(name, numbers, replace=replace, **defaults)


class MetricWriter:
  """A copy of the metrics. Only `write` must be given.

  Args:
    directory: the run's folder.
    config: the full config, nested.
    numbers: an instance of the hyperparameters of all chosen writers.
  """

  def __init__(self, directory: Path, config: dict[str, Any], numbers):
    self.directory, self.config, self.numbers = path_of(directory), config, numbers

  @classmethod
  def require(cls) -> None:
    """Raises ConfigError if a package is missing; called before anything compiles."""

  def write(self, iteration: int, values: dict[str, float]) -> None:
    """Takes the metrics of an iteration, finite or not."""
    raise NotImplementedError

  def restart(self, lines: list[tuple[int, dict[str, float]]]) -> None:
    """Called once, before the first `write`, with what the run has logged so far and still counts:
    (iteration, values) in order; empty for a new run. Later iterations are logged again.
    """

  def close(self) -> None:
    """Called at the end, also of a run that an error ended."""


@register("none")
class NoWriter(MetricWriter):
  """Only metrics.jsonl is written."""

  def write(self, iteration: int, values: dict[str, float]) -> None:
    """Does nothing."""


@register("tensorboard")
class Tensorboard(MetricWriter):
  """Events in workdir/tensorboard, which a resumed run writes anew."""

  def __init__(self, directory: Path, config: dict[str, Any], numbers):
    super().__init__(directory, config, numbers)
    self._local = None  # in place of a bucket, where nothing can be appended
    if is_bucket(directory):
      self._local = tempfile.TemporaryDirectory()
    self._events = self._local.name if self._local else os.path.join(directory, "tensorboard")
    self._open()

  def _open(self) -> None:
    # Here: they take a while to import. No thread writes, which would end with a traceback of its
    # own where the folder is gone.
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    os.makedirs(self._events, exist_ok=True)
    name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
    self._writer = RecordWriter(open(os.path.join(self._events, name), "wb"))
    version = Event(wall_time=time.time(), file_version="brain.Event:2")
    self._writer.write(version.SerializeToString())

  def write(self, iteration: int, values: dict[str, float]) -> None:
    """Adds the events and flushes them.

    Raises:
      FileNotFoundError: the folder was moved away or removed.
    """
    if not os.path.isdir(self._events):
      raise FileNotFoundError(f"{self._events} is not there any more")
    self._add(iteration, values)
    self._flush()

  def _flush(self) -> None:
    self._writer.flush()
    if self._local:
      put(Path(self._events), self.directory / "tensorboard")

  def restart(self, lines: list[tuple[int, dict[str, float]]]) -> None:
    """Removes all events and adds the events of `lines`."""
    self._writer.close()
    for path in glob.glob(os.path.join(glob.escape(self._events), "events.out.tfevents.*")):
      os.remove(path)
    if self._local and (self.directory / "tensorboard").exists():
      remove(self.directory / "tensorboard")
    self._open()
    for iteration, values in lines:
      self._add(iteration, values)
    self._flush()

  def _add(self, iteration: int, values: dict[str, float]) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.plugins.scalar.summary_v2 import scalar_pb

    for name, value in values.items():
      event = Event(wall_time=time.time(), step=iteration, summary=scalar_pb(name, float(value)))
      self._writer.write(event.SerializeToString())

  def close(self) -> None:
    """Closes the file of events."""
    self._writer.close()
    if self._local:
      put(Path(self._events), self.directory / "tensorboard")
      self._local.cleanup()


def require(choice: Choice) -> None:
  """Refuses a writer whose client is missing, and one that is no writer.

  Raises:
    ConfigError: with the command that installs the client, or the place of the writer.
  """
  for name, entry in METRIC_WRITERS.parts(choice.name).items():
    with METRIC_WRITERS.blamed(name):
      lacking = [part for part in ("write", "restart", "close", "require")
                 if not callable(getattr(entry.function, part, None))]
      if lacking or entry.function.write is MetricWriter.write:
        raise TypeError("a metric writer is a class on MetricWriter with a method write; this one "
                        f"lacks {', '.join(lacking or ['write'])}")
      entry.function.require()


class Copies:
  """All writers of a run. An error of one of them is logged once, as a warning.

  Args:
    choice: the config's section `writer`.
    directory: the run's folder.
    config: the full config, nested.
  """

  def __init__(self, choice: Choice, directory: Path, config: dict[str, Any]):
    self._writers, self._warned = {}, set()
    path_of(directory).mkdir(parents=True, exist_ok=True)
    numbers = METRIC_WRITERS.numbers(choice)
    for name, entry in METRIC_WRITERS.parts(choice.name).items():
      with self._guarded(name):
        self._writers[name] = entry.function(path_of(directory), config, numbers)

  def write(self, iteration: int, values: dict[str, float]) -> None:
    """Hands the metrics of an iteration to each writer."""
    for name, writer in self._writers.items():
      with self._guarded(name):
        writer.write(iteration, dict(values))

  def restart(self, lines: list[tuple[int, dict[str, float]]]) -> None:
    """Tells each writer what the run has logged so far."""
    for name, writer in self._writers.items():
      with self._guarded(name):
        writer.restart(lines)

  def close(self) -> None:
    """Closes each writer."""
    for name, writer in self._writers.items():
      with self._guarded(name):
        writer.close()

  @contextlib.contextmanager
  def _guarded(self, name: str):
    try:
      yield
    except (Exception, SystemExit) as error:  # of a service, its network, or a user's own code
      if name not in self._warned:
        reason = str(error).split("\n")[0][:200]
        logger.warning("the metric writer %s failed (%s: %s); the run continues, and metrics.jsonl "
                       "has all metrics", name, type(error).__name__, reason)
      self._warned.add(name)
