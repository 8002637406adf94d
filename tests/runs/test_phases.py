"""Time by phase, tokens per second, memory, and the choice of iterations to profile."""

from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from jaxrl_llm.config import ConfigError, check, from_dict
from jaxrl_llm.runs import outputs, phases, records
from jaxrl_llm.runs.observers import Observers
from jaxrl_llm.runs.phases import PHASES, Phases


class Clock:
  now = 0.0

  def perf_counter(self):
    return self.now


@pytest.fixture
def clock(monkeypatch):
  fake_clock = Clock()
  monkeypatch.setattr(phases, "time", fake_clock)
  return fake_clock


def iteration(spent: Phases, clock, values) -> dict:
  """Waits 1 s for updates, iterates for 5 s, writes for 1 s, evaluates for 3 s."""
  clock.now += 1.0
  spent.wait(jnp.zeros(()))
  clock.now += 5.0
  spent.iterated(values)
  clock.now += 1.0
  spent.lap("other")
  clock.now += 3.0
  spent.lap("evaluation")
  return spent.take(60.0)


def test_shares_are_those_of_the_wall_time(clock):
  spent = Phases()
  times = iteration(spent, clock, {"time/rollout": 2.0, "time/verify": 1.0})
  assert times["time/iteration"] == 10.0
  assert times["time/tokens_per_second"] == pytest.approx(60 / 7), "all but the evaluation"
  shares = {phase: times[f"time/share/{phase}"] for phase in PHASES}
  assert shares == pytest.approx({"rollout": 0.2, "verify": 0.1, "update": 0.3, "evaluation": 0.3,
                                  "checkpoint": 0.0, "report": 0.0, "other": 0.1})
  clock.now += 10.0
  spent.lap("checkpoint")
  times = iteration(spent, clock, {"time/rollout": 2.0})
  assert times["time/iteration"] == 20.0, "the checkpoint counts in the next line"
  assert times["time/share/checkpoint"] == 0.5
  assert times["time/tokens_per_second"] == pytest.approx(60 / 7)


class Queue:
  """A device that computes one program after the other; waiting for one passes the clock's time."""

  def __init__(self, clock):
    self.clock, self.end = clock, 0.0

  def dispatch(self, seconds: float) -> float:
    """Returns the time at which a program that is queued now will have ended."""
    self.end = max(self.end, self.clock.now) + seconds
    return self.end

  def wait(self, ready: float) -> float:
    self.clock.now = max(self.clock.now, ready)
    return ready


class LateRecords(outputs.RunRecords):
  """Merges an iteration's metrics when its line is written: behind the next iteration's updates."""

  def _write_pending(self):
    if self._pending is not None:
      late = outputs.merged_metrics(self._pending.metrics.steps)
      self._pending = self._pending._replace(merged=late)
    super()._write_pending()


def on_queue(queue: Queue, kind, waits: bool, monkeypatch) -> tuple[outputs.RunRecords, list[int]]:
  """(records whose lines take 0.1 s, the iterations that they have written)."""
  iterations = []

  def write_line(_, line):
    queue.wait(line.merged["end"])
    queue.clock.now += 0.1
    iterations.append(line.iteration)

  monkeypatch.setattr(outputs, "merged_metrics", lambda steps: {"end": queue.dispatch(0.0)})
  monkeypatch.setattr(phases.jax, "block_until_ready", queue.wait)
  monkeypatch.setattr(outputs, "write_line", write_line)
  monkeypatch.setattr(outputs, "write_rollouts", lambda *_: None)
  monkeypatch.setattr(outputs.lock, "check", lambda _: None)
  monkeypatch.setattr(records.Records, "write", lambda *_: [])
  schedule = SimpleNamespace(rollouts=None, profile=(), wait_for_updates=waits)
  loop = SimpleNamespace(schedule=schedule, source=None)
  return kind(loop, SimpleNamespace(directory=None, observers=Observers(None, ()))), iterations


def booked(kind, clock, monkeypatch, waits: bool = False) -> tuple[float, dict, list]:
  """(seconds of `other`, metrics, lines that are there when its batch begins) of the last of four
  iterations: 4 s of sampling, 5 s of updates, and 0.1 s for the line.
  """
  queue = Queue(clock)
  written, iterations = on_queue(queue, kind, waits, monkeypatch)
  updates = 0.0
  for number in range(1, 5):
    if not waits:
      written._phases.wait(updates)
    with written.updating(SimpleNamespace(state=SimpleNamespace(step=updates)), number):
      lines_before = list(iterations)
      clock.now += 4.0
      updates = queue.dispatch(5.0)  # dispatched; nobody waits
    metrics = records.DeviceMetrics([], {}, {})
    written.write(number, SimpleNamespace(batch=None), metrics, {"time/rollout": 4.0})
    line = written._phases.take(910.0)
  return line["time/share/other"] * line["time/iteration"], line, lines_before


def test_the_wait_for_an_update_is_the_updates(clock, monkeypatch):
  for waits in (True, False):
    other, line, _ = booked(outputs.RunRecords, clock, monkeypatch, waits)
    assert other == pytest.approx(0.1)
    assert line["time/tokens_per_second"] == pytest.approx(910 / line["time/iteration"])
  other, *_ = booked(LateRecords, clock, monkeypatch)
  assert other > 4.0, "the test would not tell metrics that wait for the next update"


def test_a_line_is_there_before_the_next_batch_where_the_loop_waits(clock, monkeypatch):
  assert booked(outputs.RunRecords, clock, monkeypatch, waits=True)[-1] == [1, 2, 3]
  assert booked(outputs.RunRecords, clock, monkeypatch, waits=False)[-1] == [1, 2]


def test_a_runs_clock_leaves_out_the_pauses_between_its_processes(clock):
  first = phases.Clock()
  clock.now += 12.0
  lines = [{"iteration": 0, **first.metrics()}, {"iteration": 1}]
  assert lines[0]["time/elapsed"] == 12.0
  clock.now += 500.0
  second = phases.Clock()
  clock.now += 3.0
  second.resume(lines)
  assert second.metrics() == {"time/elapsed": 15.0}
  second.resume([])
  assert second.metrics() == {"time/elapsed": 15.0}


def test_of_rollouts_sampled_ahead_only_the_wait_counts(clock):
  times = iteration(Phases(), clock, {"time/rollout": 40.0, "time/verify": 9.0, "time/waited": 1.0})
  assert times["time/share/rollout"] == 0.1 and times["time/share/update"] == 0.5
  assert sum(times[f"time/share/{phase}"] for phase in PHASES) == pytest.approx(1.0)


def test_memory_is_the_devices_or_else_the_processs(monkeypatch):
  class Device:
    def __init__(self, stats):
      self.memory_stats = lambda: stats

  assert 0.01 < phases.peak_memory() < 1000
  devices = [Device({"peak_bytes_in_use": 2**30}), Device({"peak_bytes_in_use": 3 * 2**30})]
  monkeypatch.setattr(phases.jax, "local_devices", lambda: devices)
  assert phases.peak_memory() == 3.0
  assert all(name.startswith("time/") for name in Phases().take(1.0))


@pytest.mark.parametrize("given", [(0,), (101,), "x", (1.5,), True])
def test_iterations_that_are_none_are_refused(given):
  with pytest.raises(ConfigError, match="profile"):
    check(from_dict({"profile": given}))
