"""What would be submitted is run, by stubs of the engines, and goes on when started again."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import command
import launching
import pytest

from jaxrl_llm.reporting.reader import read_metrics

LAST = 5


def faults(workdir: Path, last: int, processes: int) -> list[str]:
  """What a finished run of several processes lacks, or has too much of."""
  problems = []
  iterations = [line["iteration"] for line in read_metrics(str(workdir / "metrics.jsonl"))]
  if iterations != list(range(last + 1)):
    problems.append(f"lines of metrics: {iterations}")
  part = lambda i: f"-{i:05d}-of-{processes:05d}" if processes > 1 else ""
  wanted = {f"iteration_{number:05d}{part(i)}.jsonl" for number in range(1, last + 1)
            for i in range(processes)}
  names = {path.name for path in (workdir / "rollouts").glob("*.jsonl")}
  if names != wanted:
    problems.append(f"rollouts: {sorted(names ^ wanted)}")
  return problems


def saved(workdir: Path) -> int:
  return max(int(path.name) for path in (workdir / "checkpoints").iterdir())


def times(workdir: Path, upto: int) -> dict[str, int]:
  return {path.name: path.stat().st_mtime_ns for path in (workdir / "rollouts").iterdir()
          if int(path.name[10:15]) <= upto}


def wait_for(ready, what: str) -> None:
  end = time.monotonic() + 600
  while not ready():
    assert time.monotonic() < end, what
    time.sleep(0.02)


def iteration_two_begins(workdir: Path) -> bool:
  return any((workdir / "rollouts").glob("iteration_00002*"))


@pytest.fixture
def variables(tmp_path):
  """Of two processes with four devices each. JAX makes a port of the job's number: a free one."""
  job = next(str(n) for n in range(1000 + os.getpid() % 500, 4000, 2)
             if all(free(61440 + n + i) for i in (0, 1)))
  return launching.devices(4) | {"SLURM_STUB_JOB": job, "SLURM_STUB_TASK": str(tmp_path / "task"),
                                 "KUBECTL_STUB_POD": str(tmp_path / "task")}


def free(port: int) -> bool:
  with socket.socket() as one:
    try:
      one.bind(("127.0.0.1", port))
      return True
    except OSError:
      return False


def slurm(path: str, workdir: Path, **variables: str) -> subprocess.CompletedProcess:
  done = launching.launch("slurm", "run", "--name=a", "--nodes=2", "--gpus=0", "--cpus=1",
                          "--time=10", *launching.run_flags(workdir, f"iterations={LAST}"),
                          path=path, **variables)
  assert done.returncode == 0, done.stderr
  return done


def jobset(path: str, workdir: Path, port: int, **variables: str) -> subprocess.CompletedProcess:
  return launching.launch(
      "jobset", "--name=a", "--pods=2", "--image=none", "--claim=none", f"--mount={workdir.parent}",
      f"--repo={launching.ROOT}", f"--python={sys.executable}", "--coordinator-host=127.0.0.1",
      f"--port={port}", *launching.run_flags(workdir, f"iterations={LAST}"), path=path,
      **variables)


def disturbed(begin, workdir: Path, tasks: Path, number: int, count: int):
  """Runs `begin` in a thread; signals tasks in iteration 2, which waits for that; its result."""
  result, go_on = [], tasks.with_name("go on")
  thread = threading.Thread(target=lambda: result.append(begin(**command.hold(2, go_on))))
  thread.start()
  saved_one = workdir / "checkpoints" / "1"
  wait_for(lambda: (iteration_two_begins(workdir) and saved_one.is_dir()) or not thread.is_alive(),
           "iteration 2")
  for index in range(count):
    os.kill(int(Path(f"{tasks}.{index}").read_text()), number)
  go_on.touch()
  thread.join(600)
  return result[0]


