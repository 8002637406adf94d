"""Search for the critical token of a wrong response, after which no continuation is right.

Each prefix of a response is continued many times. A token can also be forced, by appending it to
the prefix, or forbidden at its place, to see whether the response would have been saved.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from experiments.tables_lib.generators import Generator, Step, engine_generator
from experiments.tables_lib.rows import padded_rows
from jaxrl_llm.config import SamplerConfig
from jaxrl_llm.rollouts.next_token import row_keys, rules_on, sample_token
from jaxrl_llm.types import Sampling

TAIL = 0.05  # share of right continuations that later prefixes stay below
Grade = Callable[[Sequence[int]], bool]  # ids of a full row -> whether it is right


def probe_critical_tokens(generator: Generator, prompts: Sequence[Sequence[int]],
                          responses: Sequence[Sequence[int]], grade: Sequence[Grade],
                          count: int = 64) -> list[np.ndarray]:
  """Returns, for each response, the share of right continuations after each of its tokens, [T].

  After the last token of a response nothing is sampled: its own grade counts.

  Args:
    generator: continues rows to their end, such as `engine_generator` without `step_end`.
    prompts, responses: ids.
    grade: of each response's problem.
    count: continuations of each prefix.
  """
  rows = [[*prompt, *response[:n]] for prompt, response in zip(prompts, responses, strict=True)
          for n in range(1, len(response))]
  steps = iter(generator(rows, count, 0) if rows else [])
  shares, prefixes = [], iter(rows)
  for prompt, response, right in zip(prompts, responses, grade, strict=True):
    shares_after = []
    for _ in range(1, len(response)):
      prefix = next(prefixes)
      shares_after.append(np.mean([right([*prefix, *next(steps).ids]) for _ in range(count)]))
    shares.append(np.array([*shares_after, float(right([*prompt, *response]))]))
  return shares


def critical_position(shares: np.ndarray) -> int | None:
  """Returns the first position whose share is 0 and after which all shares stay below 5 %.

  None: there is no such position, as in most right responses.

  Source: cDPO, arXiv 2411.19943.
  """
  late = np.flatnonzero(np.asarray(shares) >= TAIL)
  start = late[-1] + 1 if len(late) else 0
  zeros = np.flatnonzero(np.asarray(shares)[start:] == 0)
  # A share between 0 and 5 % in front of the first 0 is no critical token yet.
  return int(start + zeros[0]) if len(zeros) else None


def without_token(params, key: jax.Array, sampling: Sampling, *, model, cfg: SamplerConfig
                  ) -> Callable[[Sequence[Sequence[int]], Sequence[int], int], list[Step]]:
  """Returns a function (rows, forbidden ids [R], count) -> continuations, a row's contiguous.

  The first token of a continuation is not the forbidden one, whose probability the other tokens
  share; what follows is free. `cfg.max_new_tokens` bounds what follows the first token.

  Args:
    key: the first token takes fold_in(key, 0), the rest is as `engine_generator` with
      fold_in(key, 1).
    sampling, model, cfg: as in `engine_generator`.
  """
  rules = rules_on(sampling)
  go_on = engine_generator(params, jax.random.fold_in(key, 1), sampling, model=model, cfg=cfg)

  def continue_rows(rows, forbidden, count):
    tokens, length = padded_rows(rows, count, cfg.pad_id)
    banned = np.zeros(len(tokens), np.int32)
    banned[:len(rows) * count] = np.repeat(forbidden, count)
    first = np.asarray(_first_tokens(params, (tokens, length, banned), jax.random.fold_in(key, 0),
                                     sampling, model=model, rules=rules))[:len(rows) * count]
    stopped = np.isin(first, cfg.stop_ids)
    started = [[*rows[index // count], int(token)] for index, token in enumerate(first)]
    open_rows = [row for row, over in zip(started, stopped, strict=True) if not over]
    steps = iter(go_on(open_rows, 1, 0) if open_rows else [])
    out = []
    for token, over in zip(first.tolist(), stopped, strict=True):
      continuation = Step([], True) if over else next(steps)
      out.append(Step([token, *continuation.ids], continuation.ended))
    return out

  return continue_rows


@functools.partial(jax.jit, static_argnames=("model", "rules"))
def _first_tokens(params, rows, key, sampling: Sampling, *, model, rules: frozenset[str]):
  """Returns the token after each row, [B] int32.

  Args:
    rows: tokens [B, L], length [B], and the token [B] that has probability 0.
  """
  tokens, length, banned = rows
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  segments = (positions < length[:, None]).astype(jnp.int32)
  hidden, _ = model.hidden(params, tokens, positions, segments)
  last = jnp.take_along_axis(hidden, (length - 1)[:, None, None], 1)[:, 0]
  head = model.head(params)
  forbidden = jnp.arange(head.shape[1]) == banned[:, None]
  keys = row_keys(key, jnp.arange(len(tokens)))
  return sample_token(last, head, (keys, length), sampling, forbidden, rules=rules)[0]
