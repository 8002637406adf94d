"""The table of tools: entering one, and making it by name."""

import dataclasses
import inspect
import logging
import time
from collections.abc import Callable
from typing import Any

from jaxrl_llm.fields import ConfigError, option
from jaxrl_llm.late import Late, loaded
from jaxrl_llm.registry import TOOLS, Entry
from jaxrl_llm.sandbox.limits import LARGEST, Limits
from jaxrl_llm.sandbox.results import STATUSES, Tool, ToolResult

logger = logging.getLogger(__name__)
OF_TASK = "task"


@dataclasses.dataclass(frozen=True)
class ToolEntry(Entry):
  """A tool in the table.

  Attributes:
    function: `tool(text, cfg) -> str | ToolResult`, or a class of tools, which is made with its
      numbers as keyword arguments (and `workers`, if it takes that: threads that call it).
    parameter: name of its only argument, for the protocol `tag`.
    protocol: notation of calls, unless the config says otherwise.
  """

  parameter: str = "text"
  protocol: str = "tag"


def register(name: str, numbers: type | None = None, *, parameter: str = "text",
             protocol: str = "tag", replace: bool = False, **defaults):
  """Returns a decorator that enters a tool in the table; see `ToolEntry`.

  Args:
    name: value of `tool.name`.
    numbers, replace, **defaults: as in `registry.Table.register`.
    parameter, protocol: see `ToolEntry`.
  """
  def make(function: Callable, numbers: type) -> ToolEntry:
    return ToolEntry(function, numbers, parameter, protocol)

  return TOOLS.register(name, numbers, replace=replace, make=make, **defaults)


class FunctionTool(Tool):
  """A function from text to text as a `Tool`. If it raises, the call is `unavailable`."""

  def __init__(self, entry: ToolEntry, cfg):
    self._entry, self._cfg, self._reasons = entry, cfg, set()

  def run(self, text: str) -> ToolResult:
    """Returns the function's text with status `ok`, or the ToolResult that it returned."""
    begin = time.perf_counter()
    try:
      tool_result = _as_tool_result(self._entry.function(text, self._cfg))
    except Exception as error:
      reason = f"{type(error).__name__}: {error}"
      if reason not in self._reasons:
        self._reasons.add(reason)
        logger.warning("tool %s: %s; the rows of such calls are void", self._entry.where, reason)
      return ToolResult("unavailable", reason)
    return dataclasses.replace(tool_result, seconds=time.perf_counter() - begin)


def _as_tool_result(returned) -> ToolResult:
  """Returns what a function returned as a ToolResult.

  Raises:
    TypeError: neither a text nor a ToolResult with a known status.
  """
  if isinstance(returned, str):
    return ToolResult("ok", returned)
  if not isinstance(returned, ToolResult) or returned.status not in STATUSES:
    raise TypeError(
        f"it returned {repr(returned)[:80]}; a text or a ToolResult with a status among "
                    f"{', '.join(STATUSES)} was expected")
  return returned


def make_tool(name: str, cfg=None, workers: int = 1) -> Tool:
  """Returns the tool of a name, which the caller closes.

  Args:
    cfg: an instance of its hyperparameters; None: their defaults.
    workers: threads that call it concurrently.

  Raises:
    ConfigError: an unknown name, a tool that does not start, or one that is no `Tool`.
  """
  entry = TOOLS[name]
  cfg = entry.numbers() if cfg is None else cfg
  with TOOLS.blamed(name):
    factory = loaded(entry.function)
    if not inspect.isclass(factory):
      _probe(entry, cfg)
      return FunctionTool(entry, cfg)
    arguments = {f.name: getattr(cfg, f.name) for f in dataclasses.fields(cfg)}
    parameters = inspect.signature(factory).parameters.values()
    if any(p.name == "workers" or p.kind is p.VAR_KEYWORD for p in parameters):
      arguments["workers"] = workers
    tool: Any = factory(**arguments)
    lacking = [method for method in ("run", "close") if not callable(getattr(tool, method, None))]
    if lacking:
      raise TypeError(f"a tool has the methods run and close; this one lacks {', '.join(lacking)}")
    return tool


def _probe(entry: ToolEntry, cfg) -> None:
  """Calls a function once with an empty text, which it may refuse by an exception.

  Raises:
    TypeError: it returns something else than a result, or does not take two arguments.
  """
  inspect.signature(entry.function).bind("", cfg)
  try:
    answer = entry.function("", cfg)
  except Exception:
    return
  _as_tool_result(answer)


@dataclasses.dataclass(frozen=True)
class PythonNumbers:
  """Hyperparameters of `python`: what one program may use; see `limits.Limits`."""

  timeout: float = option(Limits.timeout, "wall-clock time of a program, seconds", low=0.05)
  cpu_seconds: int = option(Limits.cpu_seconds, "processor time of a program, seconds", low=1,
                            high=LARGEST)
  memory_mb: int = option(Limits.memory_mb, "address space of a process, MiB", low=64, high=LARGEST)
  output_chars: int = option(Limits.output_chars, "characters of output that are kept", low=16,
                             high=LARGEST)
  require: tuple = option((), "kinds of isolation without which no run begins")


@register(OF_TASK)
def of_task(text: str, cfg) -> str:
  """Placeholder for the tool that the task brings."""
  raise ConfigError("tool.name = 'task': the task brings no tool")


TOOLS.add("calculator", ToolEntry(Late("jaxrl_llm.rollouts.tools.calculator.Calculator"),
                                  parameter="expression", protocol="inline"))
TOOLS.add("python", ToolEntry(Late("jaxrl_llm.sandbox.python_sandbox.PythonSandbox"),
                              PythonNumbers, "code", "fence"))
