"""The whole chain on pairs with known verdicts, and workers that hang, crash or are killed."""

import json
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from jaxrl_llm.fields import ConfigError
from jaxrl_llm.grading import verifier_pool, verifiers
from jaxrl_llm.grading.grading import Question, Verdict
from jaxrl_llm.sandbox.isolated_calls import NOT_ASKED
from jaxrl_llm.types import Reward

COMPLETIONS = [
    # text, gold, correct
    ("", "2", False),
    ("2", "2", True),
    ("I do not know.", "2", False),
    (r"\boxed{2", "2", False),
    (r"\boxed{3} no, \boxed{2}", "2", True),
    (r"\boxed{2} no, \boxed{3}", "2", False),
    (r"\boxed{\boxed{1/2}}", "0.5", True),
    (r"<think>\boxed{2}</think>I do not know.", "2", False),
    (r"<think>\boxed{3}</think>\boxed{1+1}", "2", True),
    (r"$$\boxed{\dfrac{4}{2}}$$.", "2", True),
    ("x+" * 5000 + "x", "2", False),
    ("\\boxed{" + "x+" * 5000 + "x}", "2", False),
    ("\\boxed{" + "{(" * 5000 + "}", "2", False),
]
TOWER = r"9^{9^{9^9}}"
HANGS = r"\int_0^{4} \sin(x^{x}) e^{\cos x^2} dx"  # for minutes; nothing in it looks large
CAREFUL = """
def target(gold, prediction, *_):
  print('noise')
  while 'slow' in prediction: pass
  if 'costly' in gold: return 'costly'
  if 'exit' in prediction:
    import os
    os._exit(3)
  return 1 / len(prediction) == 1
"""


@pytest.fixture(scope="module", autouse=True)
def no_process_is_left():
  yield
  verifiers.close_all()
  assert children() == []


