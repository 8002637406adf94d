"""The sandbox on harmless programs: results, order, determinism, replaced workers, refusals."""

import concurrent.futures
import contextlib
import dataclasses
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from processes import HOLD, children, gone, programs, until, when_it_runs

from jaxrl_llm.fields import ConfigError
from jaxrl_llm.rollouts.tools import PythonSandbox, ToolResult
from jaxrl_llm.sandbox import isolation

ALL = set(isolation.NAMES)
# Whether any user may read the standard library.
READABLE = all(
    folder.stat().st_mode & 0o005 == 0o005 for folder in Path(os.__file__).resolve().parents)


@pytest.fixture(scope="module")
def sandbox():
  with PythonSandbox(workers=2, timeout=100.0) as pool:
    yield pool


class SlowError(AssertionError):
  """A harmless program was stopped at its time limit."""


@contextlib.contextmanager
def limited(timeout: float, **options):
  try:
    pool = PythonSandbox(workers=1, timeout=timeout, **options)
  except ConfigError as error:
    if "a first program ended with" in str(error):
      raise SlowError from error
    raise
  with pool:
    yield pool


def harmless(sandbox, code: str) -> ToolResult:
  result = sandbox.run(code)
  if result.status == "timeout":
    raise SlowError(code)
  return result


def with_time_limit(check) -> None:
  """Calls `check(timeout)`, with a longer limit where the machine was too slow for a short one."""
  for timeout in (0.5, 5.0):
    try:
      return check(timeout)
    except SlowError:
      pass
  check(50.0)


PROGRAMS = {
    "": ("ok", ""),
    "print(6 * 7)": ("ok", "42\n"),
    "print(1, end='')": ("ok", "1"),
    "print('before'); 1 / 0": ("error", "before\nZeroDivisionError: division by zero"),
    "print('x', end=''); [][1]": ("error", "x\nIndexError: list index out of range"),
    "raise KeyError('a')": ("error", "KeyError: 'a'"),
    "raise ValueError": ("error", "ValueError"),
    "raise ValueError('first\\nsecond')": ("error", "ValueError: first"),
    "import json; json.loads('{')": (
        "error",
        "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 "
        "column 2 (char 1)"),
    "a b": ("error", "SyntaxError: invalid syntax (<program>, line 1)"),
    "input()": ("error", "EOFError: EOF when reading a line"),
    "exit()": ("ok", ""),
    "import sys; print('kept'); sys.exit(4)": ("error", "kept\nexit status 4"),
    "import sys; print('unseen', file=sys.stderr)": ("ok", ""),
    "class A: pass\nprint(A())\nraise ValueError(A())":
        ("error", "<__main__.A object at 0x0>\nValueError: <__main__.A object at 0x0>"),
    "import os; print(os.getcwd(), os.listdir('.'), dict(os.environ)); open('a', 'w').write('b')":
        ("ok", "/tmp [] {}\n"),
    "import threading\nthreading.Thread(target=print, args=('thread',)).start()":
        ("ok", "thread\n"),
    "import atexit\natexit.register(print, 'last')\nprint('first')": ("ok", "first\nlast\n"),
    "import dataclasses, pickle\n@dataclasses.dataclass\nclass P:\n  x: int\n"
    "print(pickle.loads(pickle.dumps(P(3))))":
        ("ok", "P(x=3)\n"),
    "import math, random, re, itertools, collections, fractions, decimal, statistics, datetime, "
    "heapq, functools, string, bisect, cmath, sqlite3, hashlib, ctypes, ssl\nprint('all')":
        ("ok", "all\n"),
    "print('é' * 5000)": ("ok", "é" * 2048 + "\n[... output cut ...]\n" + "é" * 2047 + "\n"),
}
NAMESPACES = {"processes", "files", "network", "ipc"}
# Leaves a process of its own session behind.
DAEMON = """import os, time
if os.fork() == 0:
  os.setsid()
  if os.fork() == 0:
    open('pid', 'w')
    while True: time.sleep(1)
  os._exit(0)
print(os.getpid())"""


@pytest.mark.parametrize("code", list(PROGRAMS))
def test_results(sandbox, code):
  assert sandbox.run(code) == ToolResult(*PROGRAMS[code])


def test_no_state_passes_on(sandbox):
  """Runs four programs on each of two workers, each of which would see traces of an earlier one."""
  code = (
      "import os, sys, math\nprint('x' in globals(), hasattr(math, 'spoilt'), os.listdir('.'))\n"
      "x = math.spoilt = 1\nopen('f', 'w').close()\nos.environ['A'] = 'b'")
  assert {r.output for r in sandbox.run_many([code] * 8)} == {"False False []\n"}


