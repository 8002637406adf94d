"""Rewards of one's own: components and weights, groups, asynchronous calls, failures."""

import asyncio
import os
import signal
import sys
import threading
import traceback

import numpy as np
import pytest

from jaxrl_llm import register
from jaxrl_llm.config import ConfigError, RewardConfig, from_dict
from jaxrl_llm.registry import REWARDS
from jaxrl_llm.runs.verdicts import judged
from jaxrl_llm.tasks.rewards import RewardedTask, rewarded
from jaxrl_llm.types import Problem, Reward

PROBLEMS = [Problem("a", "1"), Problem("b", "2")]
TEXTS = ["1", "x", "2", "yy"]


class Exact:
  """The task: right where the text is the answer."""

  name = "exact"

  def rewards(self, problems, completions):
    right = [text == problem.answer for problem, text in zip(problems, completions, strict=True)]
    return [Reward(float(r), r) for r in right]


def scored(name, **numbers):
  return judged(rewarded(Exact(), RewardConfig(name, **numbers)), PROBLEMS, TEXTS)


def test_the_task_alone_is_left_as_it_is():
  task = Exact()
  assert rewarded(task, RewardConfig()) is task
  assert judged(task, PROBLEMS, TEXTS) == [Reward(float(r), r) for r in (1, 0, 1, 0)]


def test_components_are_weighed_and_added_up():
  @register.reward("style", weight=0.5)
  def style(problem, completion, cfg):
    return {"short": (len(completion) == 1, cfg.weight), "b": completion.count("y")}

  rewards = scored("task,style", weight=0.25)
  assert [r.value for r in rewards] == [1.25, 0.25, 1.25, 2.0]
  assert [r.correct for r in rewards] == [True, False, True, False]  # as the task says
  assert rewards[3].components == (("task", 0.0), ("short", 0.0), ("b", 2.0))
  assert RewardedTask(Exact(), RewardConfig("task,style")).name == "exact"


@pytest.mark.parametrize("result, correct", [
    (0.5, None), (-1, None), ({"correct": 0, "a": 9}, False), ({"correct": (1, -1.0)}, True),
])
def test_what_counts_as_correct_without_the_task(result, correct):
  register.reward("own")(lambda problem, completion, cfg: result)
  assert {r.correct for r in scored("own")} == {correct}


def test_a_group_is_read_as_a_whole():
  seen = []

  @register.reward("rank", group=True)
  def rank(problem, completions, cfg):
    seen.append((problem.prompt, completions))
    return [{"rank": i} for i in range(len(completions))]

  assert [r.value for r in scored("rank")] == [0, 1, 0, 1]
  assert seen == [("a", ["1", "x"]), ("b", ["2", "yy"])]


@pytest.mark.parametrize("result, reason", [
    (float("nan"), "not finite"), ("good", "returned 'good'"), (None, "returned None"),
    ({"a": "b"}, "a number and its weight"), ({}, "returned {}"), (1j, "returned 1j"),
    (np.ones(3), "returned array"), ({1: 1.0}, "component 1 = 1.0"),
])
def test_a_wrong_result_leaves_its_row_unscored(result, reason, caplog):
  register.reward("own")(lambda problem, completion, cfg: result if completion == "x" else 1.0)
  rewards = scored("task,own")
  assert [r.unscored_reason is None for r in rewards] == [True, False, True, True]
  assert reason in rewards[1].unscored_reason and len(caplog.records) == 1


def make_judge(calls, **numbers):
  """Registers an asynchronous reward: `x` is late, `yy` fails at first; the most calls at once.

  The others end before any time limit, however short it is.
  """
  @register.reward("judge", **numbers)
  async def judge(problem, completion, cfg):
    calls["now"] = calls.get("now", 0) + 1
    calls["most"] = max(calls.get("most", 0), calls["now"])
    calls[completion] = calls.get(completion, 0) + 1
    try:
      await asyncio.sleep(600 if completion == "x" else 0)
      if completion == "yy" and calls["yy"] < 3:
        raise OSError("refused")
      return {"judge": len(completion)}
    finally:
      calls["now"] -= 1


def test_late_calls_are_unscored_and_failed_ones_repeated(monkeypatch):
  monkeypatch.setattr("jaxrl_llm.tasks.reward_calls.PAUSE", 0.01)
  calls = {}
  make_judge(calls)
  rewards = scored("task,judge", timeout=0.2, retries=2)
  assert [r.unscored_reason for r in rewards] == [None, "timeout", None, None]
  assert [r.value for r in rewards] == [2.0, 0.0, 2.0, 2.0]
  assert (calls["1"], calls["x"], calls["yy"]) == (1, 3, 3)
  assert [r.unscored_reason for r in scored("judge", timeout=0.2, retries=0)][1] == "timeout"


def test_calls_in_flight_are_bounded():
  for bound in (1, 2, 4):
    calls = {}
    make_judge(calls, extra=bound)
    scored("judge", in_flight=bound, timeout=0.2, retries=0)
    assert calls["most"] == bound
    del REWARDS.entries["judge"]


def waits_for_result() -> bool:
  """Whether the main thread waits for a result of a thread pool."""
  stack = traceback.extract_stack(sys._current_frames()[threading.main_thread().ident])
  return any(frame.name == "result" and "concurrent" in frame.filename for frame in stack)


def test_an_interrupt_does_not_wait_for_late_calls():
  ended = []

  @register.reward("judge")
  async def judge(problem, completion, cfg):
    if completion == "x":
      while not waits_for_result():
        await asyncio.sleep(0.01)
      os.kill(os.getpid(), signal.SIGALRM)
      try:
        await asyncio.sleep(600)
        ended.append("by itself")
      except asyncio.CancelledError:
        ended.append("cancelled")
        raise
    return 1.0

  def interrupt(*_):
    raise InterruptedError

  before = signal.signal(signal.SIGALRM, interrupt)
  try:
    with pytest.raises(InterruptedError):
      scored("judge", timeout=400.0, retries=3)
  finally:
    signal.signal(signal.SIGALRM, before)
  assert set(ended) == {"cancelled"}


def test_numbers_are_keys_of_the_config():
  make_judge({}, url="http://127.0.0.1")
  cfg = from_dict({"reward": {"name": "task,judge", "url": "other", "timeout": 3}})
  assert (cfg.reward.url, cfg.reward.timeout, cfg.reward.in_flight) == ("other", 3.0, 16)
  for section, message in (({"name": "judge", "tmeout": 3}, "reward.timeout"),
                           ({"name": "task", "timeout": 3}, "'task' does not read it"),
                           ({"name": "judge", "timeout": 0}, "out of range"),
                           ({"name": "jugde"}, "Did you mean 'judge'"),
                           ({"name": "judge,judge"}, "twice")):
    with pytest.raises(ConfigError, match=message):
      from_dict({"reward": section})


def test_numbers_of_one_name_are_shared_or_refused():
  register.reward("a", limit=2)(lambda problem, completion, cfg: cfg.limit)
  register.reward("b", limit=2)(lambda problem, completion, cfg: cfg.limit)
  register.reward("c", limit=3)(lambda problem, completion, cfg: cfg.limit)
  assert {r.value for r in scored("a,b", limit=5)} == {10.0}
  with pytest.raises(ConfigError, match="'a' and 'c' both read it, with defaults 2 and 3"):
    scored("a,c")
