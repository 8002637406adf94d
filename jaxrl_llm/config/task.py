"""What is asked of the policy, and how answers are checked."""

import dataclasses

from jaxrl_llm.fields import option

VERIFIERS = ("exact", "numeric", "math", "choice")


@dataclasses.dataclass(frozen=True)
class CountdownConfig:
  """Reach a target from given numbers, each used once."""

  numbers: int = option(3, "numbers of a problem", low=2, high=6)
  largest: int = option(20, "largest number", low=2, high=999)


@dataclasses.dataclass(frozen=True)
class ToolArithmeticConfig:
  """Multiply two numbers, with a calculator at hand."""

  digits: int = option(3, "digits of each number", low=2, high=12)


@dataclasses.dataclass(frozen=True)
class GymConfig:
  """A task of the reasoning-gym package (extra `gym`)."""

  name: str = option("chain_sum", "name of a reasoning-gym dataset")
  size: int = option(10_000, "training problems", low=1)
  options: str = option("{}", "JSON of the dataset's own options")


@dataclasses.dataclass(frozen=True)
class DataConfig:
  """Problems from files (task.name=dataset)."""

  path: str = option(
      "", "training problems: jsonl or parquet file, folder of `datasets`, or hub name "
      "(owner/name, owner/name:configuration)")
  heldout_path: str = option(
      "", "the same, for the held-out evaluation; unset: task.heldout_problems rows of `path`")
  split: str = option("train", "split of a `datasets` folder or hub name")
  heldout_split: str = option("test", "split of heldout_path")
  mapping: str = option(
      "auto", "columns and answer rule by name (tasks/mappings.py); auto: `columns`",
      choices=("auto", "gsm8k", "math", "deepscaler", "dapo", "aime", "amc23", "minerva",
               "olympiadbench"))
  prompt_column: str = option("problem", "mapping=auto: column of the question")
  answer_column: str = option("answer", "mapping=auto: column of the answer")
  id_column: str = option("", "mapping=auto: column of a unique id; unset: the row number")
  demonstration_column: str = option(
      "", "mapping=auto: column of a worked completion, for the warm start")
  verifier: str = option(
      "auto", "how answers are checked; auto: the mapping's own, math where that is auto",
      choices=("auto", *VERIFIERS))


@dataclasses.dataclass(frozen=True)
class PromptConfig:
  """From a question to token ids."""

  style: str = option(
      "plain", "plain: the text alone; completion: `template`; chat: the tokenizer's chat template",
      choices=("plain", "completion", "chat"))
  system: str = option("", "chat: system message; empty: none")
  template: str = option("Question: {problem}\nAnswer:", "completion: text around {problem}")
  suffix: str = option("", "chat: added to the question, for example a format instruction")
  arguments: str = option(
      "{}", 'chat: JSON given to the template, for example {"enable_thinking": false}')


@dataclasses.dataclass(frozen=True)
class TaskConfig:
  name: str = option(
      "modular_chain", "source of problems",
      choices=("modular_chain", "countdown", "tool_arithmetic", "dataset", "reasoning_gym"))
  num_terms: int = option(6, "modular_chain: digits in a chain", low=2, high=32)
  worked_share: float = option(
      1.0, "share of demonstrations that write every step (modular_chain) or call the tool "
      "(tool_arithmetic); the others only answer", low=0.0, high=1.0)
  heldout_problems: int = option(256, "held-out problems of the greedy evaluation", low=1)
  shuffle_rewards: bool = option(False, "control: permute rewards within each rollout batch")
  verifier_workers: int = option(2, "processes that check answers which need sympy", low=1,
                                 high=256)
  verifier_timeout: float = option(
      10.0, "seconds after which a check is killed and its row left unscored", low=0.1)
  countdown: CountdownConfig = CountdownConfig()
  tool_arithmetic: ToolArithmeticConfig = ToolArithmeticConfig()
  gym: GymConfig = GymConfig()
  data: DataConfig = DataConfig()
  prompt: PromptConfig = PromptConfig()
