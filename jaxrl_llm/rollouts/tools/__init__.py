"""Tools that a policy may call while it generates: text in, text out."""

from jaxrl_llm.late import late_names
from jaxrl_llm.registry import TOOLS
from jaxrl_llm.rollouts.tools.registry import OF_TASK, ToolEntry, make_tool, register
from jaxrl_llm.sandbox.results import Tool, ToolResult

__all__ = ["OF_TASK", "TOOLS", "Tool", "ToolEntry", "ToolResult", "make_tool", "register"]
# Imported for runs with such a tool.
__getattr__ = late_names(__name__, {
    "Calculator": "jaxrl_llm.rollouts.tools.calculator",
    "Isolation": "jaxrl_llm.sandbox.isolation",
    "Limits": "jaxrl_llm.sandbox.limits",
    "PythonSandbox": "jaxrl_llm.sandbox.python_sandbox",
})
