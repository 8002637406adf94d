"""All scorers of reasoning-gym on texts that they cannot read and on hostile ones.

None runs in this process, and none ends a run.
"""

import os

import pytest

from jaxrl_llm.config import GymConfig, TaskConfig
from jaxrl_llm.sandbox import isolated_calls
from jaxrl_llm.sandbox.isolated_calls import IsolatedCalls
from jaxrl_llm.sandbox.results import Fault
from jaxrl_llm.tasks import make_task

MALFORMED = (
    "", " ", "None", "null", "nan", "inf", "1e999", "-1e999", "-", "+", "1/0", "0/0", "0**-1",
    "two times three", "[", "]", "[]", "[[]]", "[[1,2],[3,4]]", "[[1,2],3]", "{}", '{"a": 1}', "()",
    "(1,)", ",", "a,b", "1,2,3", "1 2 3", "\n\n", "'", '"', "\\", "\x00", "\ud800", "x = 1", "...",
    "9" * 5000, "(" * 5000, "[" * 5000 + "]" * 5000, "```python\n1\n```",
)
HOSTILE = (
    "__import__('os').mkdir({mark!r})", "open({mark!r}, 'w').close()",
    "__import__('os')._exit(0)", "__import__('os').kill(__import__('os').getppid(), 9)",
    "[__import__('os').fork() for _ in range(99)]", "[0 for _ in iter(int, 1)]", "10**10**10",
    "bytearray(1 << 40)", "__import__('time').sleep(600)", "print('x' * 5_000_000)",
    "open('/proc/{pid}/environ').read()", "__import__('ctypes').string_at(0)",
    "__import__('socket').create_connection(('127.0.0.1', 22))",
)
SOURCE = """
import reasoning_gym
from reasoning_gym.composite import DatasetSpec
from reasoning_gym.factory import DATASETS
options = {"composite": {"datasets": [DatasetSpec("chain_sum", 1, {})]}}
data = {name: reasoning_gym.create_dataset(name, seed=0, size=3, **options.get(name, {}))
        for name in DATASETS}

def target(name, text, entry):
  return float(data[name].score_answer(text, entry))
"""
EXECUTING = {"countdown", "puzzle24", "simple_integration", "string_insertion"}  # and some others
pytest.importorskip("reasoning_gym")


def texts(folder) -> list[str]:
  mark = str(folder / "made_by_the_policy")
  return [*MALFORMED, *(text.replace("{mark!r}", repr(mark)).replace("{pid}", str(os.getpid()))
                        for text in HOSTILE)]


class InProcess:
  """The wrong version: the scorer runs in the process that asks."""

  def __init__(self, source: str, **_):
    scope: dict = {}
    exec(source, scope)
    self.run = lambda calls: [scope["target"](*arguments) for arguments in calls]


def task(name: str):
  gym = GymConfig(name, 3)
  return make_task(TaskConfig(name="reasoning_gym", heldout_problems=1, gym=gym), 0, 1)


def judged(one, answers: list[str]):
  problem = one.batch(0)[0]
  return one.rewards([problem] * len(answers), [f"<answer>{text}</answer>" for text in answers])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("parts", [pytest.param(1, marks=pytest.mark.nightly),
                                   pytest.param(12, marks=pytest.mark.slow)])
def test_no_text_runs_here_or_ends_a_run(parts, tmp_path):
  """All texts meet the scorers of EXECUTING, one part of them each of the others."""
  from reasoning_gym.factory import DATASETS
  scope: dict = {}
  exec(SOURCE, scope)
  calls = IsolatedCalls(SOURCE, cpu=1.0, wall=5.0, quick=0.25, budget=20.0)
  assert len(texts(tmp_path)) == 53 and len(DATASETS) >= 105
  executing = set()
  for i, name in enumerate(sorted(DATASETS)):
    calls._together = isolated_calls.TOGETHER
    entry, first = scope["data"][name][0], 0 if name in EXECUTING else i % parts
    answers = texts(tmp_path)[first::1 if name in EXECUTING else parts]
    outcomes = calls.run([(name, text, entry) for text in answers])
    assert not any("ModuleNotFound" in str(outcome) for outcome in outcomes), outcomes
    assert len(outcomes) == len(answers)
    assert all(isinstance(outcome, (float, Fault)) for outcome in outcomes)
    if calls._together == 1:
      executing.add(name)
      assert not [text for text, outcome in zip(answers, outcomes, strict=True)
                  if outcome == 1.0 and text not in MALFORMED], name
  calls.close()
  print(f"{len(executing)} scorers run texts: {', '.join(sorted(executing))}")
  assert executing >= EXECUTING
  assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [
    pytest.param("countdown", marks=pytest.mark.slow), "prime_factorization"])
def test_the_task_pays_nothing_for_them(name, tmp_path, monkeypatch):
  monkeypatch.setattr("jaxrl_llm.tasks.reasoning_gym.WALL", 300.0)  # however busy the machine
  one = task(name)
  malformed = judged(one, [text for text in texts(tmp_path) if "sleep" not in text])
  assert [r.value for r in malformed] == [0.0] * 52
  assert "unreadable" in {r.rung for r in malformed} <= {"unreadable", "costly", "scorer"}
  assert [r.unscored_reason for r in malformed] == [None] * 52  # no fault but the text's
  assert judged(one, [one.batch(0)[0].answer])[0].correct
  assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore")
def test_the_wrong_version_runs_a_text_here_and_ends_the_run(tmp_path, monkeypatch):
  monkeypatch.setattr("jaxrl_llm.tasks.reasoning_gym.IsolatedCalls", InProcess)
  judged(task("string_insertion"), [texts(tmp_path)[len(MALFORMED)]])
  assert list(tmp_path.iterdir())
  with pytest.raises(ValueError, match="invalid literal"):
    judged(task("prime_factorization"), ["two times three"])


def test_a_scorer_that_fails_on_its_own_answer_leaves_the_row_unscored(monkeypatch):
  broken = "def target(text, entry):\n  raise KeyError('metadata')\n"
  monkeypatch.setattr("jaxrl_llm.tasks.reasoning_gym.SCORER", broken)
  rewards = judged(task("chain_sum"), ["1", "2"])
  assert [r.unscored_reason for r in rewards] == ["KeyError: 'metadata'"] * 2