def test_many_keep_their_order_and_run_at_once(sandbox, monkeypatch):
  codes = [f"import time; time.sleep({0.2 if i == 0 else 0.0}); print({i})" for i in range(7)]
  assert [r.output for r in sandbox.run_many(codes)] == [f"{i}\n" for i in range(7)]
  both, ask = threading.Barrier(2, timeout=60), PythonSandbox._ask

  def ask_together(self, worker, program):
    both.wait()  # for the other program
    return ask(self, worker, program)

  monkeypatch.setattr(PythonSandbox, "_ask", ask_together)
  assert [r.output for r in sandbox.run_many(["print(1)", "print(2)"])] == ["1\n", "2\n"]
  both = threading.Barrier(2, timeout=0.2)
  with pytest.raises(threading.BrokenBarrierError):
    [sandbox.run(code) for code in ("print(1)", "print(2)")]


def test_the_same_program_says_the_same_in_every_process(sandbox):
  code = "import random\nprint(random.random(), hash('a'), list({'x', 'y', 'z'}), object())"
  with PythonSandbox(workers=1) as other:
    assert len({r.output for r in [*sandbox.run_many([code] * 4), other.run(code)]}) == 1


def test_threads_share_the_workers(sandbox):
  with concurrent.futures.ThreadPoolExecutor(6) as threads:
    results = list(threads.map(sandbox.run, [f"print({i})" for i in range(30)]))
  assert [r.output for r in results] == [f"{i}\n" for i in range(30)]


def test_long_programs_are_refused(sandbox):
  assert sandbox.run("#" * 32769) == ToolResult("error", "the program is longer than 32768 bytes")
  assert sandbox.run("#" * 32768).status == "ok"


@pytest.mark.parametrize("which", ["supervisor", "server"])
def test_a_killed_worker_loses_nothing(sandbox, monkeypatch, which):
  """Killed while its program runs, the worker is replaced and the program runs again."""
  victims = []

  def kill(worker):
    supervisor = worker.process.pid
    victims.append(supervisor if which == "supervisor" else children(supervisor)[0])
    os.kill(victims[0], signal.SIGKILL)

  when_it_runs(monkeypatch, kill)
  codes = [f"{HOLD}\nprint('whole')", "print('whole')"]
  assert sandbox.run_many(codes) == [ToolResult("ok", "whole\n")] * 2
  assert len(victims) == 1 and gone(victims)


def test_a_worker_that_hangs_is_replaced_from_outside(monkeypatch):
  monkeypatch.setattr("jaxrl_llm.sandbox.python_sandbox.GRACE", 0.3)
  with PythonSandbox(workers=1, timeout=60.0) as sandbox:
    below = [sandbox.pids()[0], *children(sandbox.pids()[0])]
    os.kill(below[-1], signal.SIGSTOP)
    patient = sandbox.limits
    sandbox.limits = dataclasses.replace(patient, timeout=0.2)  # what is waited for from outside
    assert sandbox.run("print(1)").status == "timeout"
    assert gone(below)
    sandbox.limits = patient
    assert sandbox.run("print(1)").output == "1\n"


def test_close_ends_running_programs_and_leaves_no_handle():
  gc.collect()  # of what earlier tests left open
  before = sorted(os.listdir("/proc/self/fd"))
  sandbox = PythonSandbox(workers=2, timeout=100.0)
  pids = sandbox.pids()
  with concurrent.futures.ThreadPoolExecutor(1) as threads:
    running = threads.submit(sandbox.run, "import time; time.sleep(90)")
    assert until(lambda: [pid for supervisor in pids for pid in programs(supervisor)])
    sandbox.close()
    with pytest.raises(RuntimeError, match="after close"):
      running.result()
  sandbox.close()
  assert gone(pids)
  assert sorted(os.listdir("/proc/self/fd")) == before
  with pytest.raises(RuntimeError, match="after close"):
    sandbox.run("print(1)")


