"""Time by phase, tokens per second, memory, and the choice of iterations to profile."""

import jax.numpy as jnp
import pytest

from jaxrl_llm.config import ConfigError, check, from_dict
from jaxrl_llm.runs import phases
from jaxrl_llm.runs.phases import PHASES, Phases


class Clock:
  now = 0.0

  def perf_counter(self):
    return self.now


@pytest.fixture
def clock(monkeypatch):
  made = Clock()
  monkeypatch.setattr(phases, "time", made)
  return made


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
  found = iteration(spent, clock, {"time/rollout": 2.0, "time/verify": 1.0})
  assert found["time/iteration"] == 10.0 and found["time/tokens_per_second"] == 10.0
  shares = {phase: found[f"time/share/{phase}"] for phase in PHASES}
  assert shares == pytest.approx({"rollout": 0.2, "verify": 0.1, "update": 0.3, "evaluation": 0.3,
                                  "checkpoint": 0.0, "other": 0.1})
  clock.now += 10.0
  spent.lap("checkpoint")
  found = iteration(spent, clock, {"time/rollout": 2.0})
  assert found["time/iteration"] == 20.0, "the checkpoint counts in the next line"
  assert found["time/share/checkpoint"] == 0.5 and found["time/tokens_per_second"] == 10.0


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
  found = iteration(Phases(), clock, {"time/rollout": 40.0, "time/verify": 9.0, "time/waited": 1.0})
  assert found["time/share/rollout"] == 0.1 and found["time/share/update"] == 0.5
  assert sum(found[f"time/share/{phase}"] for phase in PHASES) == pytest.approx(1.0)


def test_memory_is_the_devices_or_else_the_processs(monkeypatch):
  class Device:
    def __init__(self, stats):
      self.memory_stats = lambda: stats

  assert 0.01 < phases.peak_memory() < 1000
  devices = [Device({"peak_bytes_in_use": 2**30}), Device({"peak_bytes_in_use": 3 * 2**30})]
  monkeypatch.setattr(phases.jax, "local_devices", lambda: devices)
  assert phases.peak_memory() == 3.0
  assert all(name.startswith("time/") for name in Phases().take(1.0))


@pytest.mark.parametrize("given, expected", [((3, 4), (3, 4)), ([3], (3,)), (3, (3,))])
def test_profiled_iterations_as_the_command_line_gives_them(given, expected):
  assert from_dict({"profile": given}).profile == expected


@pytest.mark.parametrize("given", [(0,), (101,), "x", (1.5,), True])
def test_iterations_that_are_none_are_refused(given):
  with pytest.raises(ConfigError, match="profile"):
    check(from_dict({"profile": given}))


def test_only_the_chosen_iterations_are_traced(monkeypatch, tmp_path):
  import contextlib

  traced = []

  @contextlib.contextmanager
  def trace(folder):
    traced.append(folder)
    yield

  monkeypatch.setattr(phases.jax.profiler, "trace", trace)
  for number in (1, 2, 3):
    with phases.profiled(tmp_path, (2,), number) as on:
      assert on == (number == 2)
  assert traced == [str(tmp_path / "profile" / "iteration_00002")]
