"""The task, its rewards, its tool, and how a problem's text becomes a prompt.

A key that only one task reads is defined beside that task, in tasks/.
"""

import dataclasses
from typing import ClassVar

from jaxrl_llm import registry
from jaxrl_llm.fields import DEFAULT, option, when
from jaxrl_llm.registry import Choice, Table

CHAT = when(".style", "chat")
WITH_TOOL = (when("rollout.max_turns"), when("environment.name", "tool"))


@dataclasses.dataclass(frozen=True)
class PromptConfig:
  """How the text of a problem becomes token ids."""

  style: str = option("plain", "plain: the text itself; completion: the text in `template`; chat: "
                      "the tokenizer's chat template", choices=("plain", "completion", "chat"))
  system: str = option("", "system message; empty: none", when=CHAT)
  template: str = option("Question: {problem}\nAnswer:", "text around {problem}",
                         when=when(".style", "completion"))
  suffix: str = option("", "added to the problem, for example a format instruction", when=CHAT)
  examples: str = option("", "file of worked examples before the problem, with the columns problem "
                         "and completion; empty: none")
  arguments: str = option(
      "{}", 'JSON object given to the chat template, for example {"enable_thinking": false}',
      when=CHAT)


@dataclasses.dataclass(frozen=True, init=False)
class TaskConfig(Choice):
  """The task, the keys of all tasks, and its own: `TaskConfig("modular_chain", num_terms=3)`."""

  name: str = option("modular_chain", "source of problems and of their verifier")
  heldout_problems: int = option(256, "held-out problems of the greedy evaluation", low=1)
  shuffle_rewards: bool = option(False, "control: permutes rewards within each rollout batch")
  prompt: PromptConfig = PromptConfig()
  table: ClassVar[Table] = registry.TASKS


@dataclasses.dataclass(frozen=True, init=False)
class RewardConfig(Choice):
  """The rewards of a completion, added up, and their numbers."""

  name: str = option("task", "rewards, comma-separated; task: the task's own verdict")
  table: ClassVar[Table] = registry.REWARDS


@dataclasses.dataclass(frozen=True, init=False)
class ToolConfig(Choice):
  """The tool that the policy may call, and its numbers; rollout.max_turns switches it on."""

  name: str = option("task", "tool; task: the one that the task brings", when=WITH_TOOL)
  protocol: str = option(DEFAULT, "notation of calls (rollouts/protocols.py); default: the tool's "
                         "own", choices=(DEFAULT, "inline", "fence", "tag"), when=WITH_TOOL)
  table: ClassVar[Table] = registry.TOOLS


@dataclasses.dataclass(frozen=True, init=False)
class EnvironmentConfig(Choice):
  """What answers the policy's turns, and its numbers."""

  name: str = option("tool", "what follows a turn; tool: the output of `tool.name`",
                     when=when("rollout.max_turns"))
  table: ClassVar[Table] = registry.ENVIRONMENTS
