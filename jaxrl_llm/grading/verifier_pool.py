"""Answers that need algebra, compared by math-verify in processes of the sandbox.

An answer that needs more processor time than its limit is wrong ("costly"). A comparison that fails
for another reason leaves one row unscored, and no other.
"""

import dataclasses
import importlib.util
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from jaxrl_llm.fields import ConfigError, installing
from jaxrl_llm.grading.grading import Question, Verdict, judge
from jaxrl_llm.sandbox.results import COSTLY, Fault, is_late
from jaxrl_llm.types import Reward

if TYPE_CHECKING:  # a run imports the sandbox when something runs in it
  from jaxrl_llm.sandbox.isolated_calls import IsolatedCalls

WORKER = Path(__file__).with_name("verifier_worker.py")
SOURCE = """import runpy
worker = runpy.run_path({path!r})
worker["warm"]()
target = worker["compare"]
"""
QUICK_SECONDS = 0.25  # processor time of a first try, which nearly all questions need less than
WAITING = 10  # times its processor time that a question may wait on a busy machine
TOO_EXPENSIVE = Verdict(False, COSTLY)
_POOLS: dict[tuple, "IsolatedCalls"] = {}  # by workers and time limit
_LOCK = threading.Lock()


def decide(questions: list[Question], *, workers: int = 2, timeout: float = 10.0) -> list[Verdict]:
  """Returns a verdict for each question, in order.

  Every question gets a short try first. Questions that need more time follow, as long as all of
  them together have taken less than `timeout`; the rest is unscored. So answers that would
  compute without end cost a batch a bounded time, and come after all others.

  Args:
    questions: equal ones are asked once.
    workers: number of processes, which stay for later calls; changes only the time.
    timeout: seconds of processor time for one question; then its prediction is wrong ("costly").

  Raises:
    ConfigError: math-verify is not installed, or no worker starts.
  """
  from jaxrl_llm.sandbox.isolated_calls import IsolatedCalls

  require_math()
  with _LOCK:
    if (workers, timeout) not in _POOLS:
      _POOLS[workers, timeout] = IsolatedCalls(
          SOURCE.format(path=str(WORKER)), cpu=timeout, wall=WAITING * timeout, quick=QUICK_SECONDS,
          budget=timeout, workers=workers, runs_texts=False)
    pool = _POOLS[workers, timeout]
  distinct = list(dict.fromkeys(questions))
  outcomes = dict(zip(distinct, pool.run([dataclasses.astuple(q) for q in distinct]), strict=True))
  golds = list(dict.fromkeys(q.gold for q in distinct if _costly(outcomes[q])))
  checks = pool.run([(gold, gold) for gold in golds]) if golds else []
  costly_golds = {gold for gold, outcome in zip(golds, checks, strict=True) if _costly(outcome)}
  return [_verdict(outcomes[q], q.gold in costly_golds) for q in questions]


def _costly(outcome) -> bool:
  return outcome == COSTLY or is_late(outcome)


def _verdict(outcome, costly_gold: bool) -> Verdict:
  """Returns what the outcome of a comparison says about its question."""
  if isinstance(outcome, Fault) and not outcome.reason.startswith(COSTLY):
    prefix = "" if is_late(outcome) or outcome.reason.startswith("crash") else "crash: "
    return Verdict(False, "none", prefix + outcome.reason)
  if isinstance(outcome, bool):
    return Verdict(outcome, "algebra")
  return Verdict(False, "none", "timeout: the right answer") if costly_gold else TOO_EXPENSIVE


def has_math() -> bool:
  """Returns whether math-verify is installed."""
  return importlib.util.find_spec("math_verify") is not None


def require_math() -> None:
  """Refuses kind `math` if math-verify is not installed.

  Raises:
    ConfigError: naming the extra.
  """
  if not has_math():
    raise ConfigError(
        "verifier kind 'math' needs the package math-verify, which is not installed. "
        f"Fix: {installing('math')}, or another verifier (exact, numeric, choice).")


def close_all() -> None:
  """Ends the worker processes; also called at exit. The next use starts new ones."""
  with _LOCK:
    while _POOLS:
      _POOLS.popitem()[1].close()


def grade_many(kind: str, completions: list[str], answers: list[str], *, workers: int = 2,
               timeout: float = 10.0) -> list[Verdict]:
  """Returns verdicts with their rungs, in order; see `grading.judge` for the kinds.

  Args:
    workers: processes for the questions that need algebra; they stay for later calls.
    timeout: seconds of processor time for one such question; then its completion is wrong
      ("costly"), and `decide` says what bounds the time of all.

  Raises:
    ConfigError: kind `math` without math-verify.
    ValueError: unknown kind, or lists of different lengths.
  """
  if kind in ("math", "strict"):
    require_math()
  pairs = zip(completions, answers, strict=True)
  verdicts = [judge(kind, completion, answer) for completion, answer in pairs]
  questions = {i: v for i, v in enumerate(verdicts) if isinstance(v, Question)}
  if questions and not has_math():
    missing = Verdict(False, "none", "the box needs algebra: pip install -e '.[math]'")
    verdicts = [missing if isinstance(v, Question) else v for v in verdicts]
  elif questions:
    decisions = decide([*questions.values()], workers=workers, timeout=timeout)
    for i, verdict in zip(questions, decisions, strict=True):
      verdicts[i] = verdict
  return [verdict for verdict in verdicts if isinstance(verdict, Verdict)]


def verify_many(kind: str, completions: list[str], answers: list[str], *, workers: int = 2,
                timeout: float = 10.0) -> list[Reward]:
  """Returns the rewards of many completions, 1 or 0, in order; see `grade_many`.

  A row without a verdict has an `unscored_reason`.
  """
  verdicts = grade_many(kind, completions, answers, workers=workers, timeout=timeout)
  return [Reward(float(v.correct), v.correct, v.unscored_reason, rung=v.rung) for v in verdicts]
