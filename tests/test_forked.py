"""A command in a fork prints and ends as one in an interpreter of its own."""

import os
import signal
import subprocess

import forked
import programs
import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import atexit, gc, os, signal, sys, threading, time
import jax

files = [open(os.devnull) for _ in range(40)]
gc.collect()  # of what the server had: it may not close these
print([os.fstat(file.fileno()).st_ino == os.stat(os.devnull).st_ino for file in files].count(True))

atexit.register(print, "at the exit")
at_end = threading.Event()
threading.Thread(
    target=lambda: (at_end.wait(), time.sleep(0.3), print("thread", flush=True))).start()
print(len(jax.devices()), jax.config.jax_compilation_cache_dir, jax.config.jax_enable_x64)
print(sys.argv, os.getcwd(), sys.path[0], __name__, os.environ.get("WORD"), sys.stdin.read(),
      os.environ["XLA_FLAGS"], signal.getsignal(signal.SIGINT))
print("an error", file=sys.stderr, flush=True)
at_end.set()
{"returns": lambda: None, "status": lambda: sys.exit(3), "raises": lambda: 1 / 0,
 "interrupt": lambda: os.kill(os.getpid(), signal.SIGINT)}[sys.argv[1]]()
"""
ENDS = {"returns": 0, "status": 3, "raises": 1, "interrupt": -signal.SIGINT}


@pytest.fixture(scope="module")
def script(tmp_path_factory):
  path = tmp_path_factory.mktemp("forked") / "script.py"
  path.write_text(SCRIPT)
  return path


def variables(devices: int = 3, **more: str) -> dict[str, str]:
  flags = f"{programs.FLAGS} --xla_force_host_platform_device_count={devices}"
  return os.environ | programs.ENVIRONMENT | {"XLA_FLAGS": flags} | more


def ended(begin, script, how: str, environment: dict[str, str]) -> tuple[int, str, str]:
  """(exit status, output, last line of errors)."""
  process = begin([str(script), how, "--flag"], script.parent, environment)
  out, errors = process.communicate(timeout=300)
  return process.returncode, out, errors.splitlines()[-1]


@pytest.mark.parametrize("how", ENDS)
def test_it_ends_as_an_interpreter_does(how, script):
  environment = variables(WORD="w", JAX_COMPILATION_CACHE_DIR="/nowhere", JAX_ENABLE_X64="1")
  forks = ended(forked.Command, script, how, environment)
  assert forks == ended(forked.begin, script, how, environment)
  assert forks[0] == ENDS[how]
  if how == "returns":
    assert forks[1].startswith("40\n3 /nowhere True\n")
    others = variables(2, JAX_COMPILATION_CACHE_DIR="/nowhere")
    assert ended(forked.Command, script, how, others) != forks, "variables do not count"


def test_signals_and_time_limits(tmp_path):
  path = tmp_path / "waits.py"
  path.write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
  with open(tmp_path / "log", "w+") as log:
    process = forked.Command([str(path)], tmp_path, variables(), log)
    with pytest.raises(subprocess.TimeoutExpired):
      process.wait(0.05)
    assert process.poll() is None
    process.terminate()
    assert process.wait(300) == process.poll() == -signal.SIGTERM
    process.kill()  # of one that has ended: nothing
  with pytest.raises(ProcessLookupError):
    os.kill(process.pid, 0)


def test_what_is_read_before_a_fork_gets_a_server_of_its_own(tmp_path):
  path = tmp_path / "seed.py"
  path.write_text("import sys\nprint(hash('word'), file=sys.stderr)\n")
  one, two = (ended(forked.Command, path, "", variables(PYTHONHASHSEED=seed)) for seed in "12")
  assert one != two
