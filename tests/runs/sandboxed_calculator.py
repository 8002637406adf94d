"""A plugin: the calculator's expressions are computed by programs in the Python sandbox.

An answer is right with its last digit, which a tiny policy meets often enough for rewards that
differ in a group. With STALL=path:n in the environment, the n-th program sleeps on, and the file
gets the processes of its sandbox.
"""

import itertools
import os
import re
import threading
from pathlib import Path

from experiments.tasks.tool_arithmetic import ToolArithmetic
from jaxrl_llm import tasks
from jaxrl_llm.rollouts import environment
from jaxrl_llm.rollouts.tools import PythonSandbox, ToolResult
from jaxrl_llm.types import Reward

_CALLS, _LOCK = itertools.count(1), threading.Lock()


class SandboxedCalculator(PythonSandbox):
  """As `Calculator`, for products of whole numbers."""

  def __init__(self):
    super().__init__(workers=2, timeout=600.0)

  def run(self, text: str) -> ToolResult:
    if not re.fullmatch(r"[0-9]{1,2}\*[0-9]{1,2}", text):
      return ToolResult("error", "error: not a product")
    with _LOCK:
      call = next(_CALLS)
    path, _, number = os.environ.get("STALL", "").rpartition(":")
    if path and call == int(number):
      threading.Timer(0.1, lambda: Path(path).write_text(" ".join(map(str, self.pids())))).start()
      return super().run("import time; time.sleep(600)")
    return super().run(f"print(int('{text.split('*')[0]}') * int('{text.split('*')[1]}'))")


class LastDigit(ToolArithmetic):
  def reward(self, problem, completion):
    right = "=" in completion and completion.endswith(problem.answer[-1])
    return Reward(float(right), right)


tasks.TASKS["tool_arithmetic"] = LastDigit
environment.TOOLS["calculator"] = SandboxedCalculator
