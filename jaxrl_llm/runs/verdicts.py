"""From sampled rows to verdicts, all on the host."""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from transformers import PreTrainedTokenizerBase

from jaxrl_llm.config import RolloutConfig
from jaxrl_llm.tasks.rewards import RewardedTask
from jaxrl_llm.types import (
  STOP_ENVIRONMENT,
  STOP_LENGTH,
  STOP_STRING,
  STOP_TOKEN,
  Problem,
  Reward,
  Rollout,
  Task,
)

if TYPE_CHECKING:  # imported for runs that have one
  from jaxrl_llm.rollouts.environment import Environment, ToolEnvironment


@dataclasses.dataclass(frozen=True)
class Verdicts:
  """Verdicts of B rows.

  Attributes:
    rewards: [B] f32, 0 where `keep` is False.
    correct: [B] bool; where the reward does not say, whether it is positive.
    keep: [B] bool, False for rows that are unscored or void.
    texts: the completions that were verified.
    given: the task's own verdicts.
  """

  rewards: np.ndarray
  correct: np.ndarray
  keep: np.ndarray
  texts: list[str]
  given: list[Reward]

  @property
  def graded(self) -> bool:
    """Returns whether verdicts say what is correct, so that there is an accuracy."""
    verdicts = [reward for reward in self.given if reward.unscored_reason is None]
    return not verdicts or any(reward.correct is not None for reward in verdicts)

  def take(self, index: np.ndarray) -> "Verdicts":
    """Returns the verdicts of the rows in `index`."""
    return Verdicts(self.rewards[index], self.correct[index], self.keep[index],
                    [self.texts[i] for i in index], [self.given[i] for i in index])

  @staticmethod
  def join(batches: list["Verdicts"]) -> "Verdicts":
    """Returns the verdicts of several batches, in order."""
    return Verdicts(
        np.concatenate([batch.rewards for batch in batches]),
        np.concatenate([batch.correct for batch in batches]),
        np.concatenate([batch.keep for batch in batches]),
        [text for batch in batches for text in batch.texts],
        [reward for batch in batches for reward in batch.given],
    )


def verify(task: Task, environment: "Environment | None", cfg: RolloutConfig,
           problems: list[Problem], rollout: Rollout) -> Verdicts:
  """Verifies each row of a rollout.

  Args:
    environment: the sampler's.
    problems: one per group.
    rollout: on the host.
  """
  texts = completions(task.tokenizer, environment, cfg, rollout)
  task_rewards = judged(task, problems, texts)
  keep = np.array([reward.unscored_reason is None for reward in task_rewards])
  if rollout.void is not None:
    keep &= ~np.asarray(rollout.void)
  rewards = np.array([reward.value if k else 0.0
                      for reward, k in zip(task_rewards, keep, strict=True)], np.float32)
  correct = np.array([reward.value > 0 if reward.correct is None else reward.correct
                      for reward in task_rewards]) & keep
  return Verdicts(rewards, correct, keep, texts, task_rewards)


def judged(task: Task, problems: list[Problem], texts: list[str]) -> list[Reward]:
  """Returns the verdicts on groups of completions, group after group; `problems` has one each."""
  if isinstance(task, RewardedTask):
    return task.group_rewards(problems, texts)
  size = len(texts) // len(problems)
  return task.rewards([problem for problem in problems for _ in range(size)], texts)


def completions(tokenizer: PreTrainedTokenizerBase, environment: "Environment | None",
                cfg: RolloutConfig, rollout: Rollout) -> list[str]:
  """Returns the text of each completion, as the verifier reads it.

  - By default every sampled token is decoded, special tokens included, but for the stop token.
  - A row that a stop string ended is cut before it.
  - Text that a tool wrote is left out, unless it ended the row: then it is the answer.
  - If the tool's protocol looks for an answer, the code of calls is left out too: what a program
    would print is no answer before it has run.
  """
  tools = None
  if environment is not None:
    from jaxrl_llm.rollouts.environment import ToolEnvironment
    tools = environment if isinstance(environment, ToolEnvironment) else None
  needs_answer = tools is not None and tools.protocol.needs_answer
  texts = []
  for row in range(rollout.tokens.shape[0]):
    mask, length = rollout.mask[row].copy(), rollout.length[row]
    reason = rollout.stop_reason[row]
    if reason == STOP_ENVIRONMENT:
      mask[np.flatnonzero(mask)[-1]:length] = True
    ids = rollout.tokens[row][mask]
    if needs_answer:
      turns = rollout.turn_id[row][mask]
      texts.append(_turn_texts(tokenizer, tools, ids, turns, cut=reason == STOP_LENGTH))
    elif reason == STOP_STRING:
      from jaxrl_llm.rollouts.turn_ends import before_stop
      # Decoded as StopStrings does: tidied spaces could break the string.
      text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
      texts.append(before_stop(text, cfg.stop_strings))
    else:
      texts.append(tokenizer.decode(ids[:-1] if reason == STOP_TOKEN else ids))
  return texts


def _turn_texts(tokenizer: PreTrainedTokenizerBase, environment: "ToolEnvironment", ids: np.ndarray,
                turn_id: np.ndarray, cut: bool) -> str:
  """Returns the text of each turn without its call, and the output after the last turn, one per
  line.

  Args:
    ids: tokens of one completion.
    turn_id: the turn of each, 0 for the output.
    cut: whether a length limit ended the last turn.
  """
  last = turn_id.max()
  lines = [environment.stated(ids[turn_id == turn], cut and turn == last)
           for turn in range(1, last + 1)]
  output = ids[turn_id == 0]
  return "\n".join([*lines, tokenizer.decode(output)] if len(output) else lines)