@pytest.mark.parametrize("lines, names, fault", [
    ([0, 1, 2], ["1-00000-of-00002", "1-00001-of-00002", "2-00000-of-00002", "2-00001-of-00002"],
     None),
    ([0, 2], ["1-00000-of-00002", "1-00001-of-00002", "2-00000-of-00002", "2-00001-of-00002"],
     "lines of metrics"),  # the restart left one out
    ([0, 1, 2], ["1-00000-of-00002", "2-00000-of-00002"], "rollouts"),  # one process had no rows
    ([0, 1, 2], ["1", "2"], "rollouts"),  # each was alone
])
def test_a_wrong_run_is_told(lines, names, fault, tmp_path):
  (tmp_path / "rollouts").mkdir()
  (tmp_path / "metrics.jsonl").write_text(
      "".join(json.dumps({"iteration": number}) + "\n" for number in lines))
  for name in names:
    (tmp_path / "rollouts" / f"iteration_0000{name}.jsonl").touch()
  before = times(tmp_path, 2)
  assert [text.split(":")[0] for text in faults(tmp_path, 2, 2)] == ([fault] if fault else [])
  os.utime(tmp_path / "rollouts" / f"iteration_0000{names[0]}.jsonl", (1, 1))
  assert times(tmp_path, 2) != before, "an iteration was sampled again"


@pytest.mark.nightly
def test_slurm_saves_at_a_signal_and_the_same_command_goes_on(tmp_path, variables):
  path = launching.stubs(tmp_path / "bin", sbatch="slurm_stub", srun="slurm_stub")
  workdir = tmp_path / "shared" / "run"
  begin = lambda **more: slurm(path, workdir, **variables, **more)
  # As `scancel --signal=TERM` and `#SBATCH --signal` do: to every task, not to the script.
  done = disturbed(begin, workdir, tmp_path / "task", signal.SIGTERM, 2)
  text = next(workdir.glob("slurm-*.out")).read_text()
  assert "ended with status 143" in done.stdout, text
  assert "2 processes with 8 devices in all" in text
  stopped = saved(workdir)
  assert 2 <= stopped < LAST and faults(workdir, stopped, 2) == []
  before = times(workdir, stopped)
  assert "ended with status 0" in begin().stdout
  assert faults(workdir, LAST, 2) == [] and times(workdir, stopped) == before


@pytest.mark.processes
def test_a_lost_pod_ends_the_job_and_the_same_command_goes_on(tmp_path, variables):
  path = launching.stubs(tmp_path / "bin", kubectl="kubectl_stub")
  workdir = tmp_path / "shared" / "run"
  port = 61440 + int(variables["SLURM_STUB_JOB"])
  begin = lambda **more: jobset(path, workdir, port, **variables, **more)
  done = disturbed(begin, workdir, tmp_path / "task", signal.SIGKILL, 1)
  assert done.returncode == 1 and "error: kubectl ended with status 1" in done.stderr
  assert "error: process 0 of 2" in done.stderr, done.stderr
  stopped = saved(workdir)
  assert 1 <= stopped < LAST
  before = times(workdir, stopped)
  for _ in range(2):  # the second time it has nothing to do
    done = begin()
    assert done.returncode == 0, done.stderr
    assert faults(workdir, LAST, 2) == [] and times(workdir, stopped) == before
    stopped, before = LAST, times(workdir, LAST)


@pytest.mark.processes
def test_a_worker_of_a_tpu_starts_once_stops_and_resumes(tmp_path):
  path = launching.stubs(tmp_path / "bin", gcloud="gcloud_stub")
  home, workdir = tmp_path / "home", tmp_path / "run"
  home.mkdir()
  call = lambda *more, **variables: launching.gcloud(path, tmp_path, *more, **variables,
                                                     **launching.devices(4))
  start = ("start", f"--repo={launching.ROOT}", f"--python={sys.executable}",
           *launching.run_flags(workdir, f"iterations={LAST}"))
  go_on = tmp_path / "go on"
  assert call(*start, **command.hold(3, go_on)).returncode == 0
  again = call(*start)
  assert again.returncode == 1 and "a run is alive on this worker" in again.stderr
  wait_for(lambda: iteration_two_begins(workdir), "iteration 2")
  assert call("stop").returncode == 0
  go_on.touch()
  assert call("watch").returncode == 0  # until the run has ended
  stopped = saved(workdir)
  assert 2 <= stopped < LAST and faults(workdir, stopped, 1) == []
  assert call("stop").stdout == "no run here\n"
  before = times(workdir, stopped)
  assert call(*start).returncode == 0
  assert "SIGTERM" in call("watch").stdout  # of the first part; the log is one
  assert faults(workdir, LAST, 1) == [] and times(workdir, stopped) == before
