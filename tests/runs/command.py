"""The real command in a process of its own, and what it left in its folder.

Most are forks of a process that has imported everything (fork_server.py). Those with
`interpreter=True` start as a user starts them: one of each script, and one of each pair that is
compared, because forks have one seed of hashes.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import forked
import jax
import processes
import programs

from experiments.commands import cache, saved
from jaxrl_llm.runs.run_state import abstract_saved
from jaxrl_llm.store.checkpoints import Checkpoints

ROOT = Path(__file__).parents[2]
TINY = "tests/runs/tiny.py"
Process = subprocess.Popen | forked.Command


def hold(iteration: int, path: Path | str = "") -> dict[str, str]:
  """The environment of a run that waits to write an iteration's metrics for a file, or its kill."""
  return {"HOLD": f"{iteration}:{path}"}


def start(workdir: Path, *overrides: str, config: str = TINY, compile_log: Path | None = None,
          environment: dict[str, str] | None = None, interpreter: bool = False) -> Process:
  """`python experiments/main.py --config=<config> --workdir=<workdir> --config.<override> ...`, on
  one CPU device.

  Args:
    compile_log, environment, interpreter: see `launch`.
  """
  return launch("main", f"--config={config}", f"--workdir={workdir}",
                *(f"--config.{item}" for item in overrides), compile_log=compile_log,
                environment=environment, interpreter=interpreter)


def launch(script: str, *flags: str, compile_log: Path | None = None,
           environment: dict[str, str] | None = None, interpreter: bool = False) -> Process:
  """`python experiments/<script>.py <flags>`, on one CPU device.

  Commands share compiled programs, except where `environment` names a folder of the run's own.

  Args:
    compile_log: see tiny.py.
    environment: further variables.
    interpreter: whether to start one, rather than to fork a process that has imported everything.
  """
  more = environment or {}
  env = (os.environ | programs.ENVIRONMENT | more if cache.VARIABLE in more else
         programs.environment(**more))
  if compile_log is not None:
    env["COMPILE_LOG"] = str(compile_log)
  arguments = [f"experiments/{script}.py", *flags]
  return (forked.begin if interpreter else forked.Command)(arguments, ROOT, env)


def wait_for(ready: Callable, process: Process) -> None:
  """Waits for `ready()`, while the process runs."""
  end = time.monotonic() + 600
  while not ready():
    assert process.poll() is None and time.monotonic() < end, process.communicate()[1]
    time.sleep(0.002)


def finish(process: Process) -> subprocess.CompletedProcess:
  """Waits; the result has returncode, stdout and stderr."""
  try:
    out, err = process.communicate(timeout=900)
  finally:
    process.kill()
  return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def succeed(process: Process) -> subprocess.CompletedProcess:
  done = finish(process)
  assert done.returncode == 0, done.stderr
  return done


def refuse(process: Process) -> str:
  """The text of the one short error that the command ended with."""
  done = finish(process)
  assert done.returncode not in (0, None), done.stdout
  assert "Traceback" not in done.stderr, done.stderr
  assert done.stderr.count("error:") == 1, done.stderr
  return done.stderr[done.stderr.index("error:"):]


def metrics_lines(workdir: Path) -> list[dict]:
  """Lines of metrics.jsonl as they stand; none where the file does not exist."""
  path = workdir / "metrics.jsonl"
  text = path.read_text() if path.exists() else ""
  return [json.loads(line) for line in text.split("\n")[:-1]]


def timeless(workdir: Path) -> list[dict]:
  """The same lines without seconds."""
  return [{name: value for name, value in line.items() if not name.startswith("time/")}
          for line in metrics_lines(workdir)]


def rollout_files(workdir: Path) -> list[Path]:
  """The facts of each iteration; arrays lie beside them."""
  return sorted((workdir / "rollouts").glob("*.jsonl"))


def rollout_contents(workdir: Path) -> dict[str, bytes]:
  """Facts and arrays of all iterations, by the names of their files."""
  return {path.name: path.read_bytes() for path in sorted((workdir / "rollouts").iterdir())}


def checkpoint_iterations(workdir: Path) -> list[int]:
  return sorted(
      int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdigit())


def descendants(pid: int) -> list[int]:
  below = processes.children(pid)
  return below + [other for child in below for other in descendants(child)]


def last_tree(workdir: Path):
  """(iteration, all that is saved, on the host) of the newest checkpoint that can be read."""
  cfg, _, learner = saved.build_learner(workdir, jax.devices()[:1], plugins="run")
  checkpoints = Checkpoints(workdir, cfg.checkpoint)
  try:
    iteration, tree = checkpoints.restore(abstract_saved(learner))
  finally:
    checkpoints.close()
  return iteration, jax.device_get(tree)


def last_state(workdir: Path):
  """(iteration, train state on the host) of the newest checkpoint that can be read."""
  iteration, tree = last_tree(workdir)
  return iteration, tree["train"]
