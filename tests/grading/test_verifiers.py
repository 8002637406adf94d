"""The whole chain on pairs with known verdicts, and workers that hang, crash or are killed."""

import os
import runpy
import shutil
import subprocess
import sys
import time
from types import SimpleNamespace
from unittest import mock

import pytest

from jaxrl_llm.fields import ConfigError
from jaxrl_llm.grading import verifier_pool, verifiers
from jaxrl_llm.grading.grading import Question, Verdict
from jaxrl_llm.types import Reward

ANSWERS = [
    # gold, content of the box, correct
    ("1/2", "0.5", True),
    (r"\frac12", "1/2", True),
    ("3/4", r"\dfrac{3}{4}", True),
    ("0.1", "1/10", True),
    (r"-\frac{1}{2}", r"\frac{-1}{2}", True),
    (r"\frac{3}{4}", "0.75", True),
    (r"\frac{3}{4}", "0.7", False),
    (r"1\frac12", "1.5", True),
    ("1.5", r"\frac{2}{3}", False),
    ("0.333333", "1/3", True),
    ("1/3", "0.333", False),
    (r"\{1,2\}", r"\{2,1\}", True),
    (r"\{1,2\}", r"\{1,3\}", False),
    ("1,2,3", "3,2,1", True),
    (r"\{1,2\}", r"\{1\}", False),
    ("(1,2)", "(2,1)", False),
    ("(1,2)", "(1, 2)", True),
    (r"\left(\frac12,3\right)", "(0.5,3)", True),
    ("[1,2)", "[1,2)", True),
    ("[1,2)", "(1,2)", False),
    ("[1,2)", r"1\le x<2", True),
    ("x>2", r"(2,\infty)", True),
    (r"(2,\infty)", "x>2", True),
    (r"(-\infty,1)\cup(2,\infty)", r"(2,\infty)\cup(-\infty,1)", True),
    (r"[0,\infty)", r"[0, \infty)", True),
    ("x=5", "5", True),
    ("5", "x=5", True),
    ("5", "x=6", False),
    ("y=2x+1", "2x+1", True),
    ("1,000", "1000", True),
    ("1000", r"1,\!000", True),
    ("1000", "10,00", False),
    ("10000", "10{,}000", True),
    (r"50\%", "0.5", True),
    ("50", r"50\%", True),
    (r"50\%", "51", False),
    ("5", "5 cm", True),
    ("5", r"5\text{ cm}", True),
    ("12", r"12 \text{ dollars}", True),
    (r"10\text{ m/s}", "10", True),
    ("90", r"90^\circ", True),
    (r"\$1.50", "1.5", True),
    ("27.0", "27", True),
    ("73", "073", True),
    ("27", "27.00001", False),
    (r"\sqrt{8}", r"2\sqrt{2}", True),
    (r"\sqrt{8}", "sqrt(8)", True),
    (r"\sqrt{8}", r"2\sqrt{3}", False),
    (r"11\sqrt{2}", "15.556", False),
    (r"\pi", "3.14159", False),
    ("(x+1)^2", "x^2+2x+1", True),
    ("(x+1)^2", "x^2+1", False),
    (r"x^2+y^2", r"y^2+x^2", True),
    (r"\frac{1}{x}", "x^{-1}", True),
    ("2^{10}", "1024", True),
    ("10!", "3628800", True),
    (r"\log_2 8", "3", True),
    (r"6 \times 10^3", "6000", True),
    ("2+3i", "3i+2", True),
    ("2+3i", "2-3i", False),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", True),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}", False),
    (r"\text{Evelyn}", "Evelyn", True),
    (r"\text{Evelyn}", r"\text{Odile}", False),
    ("(A)", "A", True),
    ("A", "B", False),
    ("2", "3", False),
    ("5", r"5 \text{ or } 6", False),
    ("5", "5, 6", False),
    ("5", "", False),
    ("5", "garbage", False),
    ("1 1/2", "11/2", False),
    (r"\boxed{7}", "7", True),
    ("['2']", "2", True),
]
COMPLETIONS = [
    # text, gold, correct
    ("", "2", False),
    ("2", "2", False),
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
MATH_VERIFY = r"""
import os
LatexExtractionConfig = ExprExtractionConfig = dict
def parse(text, **_):
  return text
def verify(gold, text, **_):
  print('noise')
  if 'exit' in text: os._exit(3)
  while 'slow' in text: pass
  return 1 / len(text[len('\\boxed{'):-1]) == 1
"""
PARENT = f"""
import os, sys
from jaxrl_llm.grading import verifier_pool
from jaxrl_llm.grading.grading import Question
pool = verifier_pool.shared_pool()
pool.decide([Question('0.5', '2/4')], workers=1)
print(pool.pids()[0], flush=True)
if sys.argv[1] == 'kill':
  pool._workers[0].submit(Question('1', {HANGS!r}), 1.0)
  os.kill(os.getpid(), 9)
"""


@pytest.fixture(scope="module", autouse=True)
def no_process_is_left():
  yield
  verifiers.close_all()
  assert children() == []


def children() -> list[str]:
  """Command lines of verifier processes of this one."""
  found = subprocess.run(
      ["ps", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True).stdout
  return [line for line in found.splitlines() if "verifier_worker" in line]


@pytest.fixture(scope="module")
def verdicts():
  boxed = [(rf"so it is \boxed{{{said}}}.", gold) for gold, said, _ in ANSWERS]
  texts, golds = zip(*boxed, *(c[:2] for c in COMPLETIONS), strict=True)
  return verifiers.grade_many("math", list(texts), list(golds), timeout=60.0)


def test_known_pairs(verdicts):
  pairs = ANSWERS + COMPLETIONS
  assert len(pairs) >= 60
  wrong = [(pair, verdict) for pair, verdict in zip(pairs, verdicts, strict=True)
           if verdict.correct != pair[2] or verdict.unscored_reason]
  assert wrong == []


def test_every_rung_decides_some_pair(verdicts):
  rungs = {verdict.rung for verdict in verdicts}
  assert rungs == {"missing", "string", "number", "letter", "length", "algebra"}


def test_string_equality_alone_would_be_caught():
  assert any((gold == said) != right for gold, said, right in ANSWERS)


@pytest.mark.slow
def test_number_of_workers_does_not_matter(verdicts):
  texts = [rf"\boxed{{{said}}}" for _, said, _ in ANSWERS[::3]]
  golds = [gold for gold, _, _ in ANSWERS[::3]]
  by_one = verifiers.grade_many("math", texts, golds, workers=1, timeout=60.0)
  assert by_one == verdicts[:len(ANSWERS):3]


def test_verify():
  assert verifiers.verify("math", r"\boxed{2/4}", "0.5", timeout=60.0) == Reward(1.0, True)
  assert verifiers.verify("numeric", "so 5", "6") == Reward(0.0, False)
  assert verifiers.verify("exact", "x", "") == Reward(0.0, False, "no answer")


def test_hanging_answers_are_wrong_and_the_others_are_scored():
  answers = (r"\sqrt{4}", HANGS, r"\sqrt[3]{8}", TOWER, r"\log_2 4")
  texts = [rf"\boxed{{{said}}}" for said in answers]
  for timeout in (1.0, 10.0, 100.0):  # a busy machine may need more than a second for a batch
    rewards = verifiers.verify_many("math", texts, ["2"] * 5, timeout=timeout)
    if not any(reward.unscored_reason or reward.rung == "costly" for reward in rewards[::2]):
      break
  assert [reward.unscored_reason for reward in rewards] == [None] * 5
  assert [reward.correct for reward in rewards] == [True, False, True, False, True]
  assert [reward.rung for reward in rewards] == ["algebra", "costly"] * 2 + ["algebra"]


@pytest.mark.parametrize("said", [
    r"9^{9^{9^9}}", r"10^{10^{10}}", "100000000!", r"(x+1)^{1000000}", r"\binom{10^9}{10^8}",
    r"\sum_{k=1}^{10^{9}} \frac{1}{k}", r"\prod_{k=1}^{10^{8}} k", r"\sin(10^{10^{10}})",
    r"2^{2^{30}}", "(((9!)!)!)!", r"\lfloor 10^{10^{9}} \rfloor", r"10^{10^9} \mod 7"])
def test_a_too_large_answer_is_seen_without_computing_it(said, worker):
  with pytest.raises(worker.TooCostlyError):
    worker.parsed(worker.math_verify, said)


@pytest.mark.parametrize("said", [
    "2^{2024}-1", "2023!", r"\binom{2000}{1000}", "x^{2024}", "10^{100}", r"\sum_{k=1}^{100} k^2",
    r"(x+1)^{50}", r"e^{i\pi}", "-1", "0.5", r"\{1,2\}", r"(2,\infty)", r"2^{n+1}-1",
    r"\sqrt{2}^{\sqrt2}"])
def test_usual_answers_are_not_too_large(said, worker):
  assert worker.parsed(worker.math_verify, said)


@pytest.fixture(scope="module")
def worker():
  found = runpy.run_path(str(verifier_pool.WORKER))
  return SimpleNamespace(**found, math_verify=pytest.importorskip("math_verify"))


@pytest.mark.slow
def test_a_batch_of_hanging_answers_takes_bounded_time(fake_worker):
  """They come after all others, and share one time limit; more workers than cores do not matter."""
  questions = [Question("a", f"slow{i}") for i in range(8)] + [Question("a", "x")]
  with verifier_pool.Pool() as pool:
    found = pool.decide(questions, workers=2, timeout=2.0)
  assert found[-1] == Verdict(True, "algebra")
  assert verifier_pool.TOO_EXPENSIVE in found[:8]
  assert set(found[:8]) <= {verifier_pool.TOO_EXPENSIVE, verifier_pool.BUDGET_EXHAUSTED}
  # Two workers; what is left of the limit when the first pair has used it is for one more pair.
  assert found.count(verifier_pool.TOO_EXPENSIVE) <= 4


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["raise SystemExit(1)", "os.kill(os.getpid(), 19)"])
def test_a_worker_that_stops_while_starting_is_replaced(fault, fake_worker, monkeypatch):
  worker, seconds = verifier_pool._Worker, iter((5.0, 100.0, 100.0))

  def begin():
    monkeypatch.setattr(verifier_pool, "START_SECONDS", next(seconds))
    return worker()

  monkeypatch.setattr(verifier_pool, "_Worker", begin)
  first = fake_worker.with_name("started")
  source = fake_worker.read_text()
  fake_worker.write_text(f"""import os, pathlib
if not pathlib.Path({str(first)!r}).exists():
  pathlib.Path({str(first)!r}).touch()
  {fault}
""" + source)
  with verifier_pool.Pool() as pool:
    assert pool.decide([Question("a", "x")], workers=1) == [Verdict(True, "algebra")]


@pytest.mark.slow
def test_a_killed_worker_costs_one_verdict(monkeypatch):
  with verifier_pool.Pool() as pool:
    assert pool.decide([Question("0.5", "2/4")], workers=1,
                       timeout=60.0) == [Verdict(True, "algebra")]
    victim, = pool.pids()
    questions = [Question("0.5", HANGS), Question("0.5", "3/6"), Question("0.5", "1/3")]
    wait, submit, tries = verifier_pool._wait, verifier_pool._Worker.submit, []

    def noted(self, question, timeout):
      tries.append(question)
      return submit(self, question, timeout)

    def kill_and_wait(workers):
      if tries.count(questions[0]) == 2 and workers[0].process.pid == victim:  # the long try
        os.kill(victim, 9)
      return wait(workers)

    monkeypatch.setattr(verifier_pool._Worker, "submit", noted)

    monkeypatch.setattr(verifier_pool, "_wait", kill_and_wait)
    assert pool.decide(questions, workers=1, timeout=60.0) == [
        Verdict(False, "none", "crash: killed by SIGKILL"),
        Verdict(True, "algebra"),
        Verdict(False, "algebra")
    ]
    assert pool.pids() == []
    assert pool.decide([Question("0.5", "5/10")], workers=1) == [Verdict(True, "algebra")]
    idle, = pool.pids()
    os.kill(idle, 9)  # between two calls: nobody's verdict is lost
    pool._workers[0].process.wait()
    assert pool.decide([Question("0.5", "4/8")], workers=1,
                       timeout=60.0) == [Verdict(True, "algebra")]
    last = pool.pids()
  with pytest.raises(ProcessLookupError):
    os.kill(last[0], 0)


@pytest.fixture
def fake_worker(monkeypatch, tmp_path):
  """Path of a worker whose math-verify is the one above."""
  (tmp_path / "math_verify.py").write_text(MATH_VERIFY)
  source = verifier_pool.WORKER.read_text()
  finds_it = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
  (tmp_path / "worker.py").write_text(finds_it + source)
  shutil.copy(verifier_pool.WORKER.with_name("exactness.py"), tmp_path)
  monkeypatch.setattr(verifier_pool, "WORKER", tmp_path / "worker.py")
  return tmp_path / "worker.py"


def test_an_exception_in_the_comparison_is_unscored(fake_worker):
  """So is a process that ends by itself; and what a library prints does not disturb the answers."""
  with verifier_pool.Pool() as pool:
    found = pool.decide([Question("a", text) for text in ("x", "", "exit", "y")], workers=1)
  assert [verdict.unscored_reason for verdict in found] == [
      None, "crash: ZeroDivisionError: division by zero", "crash: exit status 3", None]


def test_a_worker_that_cannot_start_is_an_error(monkeypatch, tmp_path):
  (tmp_path / "worker.py").write_text("raise SystemExit(1)")
  monkeypatch.setattr(verifier_pool, "WORKER", tmp_path / "worker.py")
  with verifier_pool.Pool() as pool, pytest.raises(RuntimeError,
                                                   match=r"did not start.*exit status 1"):
    pool.decide([Question("1", "2")])


def test_an_interrupt_leaves_no_process(monkeypatch):
  def interrupted(workers):
    raise KeyboardInterrupt

  with verifier_pool.Pool() as pool:
    monkeypatch.setattr(verifier_pool, "_wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
      pool.decide([Question("1", "2")])
    assert pool.pids() == []


@pytest.mark.slow
def test_processes_end_with_their_parent():
  """Also when it is killed while a worker computes: the worker's own alarm ends that."""
  parents = [subprocess.Popen([sys.executable, "-c", PARENT, how], stdout=subprocess.PIPE,
                              text=True) for how in ("exit", "kill")]
  workers = [int(parent.communicate(timeout=300)[0]) for parent in parents]
  assert [parent.returncode for parent in parents] == [0, -9]
  deadline = time.monotonic() + 120
  while any(map(running, workers)) and time.monotonic() < deadline:
    time.sleep(0.1)
  assert not any(map(running, workers))


def running(pid: int) -> bool:
  state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True,
                         text=True).stdout.strip()
  return bool(state) and not state.startswith("Z")


def test_the_worker_imports_neither_jax_nor_the_package():
  code = (f"import runpy, sys; runpy.run_path({str(verifier_pool.WORKER)!r}); "
          "print({'jax', 'jaxrl_llm', 'numpy', 'sympy'} & set(sys.modules))")
  done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
  assert done.stdout.strip() == "set()"


def test_a_missing_package_is_named(monkeypatch):
  monkeypatch.setattr(verifier_pool.importlib.util, "find_spec", mock.Mock(return_value=None))
  with pytest.raises(ConfigError, match=r"pip install -e '.\[math\]'"):
    verifiers.verify_many("math", [r"\boxed{1}"], ["1"])
  assert verifiers.verify("numeric", "5", "5").correct
