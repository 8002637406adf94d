"""Tools that a policy may call while it generates: text in, text out."""

from jaxrl_llm.registry import TOOLS
from jaxrl_llm.rollouts.tools.calculator import Calculator
from jaxrl_llm.rollouts.tools.registry import OF_TASK, ToolEntry, make_tool, register
from jaxrl_llm.sandbox.isolation import Isolation
from jaxrl_llm.sandbox.python_sandbox import Limits, PythonSandbox
from jaxrl_llm.sandbox.results import Tool, ToolResult

__all__ = [
    "Calculator", "Isolation", "Limits", "OF_TASK", "PythonSandbox", "TOOLS", "Tool", "ToolEntry",
    "ToolResult", "make_tool", "register"
]
