"""The task, its rewards, its tool, and how a problem's text becomes a prompt.

A key that only one task reads is defined next to that task, in tasks/.
"""

import dataclasses
from typing import ClassVar

from jaxrl_llm import registry
from jaxrl_llm.fields import DEFAULT, option, when
from jaxrl_llm.registry import Choice, Table

AUTO = "auto"  # the mapping over named columns, and the verifier of a mapping
CHAT = when(".style", "chat")
COLUMNS = when(".mapping", AUTO)
OF_TASK = "task"  # the style of an evaluation set's prompt that is the task's
WITH_TOOL = (when("rollout.max_turns"), when("environment.name", "tool"))


@dataclasses.dataclass(frozen=True)
class PromptConfig:
  """The conversion of a problem's text to token ids."""

  style: str = option("plain", "plain: the text itself; completion: the text in `template`; chat: "
                      "the tokenizer's chat template; auto: chat if it has one, else plain",
                      choices=("plain", "completion", "chat"), auto=True)
  system: str = option("", "system message; empty: none", when=CHAT)
  template: str = option("Question: {problem}\nAnswer:", "text around {problem}",
                         when=when(".style", "completion"))
  suffix: str = option("", "added to the problem, for example a format instruction", when=CHAT)
  examples: str = option("", "file of worked examples before the problem, with the columns problem "
                         "and completion; empty: none")
  arguments: str = option(
      "{}", 'JSON object given to the chat template, for example {"enable_thinking": false}',
      when=CHAT)
  date: str = option("2026-01-01", "day, year-month-day, at which a chat template that reads the "
                     "clock is rendered, so that prompts are the same on every day", when=CHAT)


@dataclasses.dataclass(frozen=True, init=False)
class TaskConfig(Choice):
  """The task, the keys of all tasks, and its own: `TaskConfig("modular_chain", num_terms=3)`."""

  name: str = option("modular_chain", "source of problems and of their verifier")
  heldout_problems: int = option(256, "held-out problems of the evaluation; -1: all rows of "
                                 "task.data.heldout_path; 0: none", low=-1, high=10**7)
  shuffle_rewards: bool = option(False, "control: permutes rewards within each rollout batch")
  prompt: PromptConfig = PromptConfig()
  table: ClassVar[Table] = registry.TASKS


@dataclasses.dataclass(frozen=True)
class SetPromptConfig(PromptConfig):
  """The prompt of an evaluation set: the task's, or a separate one."""

  style: str = option(OF_TASK, "as task.prompt.style; task: all of task.prompt",
                      choices=(OF_TASK, "plain", "completion", "chat"))


@dataclasses.dataclass(frozen=True)
class EvaluationSetConfig:
  """Held-out problems from a separate file; only the verifier judges their answers."""

  path: str = option("", "as task.data.heldout_path")
  split: str = option("test", "split of a `datasets` folder or hub name")
  mapping: str = option(AUTO, "as task.data.mapping")
  prompt_column: str = option("problem", "column of the question", when=COLUMNS)
  answer_column: str = option("answer", "column of the answer", when=COLUMNS)
  id_column: str = option("", "column of a unique id; empty: the row number", when=COLUMNS)
  verifier: str = option(AUTO, "as task.data.verifier")
  problems: int = option(-1, "problems, the first ones; -1: all; 0: the set is left out", low=-1)
  too_long: str = option("error", "as task.data.heldout_too_long", choices=("error", "drop"))
  bad_rows: str = option("error", "as task.data.bad_rows", choices=("error", "drop"))
  samples: int | None = option(None, "sampled completions per problem; none: evaluation.samples, "
                               "or --samples of experiments/evaluate.py; 0: greedy only", low=0,
                               high=4096)
  temperature: float | None = option(None, "of the sampled completions; none: that of the others",
                                     low=1e-3, high=100.0)
  prompt: SetPromptConfig = SetPromptConfig()


@dataclasses.dataclass(frozen=True, init=False)
class RewardConfig(Choice):
  """The rewards of a completion, added up, and their hyperparameters."""

  name: str = option("task", "rewards, comma-separated; task: the task's own verdict")
  table: ClassVar[Table] = registry.REWARDS


@dataclasses.dataclass(frozen=True, init=False)
class ToolConfig(Choice):
  """The tool that the policy may call, and its hyperparameters (with rollout.max_turns)."""

  name: str = option("task", "tool; task: the one that the task brings", when=WITH_TOOL)
  protocol: str = option(DEFAULT, "notation of calls (rollouts/protocols.py); default: the tool's "
                         "own", choices=(DEFAULT, "inline", "fence", "tag"), when=WITH_TOOL)
  table: ClassVar[Table] = registry.TOOLS


@dataclasses.dataclass(frozen=True, init=False)
class EnvironmentConfig(Choice):
  """The environment that answers the policy's turns, and its hyperparameters."""

  name: str = option("tool", "what follows a turn; tool: the output of `tool.name`",
                     when=when("rollout.max_turns"))
  table: ClassVar[Table] = registry.ENVIRONMENTS
