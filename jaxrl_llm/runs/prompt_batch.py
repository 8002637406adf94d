"""Prompts of a batch as arrays, and the key that its rows are sampled with."""

import jax
import numpy as np

from jaxrl_llm.types import Problem, PromptBatch, Task


def prompt_batch(task: Task, problems: list[Problem], width: int, *, group_size: int = 1,
                 first_row: int = 0) -> PromptBatch:
  """Lays each problem's prompt out on `group_size` contiguous rows, as numpy arrays.

  Group ids follow from row ids, so they are unique in the run and groups of several batches may be
  joined.

  Args:
    width: columns of a prompt, `rollout.max_prompt_tokens`.
    first_row: row id of the first row, a multiple of `group_size`; the others count up from it.
  """
  ids = [task.render(problem) for problem in problems]
  tokens = np.full((len(ids), width), task.tokenizer.pad_token_id, np.int32)
  for row, prompt in enumerate(ids):
    tokens[row, :len(prompt)] = prompt
  length = np.array([len(prompt) for prompt in ids], np.int32)
  row_id = first_row + np.arange(len(problems) * group_size, dtype=np.int32)
  return PromptBatch(np.repeat(tokens, group_size, 0), np.repeat(length, group_size), row_id,
                     row_id // group_size)


def by_row(prompts: PromptBatch, problems: list[Problem]) -> dict[int, Problem]:
  """The problem of each row id; `problems` has one per group, in the order of the rows."""
  size = len(prompts.row_id) // len(problems)
  return {int(row): problems[i // size] for i, row in enumerate(prompts.row_id)}


def iteration_key(seed: int, iteration: int) -> jax.Array:
  """Sampling key of an iteration. Row ids are folded into it, so each row has its own noise."""
  return jax.random.fold_in(jax.random.key(seed), iteration)
