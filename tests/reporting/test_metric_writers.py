"""Copies of the metrics: what each writer sends, also after a restart, and failures that do not
matter.
"""

import contextlib
import inspect
import json
import sys
import types

import numpy as np
import pytest

from experiments.writers import online  # noqa: F401  it registers two
from jaxrl_llm import config as config_lib
from jaxrl_llm.config import ConfigError, WriterConfig, from_dict
from jaxrl_llm.reporting.metric_writers import Copies, MetricWriter, register
from jaxrl_llm.reporting.writers import MetricsWriter

CONFIG = {"seed": 3}


class FakeRun:
  """What a client's `init` returns."""

  def __init__(self, calls):
    self._calls = calls

  def log(self, data, step=None):
    self._calls.append(("log", data, step))

  def finish(self):
    self._calls.append(("finish",))


def wandb_init(entity=None, project=None, dir=None, id=None, name=None, notes=None, tags=None,
               config=None, config_exclude_keys=None, config_include_keys=None,
               allow_val_change=None, group=None, job_type=None, mode=None, force=None, reinit=None,
               resume=None, resume_from=None, fork_from=None, save_code=None, tensorboard=None,
               sync_tensorboard=None, monitor_gym=None, settings=None):
  """The parameters of wandb 0.31."""


def trackio_init(project, name=None, group=None, space_id=None, server_url=None, dataset_id=None,
                 bucket_id=None, config=None, resume="never", settings=None, private=None,
                 embed=True, auto_log_gpu=None, gpu_log_interval=10.0, auto_log_cpu=None,
                 cpu_log_interval=10.0, webhook_url=None, webhook_min_level=None):
  """The parameters of trackio 0.43."""


@pytest.fixture(params=["wandb", "trackio"])
def client(request, monkeypatch):
  """(name, calls) of a stand-in for a client, which refuses arguments that the real one lacks."""
  signature = inspect.signature({"wandb": wandb_init, "trackio": trackio_init}[request.param])
  calls = []

  def init(*args, **kwargs):
    calls.append(("init", signature.bind(*args, **kwargs).arguments))
    return FakeRun(calls)

  module = types.ModuleType(request.param)
  module.init = init
  monkeypatch.setitem(sys.modules, request.param, module)
  return request.param, calls


def opened(folder, name, **numbers) -> MetricsWriter:
  return MetricsWriter(folder, Copies(WriterConfig(name, **numbers), folder, CONFIG))


def steps(calls) -> list[int]:
  return [call[2] for call in calls if call[0] == "log"]


def test_a_service_gets_every_iteration_once_in_one_run(client, tmp_path):
  """Killed after iteration 3, gone on with from iteration 1."""
  name, calls = client
  writer = opened(tmp_path / "a", name, project="p", group="g")
  writer.cut_back(-1)
  for iteration in range(4):
    writer.write(iteration, {"x": np.float32(iteration)})
  again = opened(tmp_path / "a", name, project="p", group="g")
  again.cut_back(1)
  for iteration in range(2, 6):
    again.write(iteration, {"x": float(iteration)})
  again.close()
  first, second = (call[1] for call in calls if call[0] == "init")
  assert first == second and first["resume"] == "allow"
  assert (first["project"], first["group"], first["config"]) == ("p", "g", CONFIG)
  key = {"wandb": "id", "trackio": "name"}[name]
  assert first[key].startswith("a-")
  assert steps(calls) == [0, 1, 2, 3, 4, 5] and calls[-1] == ("finish",)
  assert calls[1] == ("log", {"x": 0.0}, 0)
  assert [line["iteration"] for line in map(
      json.loads, (tmp_path / "a" / "metrics.jsonl").read_text().splitlines())] == list(range(6))
  other = opened(tmp_path / "b" / "a", name)
  other.close()
  assert calls[-2][1][key] != first[key], "two folders are two runs"


def test_what_a_service_missed_is_sent_when_the_run_goes_on(client, tmp_path):
  name, calls = client
  without = MetricsWriter(tmp_path)
  for iteration in range(3):
    without.write(iteration, {"x": 1.0})
  without.close()
  opened(tmp_path, name).cut_back(2)
  assert steps(calls) == [0, 1, 2]


class Failing(MetricWriter):
  def write(self, iteration, values):
    if iteration > 1:
      raise ConnectionError("no route to host")


def test_a_writer_that_fails_is_warned_of_once_and_others_go_on(tmp_path, caplog):
  seen = []

  @register("failing", gain=2.0)
  class Mine(Failing):
    pass

  @register("seeing")
  class Seeing(MetricWriter):
    def write(self, iteration, values):
      seen.append((iteration, values["x"], self.numbers.gain, self.directory))

  with contextlib.closing(opened(tmp_path, "failing,seeing", gain=3.0)) as writer:
    for iteration in range(5):
      writer.write(iteration, {"x": 1.0})
  assert seen == [(i, 1.0, 3.0, tmp_path) for i in range(5)]
  warnings = [record for record in caplog.records if "no route to host" in record.getMessage()]
  assert len(warnings) == 1 and "metrics.jsonl has all" in warnings[0].getMessage()
  assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 5
  with pytest.raises(ConnectionError):  # unguarded, it would end the run
    Mine(tmp_path, CONFIG, None).write(2, {})


@pytest.mark.parametrize("name, folders", [("tensorboard", {"tensorboard"}), ("none", set())])
def test_built_in_writers_leave_their_files(tmp_path, name, folders):
  writer = opened(tmp_path, name)
  writer.write(0, {"x": 1.0})
  writer.close()
  assert {path.name for path in tmp_path.iterdir()} == {"metrics.jsonl"} | folders


def test_numbers_of_several_writers_are_one_section():
  cfg = config_lib.fill(from_dict({"writer": {"name": "tensorboard,wandb", "project": "p"}}))
  assert cfg.writer.project == "p" and cfg.writer.group == ""
  assert from_dict(config_lib.to_dict(cfg)).writer == cfg.writer
  with pytest.raises(ConfigError, match=r"'tensorboard' does not read it.*trackio, wandb"):
    from_dict({"writer": {"name": "tensorboard", "project": "p"}})
  with pytest.raises(ConfigError, match="Did you mean 'wandb'"):
    from_dict({"writer": {"name": "wandbb", "project": "p"}})
