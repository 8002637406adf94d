"""Copies of a run's metrics in Weights & Biases and Trackio: `--config.writer.name=wandb`.

A config file names the plugin: `config.plugins = ("experiments.writers.online",)`.
"""

import dataclasses
import importlib
import json
import re
import uuid
from pathlib import Path
from typing import Any

from jaxrl_llm import register
from jaxrl_llm.fields import ConfigError, installing, option
from jaxrl_llm.reporting.metric_writers import MetricWriter
from jaxrl_llm.store.files import write_atomically
from jaxrl_llm.store.folders import is_bucket


@dataclasses.dataclass(frozen=True)
class Online:
  """Hyperparameters of writers that keep runs in projects."""

  project: str = option("jaxrl_llm", "project of the run")
  group: str = option("", "group of the run, for example of its seeds; empty: none")


class OnlineWriter(MetricWriter):
  """A run of a service. Its id, and the last iteration that was sent, are in workdir/<name>.json:
  a resumed run is the same one there, and sends no iteration twice.

  Attributes:
    name: of the client's package, and of the extra that installs it.
  """

  name: str

  def __init__(self, directory: Path, config: dict[str, Any], numbers):
    super().__init__(directory, config, numbers)
    self._path = self.directory / f"{self.name}.json"
    folder = re.sub(r"[^A-Za-z0-9_-]", "-", self.directory.resolve().name)
    self._state: dict[str, Any] = {"id": f"{folder}-{uuid.uuid4().hex[:8]}", "sent": -1}
    if self._path.exists():
      self._state = json.loads(self._path.read_text())
    else:
      self._keep()
    self._client = self.begin(_client(self.name), self._state["id"])

  @classmethod
  def require(cls) -> None:
    """Raises ConfigError if the client is not installed."""
    _client(cls.name)

  def begin(self, package, run_id: str):
    """Returns the client's run, new or continued, which has `log(values, step)` and `finish()`."""
    raise NotImplementedError

  def _keep(self) -> None:
    write_atomically(self._path, json.dumps(self._state) + "\n")

  def write(self, iteration: int, values: dict[str, float]) -> None:
    """Sends the metrics, unless this iteration's were sent before an interruption."""
    if iteration > self._state["sent"]:
      self._client.log(values, step=iteration)
      self._state["sent"] = iteration
      self._keep()

  def restart(self, lines: list[tuple[int, dict[str, float]]]) -> None:
    """Sends what the service does not have yet."""
    for iteration, values in lines:
      self.write(iteration, values)

  def close(self) -> None:
    """Waits until everything is sent."""
    self._client.finish()


@register.metric_writer("wandb", Online)
class Wandb(OnlineWriter):
  """Weights & Biases. Its own settings are variables of the environment: WANDB_MODE=offline."""

  name = "wandb"

  def begin(self, package, run_id: str):
    """Returns the run of this id."""
    folder = None if is_bucket(self.directory) else str(self.directory)  # None: the current one
    return package.init(project=self.numbers.project, group=self.numbers.group or None, id=run_id,
                        name=self.directory.resolve().name, dir=folder, config=self.config,
                        resume="allow")


@register.metric_writer("trackio", Online)
class Trackio(OnlineWriter):
  """Trackio: a local dashboard (`trackio show`) or, by TRACKIO_SPACE_ID, one on the hub."""

  name = "trackio"

  def begin(self, package, run_id: str):
    """Returns the run of this name."""
    return package.init(project=self.numbers.project, group=self.numbers.group or None,
                        name=run_id, config=self.config, resume="allow", embed=False,
                        auto_log_gpu=False, auto_log_cpu=False)


def _client(name: str):
  """Returns the module of a client; raises ConfigError if it is not installed."""
  try:
    return importlib.import_module(name)
  except ImportError as error:
    raise ConfigError(f"writer.name = {name!r}: {error}. Fix: {installing(name)}, or "
                      "writer.name=tensorboard.") from error