def children() -> list[str]:
  """Command lines of verifier processes of this one."""
  output = subprocess.run(
      ["ps", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True).stdout
  return [line for line in output.splitlines() if "sandbox_worker" in line]


def answers(step: int) -> tuple[list[str], list[str]]:
  """(texts, golds) of every `step`-th box of test_answers.py's rare kinds."""
  table = (Path(__file__).with_name("answer_kinds.jsonl")).read_text().splitlines()
  rows = [row for row in map(json.loads, table) if row["kind"] == "math"][::step]
  return [rf"\boxed{{{row['said']}}}" for row in rows], [row["gold"] for row in rows]


def test_whole_completions():
  texts, golds, right = (list(column) for column in zip(*COMPLETIONS, strict=True))
  verdicts = verifiers.grade_many("math", texts, golds, timeout=60.0)
  assert [verdict.correct for verdict in verdicts] == right
  assert not any(verdict.unscored_reason for verdict in verdicts)
  boxes = verifiers.grade_many("math", *answers(4), timeout=60.0)
  assert {verdict.rung for verdict in verdicts + boxes} == {
      "missing", "string", "number", "letter", "length", "algebra"}, "each rung decides some pair"


@pytest.mark.slow
def test_number_of_workers_does_not_matter():
  by_one, by_two = (verifiers.grade_many("math", *answers(12), workers=workers, timeout=60.0)
                    for workers in (1, 2))
  assert by_one == by_two


def test_verify():
  assert verifiers.verify("math", r"\boxed{2/4}", "0.5", timeout=60.0) == Reward(1.0, True)
  assert verifiers.verify("numeric", "so 5", "6") == Reward(0.0, False)
  assert verifiers.verify("exact", "x", "") == Reward(0.0, False, "no answer")


def test_hanging_answers_are_wrong_and_the_others_are_scored():
  answers = (r"\sqrt{4}", HANGS, r"\sqrt[3]{8}", TOWER, r"\log_2 4")
  texts = [rf"\boxed{{{answer}}}" for answer in answers]
  for timeout in (1.0, 10.0, 100.0):  # a busy machine may need more than a second for a batch
    rewards = verifiers.verify_many("math", texts, ["2"] * 5, timeout=timeout)
    if not any(reward.unscored_reason or reward.rung == "costly" for reward in rewards[::2]):
      break
  assert [reward.unscored_reason for reward in rewards] == [None] * 5
  assert [reward.correct for reward in rewards] == [True, False, True, False, True]
  assert [reward.rung for reward in rewards] == ["algebra", "costly"] * 2 + ["algebra"]


@pytest.mark.parametrize("answer", [
    r"9^{9^{9^9}}", r"10^{10^{10}}", "100000000!", r"(x+1)^{1000000}", r"\binom{10^9}{10^8}",
    r"\sum_{k=1}^{10^{9}} \frac{1}{k}", r"\prod_{k=1}^{10^{8}} k", r"\sin(10^{10^{10}})",
    r"2^{2^{30}}", "(((9!)!)!)!", r"\lfloor 10^{10^{9}} \rfloor", r"10^{10^9} \mod 7"])
def test_a_too_large_answer_is_seen_without_computing_it(answer, worker):
  with pytest.raises(worker.TooCostlyError):
    worker.parsed(worker.math_verify, answer)


@pytest.mark.parametrize("answer", [
    "2^{2024}-1", "2023!", r"\binom{2000}{1000}", "x^{2024}", "10^{100}", r"\sum_{k=1}^{100} k^2",
    r"(x+1)^{50}", r"e^{i\pi}", "-1", "0.5", r"\{1,2\}", r"(2,\infty)", r"2^{n+1}-1",
    r"\sqrt{2}^{\sqrt2}"])
def test_usual_answers_are_not_too_large(answer, worker):
  assert worker.parsed(worker.math_verify, answer)


@pytest.fixture(scope="module")
def worker():
  namespace = runpy.run_path(str(verifier_pool.WORKER))
  return SimpleNamespace(**namespace, math_verify=pytest.importorskip("math_verify"))


@pytest.fixture
def careful(monkeypatch):
  """Workers that compare as CAREFUL does."""
  verifiers.close_all()
  monkeypatch.setattr(verifier_pool, "SOURCE", CAREFUL)
  yield
  verifiers.close_all()


@pytest.mark.slow
def test_a_batch_of_hanging_answers_takes_bounded_time(careful):
  """They come after all others, and share one time limit; more workers than cores do not matter."""
  questions = [Question("a", f"slow{i}") for i in range(8)] + [Question("a", "x")]
  verdicts = verifier_pool.decide(questions, workers=2, timeout=2.0)
  assert verdicts[-1] == Verdict(True, "algebra")
  assert verifier_pool.TOO_EXPENSIVE in verdicts[:8]
  not_asked = Verdict(False, "none", NOT_ASKED.reason)
  assert set(verdicts[:8]) <= {verifier_pool.TOO_EXPENSIVE, not_asked}
  assert verdicts.count(verifier_pool.TOO_EXPENSIVE) <= 4


def test_a_failure_of_the_comparison_is_unscored(careful):
  """So is a process that ends by itself, and a right answer that is itself too costly; and what a
  library prints does not disturb the answers.
  """
  pairs = [("a", "x"), ("a", ""), ("a", "exit"), ("costly", "x"), ("a", "y")]
  verdicts = verifier_pool.decide([Question(*pair) for pair in pairs], workers=1)
  assert [verdict.unscored_reason for verdict in verdicts] == [
      None, "crash: ZeroDivisionError: division by zero",
      "crash: the process ended (error) exit status 3", "timeout: the right answer", None]


def test_a_worker_that_is_killed_is_replaced(careful):
  assert verifier_pool.decide([Question("a", "x")], workers=1) == [Verdict(True, "algebra")]
  pool, = verifier_pool._POOLS.values()
  os.kill(pool.pids()[0], signal.SIGKILL)
  assert verifier_pool.decide([Question("a", "y")], workers=1) == [Verdict(True, "algebra")]


def test_a_worker_that_cannot_start_is_an_error(careful, monkeypatch):
  monkeypatch.setattr(verifier_pool, "SOURCE", "raise ValueError('broken')")
  with pytest.raises(ConfigError, match="did not start: ValueError: broken"):
    verifier_pool.decide([Question("1", "2")])


def test_the_worker_imports_neither_jax_nor_the_package():
  code = (f"import runpy, sys; runpy.run_path({str(verifier_pool.WORKER)!r}); "
          "print({'jax', 'jaxrl_llm', 'numpy', 'sympy'} & set(sys.modules))")
  done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
  assert done.stdout.strip() == "set()"


def test_a_missing_package_is_named(monkeypatch):
  monkeypatch.setattr(verifier_pool.importlib.util, "find_spec", mock.Mock(return_value=None))
  with pytest.raises(ConfigError, match=r"pip install .*-e '.\[math\]'"):
    verifiers.verify_many("math", [r"\boxed{1}"], ["1"])
  assert verifiers.verify("numeric", "5", "5").correct
