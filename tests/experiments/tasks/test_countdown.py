"""The checker of expressions, and problems whose solutions it accepts."""

import re
import time

import pytest

from experiments.tasks import countdown
from experiments.tasks.countdown import CountdownConfig, check_expression
from jaxrl_llm.config import TaskConfig
from jaxrl_llm.tasks import make_task
from jaxrl_llm.types import Problem

CFG = TaskConfig(name="countdown")
TASK = make_task(CFG, 0, 32)

# (expression, numbers, target, correct)
CASES = [
    ("(7-3)*12", (3, 7, 12), 48, True),
    (" 12 * (7 - 3) ", (12, 7, 3), 48, True),
    ("3-7+12", (3, 7, 12), 8, True),
    ("-3+7*12", (3, 7, 12), 81, True),
    ("12/3*7", (3, 7, 12), 28, True),
    ("5*5-5", (5, 5, 5), 20, True),
    ("((7))", (7,), 7, True),
    ("(7-3)*12", (3, 7, 12), 47, False),
    ("7*12", (3, 7, 12), 84, False),
    ("7*7*12", (3, 7, 12), 588, False),
    ("73-12", (3, 7, 12), 61, False),
    ("7/3*12", (3, 7, 12), 28, False),
    ("3/(7-7)", (3, 7, 7), 0, False),
    ("3**2", (3, 2), 9, False),
    ("7//3", (7, 3), 2, False),
    ("", (3,), 3, False),
    ("3+", (3,), 3, False),
    ("(3", (3,), 3, False),
    ("+3", (3,), 3, False),
    ("3+7=10", (3, 7), 10, False),
    ("3.0+7", (3, 7), 10, False),
    ("abs(3)", (3,), 3, False),
    ("3;7", (3, 7), 10, False),
    ("03+7", (3, 7), 10, False),
    ("٣+7", (3, 7), 10, False),
    ("3 7", (3, 7), 10, False),
    ("9**9**9", (9, 9, 9), 1, False),
    ("3,7", (3, 7), 3, False),
    ("3\n+7", (3, 7), 10, False),
    ("()", (), 0, False),
    ("1" * 500, (1,), 1, False),
    ("(" * 150 + "3", (3,), 3, False),
    ("3(7)", (3, 7), 21, False),
]


def eval_checker(text, numbers, target):
  """A checker by a whitelist and `eval`; it would not return on 9**9**9."""
  try:
    used = [int(n) for n in re.findall(r"\d+", text)]
    return sorted(used) == sorted(numbers) and abs(eval(text) - target) < 1e-5, ""
  except Exception:
    return False, ""


@pytest.mark.parametrize("text,numbers,target,correct", CASES)
def test_check_expression(text, numbers, target, correct):
  start = time.thread_time()
  got, reason = check_expression(text, numbers, target)
  assert got is correct and (reason == "correct") is correct and reason
  assert time.thread_time() - start < 5.0


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_a_checker_by_eval_is_rejected():
  easy = [case for case in CASES if "9**9**9" not in case]
  assert [eval_checker(*case[:3])[0] for case in easy] != [case[3] for case in easy]


@pytest.mark.parametrize("count,largest", [(2, 2), (3, 20), (6, 99)])
def test_problems_are_solvable_and_fit(count, largest):
  cfg = TaskConfig(name="countdown", countdown=CountdownConfig(numbers=count, largest=largest))
  task = make_task(cfg, 0, 50)
  for problem in task.batch(0):
    numbers, target = countdown.parse_answer(problem.answer)
    assert len(numbers) == count and 1 <= min(numbers) and max(numbers) <= largest
    assert 0 < target <= 10 * largest
    assert check_expression(problem.demonstration, numbers, target) == (True, "correct")
    assert task.reward(problem, problem.demonstration).value == 1.0
    assert len(task.render(problem)) <= task.longest_prompt()
    assert len(task.demonstration(problem)) <= task.longest_demonstration()


def test_train_and_heldout_are_disjoint_in_any_order_of_the_numbers():
  heldout = TASK.heldout(100)
  asked = {TASK.split_key(p) for p in heldout}
  trained = {TASK.split_key(p) for index in range(100) for p in TASK.batch(index)}
  assert len(asked) == 100 and not asked & trained
  assert TASK.split_key(Problem("", "3 7 12=48")) == TASK.split_key(Problem("", "12 3 7=48"))


@pytest.mark.parametrize("completion,value",
                         [("(7-3)*12", 1.0), ("so <answer>(7-3)*12</answer>", 1.0),
                          ("<answer>1</answer> <answer> 12*(7-3) </answer>.", 1.0),
                          ("<answer>(7-3)*12</answer> or <answer>7</answer>", 0.0),
                          ("I say (7-3)*12", 0.0), ("<answer>(7-3)*12", 0.0), ("<answer>", 0.0),
                          ("", 0.0), ("<answer>3+7+12</answer>", 0.0)])
def test_reward_reads_the_last_answer(completion, value):
  reward = TASK.reward(Problem("", "3 7 12=48"), completion)
  assert (reward.value, reward.correct) == (value, value == 1.0)