def test_without_isolation_the_limits_hold_and_nothing_stays(caplog, tmp_path, monkeypatch):
  """As on a system that offers nothing, except for the user where that is root's to give."""
  monkeypatch.setenv("TMPDIR", str(tmp_path))
  monkeypatch.setattr("tempfile.tempdir", None)

  def check(timeout):
    with caplog.at_level(logging.WARNING), limited(timeout, without=ALL) as sandbox:
      assert "without isolation by user, user_namespace, processes" in caplog.text
      assert set(sandbox.isolation.missing) == ALL
      assert harmless(sandbox, "print(1)") == ToolResult("ok", "1\n")
      locked = "import os; os.makedirs('a/b/c'); os.chmod('a', 0); print(os.getcwd())"
      assert harmless(sandbox, locked).output == "/tmp\n"
      for run, seconds, status in ((harmless, 0.2, "ok"), (PythonSandbox.run, 900, "timeout")):
        result = run(sandbox, f"{DAEMON}\ntime.sleep({seconds})")
        assert result.status == status
        server, = children(sandbox.pids()[0])
        assert children(server) == []
      assert harmless(sandbox, "x = bytearray(10**9)").status == "memory"
      folder = Path(sandbox._workers[0].directory)
      assert list(folder.iterdir()) == []
    assert not folder.exists()

  with_time_limit(check)


@pytest.mark.parametrize("name", sorted(ALL))
def test_each_isolation_can_be_missing_and_be_required(sandbox, name):
  without = {name, "user"} if name == "files" and not READABLE else {name}

  def check(timeout):
    with limited(timeout, without=without) as partial:
      # Only in a namespace of users may a user other than root enter the others; only in a file
      # tree of its own has a program devices of its own.
      lost = NAMESPACES if name == "user_namespace" and os.geteuid() else set()
      lost = lost | ({"devices"} if name == "files" else set())
      assert set(partial.isolation.missing) == {*without, *lost, *sandbox.isolation.missing}
      assert partial.run(
          "import os\nif os.fork() == 0: os.setsid()\nopen('a', 'w').close()\nwhile True: pass"
      ).status == "timeout"
      assert harmless(partial, "import os; print(os.listdir('.'))").output == "[]\n"

  with_time_limit(check)
  with pytest.raises(ConfigError, match=f"does not offer {name}"):
    PythonSandbox(workers=1, without=[name], require=[name])


def test_a_sandbox_in_which_no_program_can_run_is_refused(sandbox, monkeypatch):
  """Else every program would end with `error`, as if the policy had written it wrongly."""
  if not READABLE and sandbox.isolation.user:
    with pytest.raises(ConfigError, match=r"without=\('user',\)"):
      PythonSandbox(workers=1, without=["files"])
  monkeypatch.setattr("jaxrl_llm.sandbox.sandbox_process.ENVIRONMENT",
                      {"PYTHONHASHSEED": "none"})
  with pytest.raises(ConfigError, match="a worker did not start"):
    PythonSandbox(workers=1)


def test_limits_of_the_trainer_hold_for_programs():
  code = (
      "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))\n"
      "from hostile_driver import PythonSandbox\n"
      "with PythonSandbox(workers=1, open_files=30) as s:\n"
      "  print(s.run('import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))').output)")
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                        cwd=Path(__file__).parent)
  assert done.stdout.strip() == "(20, 20)", done.stderr


def test_a_missing_isolation_is_warned_of_in_one_line(caplog):
  with PythonSandbox(workers=1, without=["network", "ipc"]) as sandbox:
    assert {"network", "ipc"} <= set(sandbox.isolation.missing)
  assert len(caplog.records) == 1 and "network, ipc" in caplog.text
  with PythonSandbox(workers=1, without=["network"], quiet=True):
    assert len(caplog.records) == 1


def test_root_isolates_fully(sandbox):
  if os.geteuid() or subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode:
    pytest.skip("this system offers no namespaces")
  assert sandbox.isolation.missing == ()
  assert sandbox.run(
      "import os; print(os.getuid(), os.getgid(), os.getgroups())").output == "65534 65534 []\n"


@pytest.mark.parametrize(("options", "message"), [
    ({"workers": 0}, "workers = 0"),
    ({"timeout": 0.0}, "timeout = 0.0"),
    ({"memory_mb": 8}, "memory_mb = 8"),
    ({"cpu_seconds": 1.5}, "cpu_seconds = 1.5"),
    ({"require": ["net"]}, "allowed are user, "),
    ({"without": ["network", "x"]}, "without = 'x'"),
    ({"code_bytes": 10**9}, "code_bytes = 1000000000"),
])
def test_bad_options(options, message):
  with pytest.raises(ConfigError, match=message):
    PythonSandbox(**options)
