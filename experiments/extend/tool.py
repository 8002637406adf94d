"""A tool of your own, for any task: the policy writes `[12]`, and `[12]144;` stands in the row.

  python experiments/main.py --config=experiments/extend/config.py --workdir=runs/extend_tool \
    --config.plugins=experiments/extend/tool.py --config.tool.name=power \
    --config.tool.exponent=2 --config.rollout.slots=16 --config.rollout.max_turns=2 \
    --config.rollout.max_tool_tokens=8

`tool.protocol` says how calls are written: inline as here, fence (code blocks), or tag (the
<tool_call> of Qwen's chat template).
"""

from jaxrl_llm import register


@register.tool("power", parameter="base", protocol="inline", exponent=3)
def power(text, cfg):
  """Returns the power of a number. It is called from several threads at once.

  A text is the output. For a call that the policy got wrong, return tools.ToolResult("error", ...);
  an exception means that the tool itself failed, and makes the row void.
  """
  digits = "".join(c for c in text if c.isdigit())[:6]
  return str(int(digits or 0)**cfg.exponent)
