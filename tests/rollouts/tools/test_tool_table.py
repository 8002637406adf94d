"""Tools by name: functions and classes, their numbers, and what a failing one does to its row."""

import pytest

from jaxrl_llm import register
from jaxrl_llm.config import ConfigError, from_dict
from jaxrl_llm.registry import TOOLS
from jaxrl_llm.rollouts.tools import Calculator, PythonSandbox, ToolResult, make_tool


def test_a_function_is_a_tool():
  @register.tool("twice", factor=2)
  def twice(text, cfg):
    if text == "odd":
      return ToolResult("error", "no number")
    return str(int(text) * cfg.factor)

  with make_tool("twice") as tool:
    assert tool.run_many(["4", "odd"]) == [ToolResult("ok", "8"), ToolResult("error", "no number")]
    assert tool.run("x").status == "unavailable"  # the tool itself failed: the row is void
  numbers = TOOLS.numbers(from_dict({"rollout": {"max_turns": 2, "slots": 4},
                                     "tool": {"name": "twice", "factor": 5}}).tool)
  assert make_tool("twice", numbers).run("4").output == "20"


def test_a_failure_is_logged_once_per_kind(caplog):
  register.tool("fails")(lambda text, cfg: 1 / 0)
  tool = make_tool("fails")
  assert {tool.run(text).status for text in "abc"} == {"unavailable"} and len(caplog.records) == 1


@pytest.mark.parametrize("result", [None, 3, ToolResult("fine", "")])
def test_other_results_are_refused_before_a_run(result):
  register.tool("wrong")(lambda text, cfg: result)
  with pytest.raises(ConfigError, match=r"test_tool_table\.py.*a text or a ToolResult"):
    make_tool("wrong")


def test_a_class_gets_its_numbers_and_workers():
  @register.tool("own", limit=3)
  class Own(Calculator):
    def __init__(self, limit, workers):
      super().__init__()
      self.got = limit, workers

  assert make_tool("own", workers=7).got == (3, 7)
  assert isinstance(make_tool("calculator"), Calculator)


def test_limits_of_the_sandbox_are_keys():
  cfg = from_dict({"rollout": {"max_turns": 2, "slots": 4},
                   "tool": {"name": "python", "timeout": 61.5, "memory_mb": 128}})
  with make_tool("python", TOOLS.numbers(cfg.tool), workers=1) as tool:
    assert isinstance(tool, PythonSandbox)
    assert (tool.limits.timeout, tool.limits.memory_mb, len(tool.pids())) == (61.5, 128, 1)
    assert tool.run("print(6 * 7)").output == "42\n"
