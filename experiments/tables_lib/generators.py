"""Continues rows of ids by one step, from the host: for searches and probes over prefixes."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from experiments.tables_lib.rows import padded_rows
from jaxrl_llm.config import SamplerConfig
from jaxrl_llm.rollouts.next_token import rules_on
from jaxrl_llm.rollouts.sampler import generate
from jaxrl_llm.types import PromptBatch, Sampling


class Step(NamedTuple):
  """A continuation of a row by one step; `ended`: its last id ends the response."""

  ids: list[int]
  ended: bool


# (rows of ids, continuations of each row, number of the step) -> Steps, contiguous for each row.
Generator = Callable[[Sequence[Sequence[int]], int, int], list[Step]]


def engine_generator(params, key: jax.Array, sampling: Sampling, *, model, cfg: SamplerConfig,
                     step_end: tuple[int, ...] = ()) -> Generator:
  """Returns a generator that samples from a model, all rows in one batch.

  Args:
    key: of all steps; step s takes fold_in(key, s), so that a search repeats.
    sampling: temperature and rules.
    cfg: `max_new_tokens` bounds one step, `stop_ids` end the response. `group_size` is not read.
    step_end: ids that end a step, such as a newline's. Without any, a step has `max_new_tokens`
      tokens.
  """
  rules = rules_on(sampling)

  def continue_rows(rows, copies, step):
    sized = dataclasses.replace(cfg, group_size=copies, stop_ids=(*cfg.stop_ids, *step_end))
    tokens, length = padded_rows(rows, copies, cfg.pad_id)
    ids = np.arange(len(tokens), dtype=np.int32)
    prompts = PromptBatch(tokens, length, ids, ids // copies)
    rollout = jax.device_get(_compiled(model, sized, rules)(
        params, prompts, jax.random.fold_in(key, step), sampling))
    steps = []
    for row in range(len(rows) * copies):
      new = rollout.tokens[row, length[row]:rollout.length[row]].tolist()
      steps.append(Step(new, new[-1] in cfg.stop_ids))
    return steps

  return continue_rows


@functools.lru_cache(maxsize=32)
def _compiled(model, cfg: SamplerConfig, rules: frozenset[str]):
  return jax.jit(functools.partial(generate, model=model, cfg=cfg, rules=rules))
