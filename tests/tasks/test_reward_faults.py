"""Rewards that raise, that take without end, and that run in the sandbox: what it costs."""

import logging
import re
import sys
import time
from pathlib import Path

import pytest
from test_reward_plugins import PROBLEMS, Exact

from jaxrl_llm import register
from jaxrl_llm.config import ConfigError, RewardConfig, load_plugins
from jaxrl_llm.config.plugins import plugin_name
from jaxrl_llm.fields import PluginError
from jaxrl_llm.tasks import reward_watch
from jaxrl_llm.tasks.reward_watch import IN_A_ROW
from jaxrl_llm.tasks.rewards import RewardedTask


def scored(name, texts, **numbers):
  return RewardedTask(Exact(), RewardConfig(name, **numbers)).group_rewards(PROBLEMS, texts)


def reasons(rewards):
  return [reward.unscored_reason for reward in rewards]


def enter(function, **options):
  register.reward("own", replace=True, **options)(function)


def test_a_text_that_the_reward_cannot_read_is_wrong(caplog):
  enter(lambda problem, completion, cfg: {"correct": int(completion) == int(problem.answer),
                                          "size": (int(completion), 0.1)})
  rewards = scored("own", ["1", "two", "three", "four"])
  assert reasons(rewards) == [None] * 4  # of problem b only the answer itself was scored
  assert [r.value for r in rewards] == [1.1, 0.0, 0.0, 0.0]
  assert [r.rung for r in rewards] == [None, "unreadable", "unreadable", "unreadable"]
  assert rewards[1].components == (("correct", 0.0), ("size", 0.0)) and rewards[1].correct is False
  assert len(caplog.records) == 1 and "such rows are wrong (0)" in caplog.text
  assert "ValueError: invalid literal" in caplog.text and "test_reward_faults.py" in caplog.text


@pytest.mark.parametrize("error", [OSError("no service"), NameError("nam"), ImportError("absent"),
                                   MemoryError(), SystemExit(3), TimeoutError()])
def test_what_no_text_causes_is_of_the_reward(error, caplog):
  """It costs its rows and one line of the log."""
  def raises(problem, completion, cfg):
    if completion == "x":
      raise error
    return 1.0

  enter(raises)
  rewards = scored("own", ["1", "x", "2", "x"])
  assert [reason is None for reason in reasons(rewards)] == [True, False, True, False]
  assert len(caplog.records) == 1 and "test_reward_faults.py" in caplog.text


def test_a_reward_that_fails_on_the_answer_too_is_at_fault():
  enter(lambda problem, completion, cfg: {"1": 1.0}[problem.answer])
  assert reasons(scored("own", ["1", "x", "2", "2"])) == [None, None, *["KeyError: '2'"] * 2]


def test_what_a_group_raises_is_of_the_reward():
  enter(lambda problem, completions, cfg: [float(int(text)) for text in completions], group=True)
  assert [reason is None for reason in reasons(scored("own", ["1", "x", "2", "2"]))] == [
      False, False, True, True]


def test_the_task_still_says_what_is_correct():
  enter(lambda problem, completion, cfg: float(int(completion)))
  rewards = scored("own,task", ["1", "x", "2", "2"])
  assert [r.correct for r in rewards] == [True, False, True, True]
  assert rewards[1].components == (("own", 0.0), ("task", 0.0))


def stuck(problem, completion, cfg):
  while completion == "x":
    try:
      time.sleep(10**6)
    except Exception:
      continue
  return 1.0


def test_a_call_without_an_end_is_named_and_ended(caplog, monkeypatch):
  monkeypatch.setattr(reward_watch, "NAMED", 0.05)
  enter(stuck)
  rewards = scored("own", ["1", "x", "2", "2"], timeout=0.3)
  assert reasons(rewards) == [None, "timeout: no answer within reward.timeout = 0.3 s", None, None]
  assert "reward 'own' (tests/tasks/test_reward_faults.py" in caplog.text
  assert "a call has taken 0 s so far; its limit is reward.timeout = 0.3 s" in caplog.text


def test_a_batch_waits_for_few_of_them():
  asked = []

  def counted(problem, completion, cfg):
    asked.append(completion)
    return stuck(problem, completion, cfg)

  enter(counted)
  rewards = scored("own", ["x"] * 10, timeout=0.1)
  assert len(asked) == IN_A_ROW
  assert set(reasons(rewards)[IN_A_ROW:]) == {
      "timeout: not asked after 3 calls in a row without an end"}


def test_a_start_refuses_a_reward_that_never_returns():
  enter(lambda problem, completion, cfg: time.sleep(10**6))
  task = RewardedTask(Exact(), RewardConfig("own", timeout=0.1))
  with pytest.raises(PluginError, match=r"'own'.*reward\.timeout = 0\.1 s\. Fix: "):
    task.check(PROBLEMS[0], "1")


PAGE = Path(__file__).parents[2] / "experiments/extend/README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
(EXAMPLE,) = (block for block in BLOCKS if "isolated=True" in block)
GROUP = """
@register.reward("ranks", isolated=True, group=True, bonus=0.5)
def ranks(problem, completions, cfg):
  return [{"rank": float(i), "bonus": (1.0, cfg.bonus)} for i in range(len(completions))]
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
  path = tmp_path_factory.mktemp("plugin") / "careless.py"
  path.write_text(EXAMPLE + GROUP)
  return path


@pytest.fixture
def apart(plugin):
  """The registry is emptied of plugins after each test."""
  sys.modules.pop(plugin_name(str(plugin)), None)
  load_plugins((str(plugin),))


def test_the_page_s_isolated_reward_runs_in_the_sandbox(apart, tmp_path, caplog):
  mark = tmp_path / "made_by_the_policy"
  texts = ["1", f"__import__('os').mkdir({str(mark)!r})", "1 + 1", "__import__('os')._exit(0)"]
  rewards = scored("computed", texts)
  assert [r.value for r in rewards] == [1.0, 0.0, 1.0, 0.0] and not mark.exists()
  assert [r.rung for r in rewards] == [None, "unreadable", None, "unreadable"]
  assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_what_cannot_be_isolated_is_refused(monkeypatch):
  async def service(problem, completion, cfg):
    return 1.0

  with pytest.raises(ValueError, match=r"isolated=True has no network.*Fix: def"):
    enter(service, isolated=True)
  enter(stuck, isolated=True)
  monkeypatch.setattr(stuck, "__module__", "__main__")
  with pytest.raises(ConfigError, match=r"Fix: a file that config\.plugins names"):
    scored("own", ["1", "2"])
