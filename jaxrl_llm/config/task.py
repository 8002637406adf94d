"""The task, and how a problem's text becomes a prompt.

A key that only one task reads is defined beside that task, in tasks/.
"""

import dataclasses
from typing import ClassVar

from jaxrl_llm import registry
from jaxrl_llm.fields import option, when
from jaxrl_llm.registry import Choice, Table

CHAT = when(".style", "chat")


@dataclasses.dataclass(frozen=True)
class PromptConfig:
  """How the text of a problem becomes token ids."""

  style: str = option("plain", "plain: the text itself; completion: the text in `template`; chat: "
                      "the tokenizer's chat template", choices=("plain", "completion", "chat"))
  system: str = option("", "system message; empty: none", when=CHAT)
  template: str = option("Question: {problem}\nAnswer:", "text around {problem}",
                         when=when(".style", "completion"))
  suffix: str = option("", "added to the problem, for example a format instruction", when=CHAT)
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
