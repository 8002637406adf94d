"""The table of environments: entering one. What makes them is imported for runs that have one."""

import dataclasses
from collections.abc import Sequence

from jaxrl_llm.registry import ENVIRONMENTS, Entry

OF_TOOL = "tool"


@dataclasses.dataclass(frozen=True)
class EnvironmentEntry(Entry):
  """An environment in the table.

  Attributes:
    function: `make(tokenizer, eos_ids, max_output_tokens, cfg) -> Environment`, for example a
      subclass of `TurnEnvironment`. At most `max_output_tokens` ids may follow a turn.
  """


def register(name: str, numbers: type | None = None, *, replace: bool = False, **defaults):
  """Returns a decorator that enters an environment in the table; see `EnvironmentEntry`."""
  return ENVIRONMENTS.register(name, numbers, replace=replace, make=EnvironmentEntry, **defaults)


@register(OF_TOOL)
def of_tool(tokenizer, eos_ids: Sequence[int], max_output_tokens: int, cfg):
  """Placeholder for what `environment.make_environment` makes from a tool and a protocol."""
  raise NotImplementedError
