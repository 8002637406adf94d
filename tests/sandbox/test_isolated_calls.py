"""Calls in the sandbox: values, whose a fault is, and that no text decides about another."""

import pytest

from jaxrl_llm.config import ConfigError
from jaxrl_llm.sandbox import isolated_calls
from jaxrl_llm.sandbox.isolated_calls import IsolatedCalls
from jaxrl_llm.sandbox.results import Fault

LIMITS = {"cpu": 1.0, "wall": 60.0, "quick": 0.25, "budget": 60.0}
# A scorer as careless as those of reasoning-gym: texts that begin with ! run as code.
SOURCE = """
import sys, time

def target(text, value=None):
  if text.startswith("!"):
    return float(eval(text[1:]))
  if text == "raise":
    raise KeyError("no such answer")
  if text == "exit":
    sys.exit(0)
  return value if value is not None else float(text == "right")
"""


@pytest.fixture(scope="module")
def shared():
  calls = IsolatedCalls(SOURCE, **LIMITS)
  yield calls
  calls.close()


@pytest.fixture
def calls(shared):
  shared._together = isolated_calls.TOGETHER
  return shared


def test_values_come_back_in_order(calls):
  texts = [("right",), ("wrong",)] * 40
  assert calls.run(texts) == [1.0, 0.0] * 40
  values = [{"correct": True, "short": (0.5, 0.1)}, [1, {"a": (1, 2.0)}], None, float("inf")]
  assert calls.run([("", value) for value in values[:2]]) == values[:2]
  assert calls.run([]) == []


def test_what_raises_is_a_fault_that_may_be_of_the_text(calls):
  outcomes = calls.run([("right",), ("raise",), ("exit",), ("right",)])
  assert outcomes == [1.0, Fault("KeyError: 'no such answer'", True), Fault("SystemExit: 0", True),
                      1.0]


@pytest.mark.parametrize("text, outcome", [
    ("__import__('os')._exit(0)", "crash: the process ended (ok)"),
    ("__import__('os').abort()", "crash: the process ended (killed) killed by SIGABRT"),
    pytest.param("[0 for _ in iter(int, 1)]", "costly: it used up its processor time",
                 marks=pytest.mark.slow),
    ("10**10**10", "costly: it used up its processor time"),
    ("bytearray(1 << 40)", "MemoryError"),
    ("open('/etc/passwd').read()", "FileNotFoundError"),
    ("open('/proc/1/environ').read()", "FileNotFoundError"),
    ("open('/tmp/../usr/mark', 'w').write('x')", "Error"),
    ("__import__('socket').create_connection(('127.0.0.1', 22))", "OSError"),
    ("__import__('ctypes').string_at(0)", "killed by SIGSEGV"),
    ("(lambda f: f(f))(lambda f: f(f))", "RecursionError"),
    ("print('x' * 5_000_000)", "TypeError"),
    ("[__import__('os').fork() for _ in range(99)] and 1", "Error"),
])
def test_a_hostile_text_costs_itself_alone(calls, text, outcome):
  before = calls.pids()
  outcomes = calls.run([("right",), ("!" + text,), ("right",)])
  assert [outcomes[0], outcomes[2]] == [1.0, 1.0]
  assert isinstance(outcomes[1], Fault) and outcomes[1].of_text and outcome in outcomes[1].reason
  assert calls.pids() == before


PATCH = "!setattr(sys.modules['call_child'], 'target', lambda *_: 1.0) or 0"


def test_no_text_decides_about_another(calls):
  texts = [("wrong",), (PATCH,), *[("wrong",)] * 8]
  assert calls.run(texts) == [0.0] * 10
  # What the test rejects: texts that share a process.
  unwatched = IsolatedCalls(SOURCE + "\nACTS.clear()", **LIMITS)
  assert 1.0 in unwatched.run(texts)
  unwatched.close()


def test_no_print_is_taken_for_an_answer(calls):
  forged = "__import__('os').write(%d, b'[0, \"value\", 1.0]\\n') and __import__('os')._exit(0)"
  for handle in range(1, 8):
    answer, = calls.run([("!" + forged % handle,)])
    assert isinstance(answer, Fault)


def test_waiting_is_no_verdict_and_costs_a_batch_a_bounded_time():
  calls = IsolatedCalls(SOURCE, cpu=1.0, wall=0.5, quick=None, budget=0.5)
  outcomes = calls.run([("!__import__('time').sleep(60)",)] * 12)
  assert set(outcomes) == {Fault("timeout", False), isolated_calls.NOT_ASKED}
  calls.close()


def test_texts_without_an_end_come_after_all_others():
  calls = IsolatedCalls(SOURCE, cpu=1.0, wall=60.0, quick=0.1, budget=0.1)
  outcomes = calls.run([("![0 for _ in iter(int, 1)]",)] * 8 + [("right",)] * 4)
  calls.close()
  assert outcomes[8:] == [1.0] * 4
  assert set(outcomes[:8]) == {Fault("costly: it used up its processor time", True),
                               isolated_calls.NOT_ASKED}


def test_a_source_that_fails_is_named():
  with pytest.raises(ConfigError, match="ModuleNotFoundError: No module named 'absent'"):
    IsolatedCalls("import absent", **LIMITS)


def test_a_call_may_import_more_from_an_environment_below_tmp(tmp_path, monkeypatch):
  folder = tmp_path / "site-packages"
  folder.mkdir()
  (folder / "imported_late.py").write_text("VALUE = 7.0")
  assert folder.resolve().is_relative_to("/tmp")
  monkeypatch.syspath_prepend(str(folder))
  source = "def target(text):\n  import imported_late\n  return imported_late.VALUE"
  calls = IsolatedCalls(source, workers=1, **LIMITS)
  try:
    assert [calls.run([("a",)])[0] for _ in range(2)] == [7.0, 7.0]  # two programs
  finally:
    calls.close()
