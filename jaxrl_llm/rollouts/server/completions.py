"""The request for one row and what its answer must hold, in the shape of OpenAI's completions.

vLLM (`CompletionRequest` in vllm/entrypoints/openai/completion/protocol.py, read at 002032e) and
SGLang (`CompletionRequest` in sglang/srt/entrypoints/openai/protocol.py, read in 0.5.23) share
these fields. README.md lists the fields that these two add to OpenAI's.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from jaxrl_llm.types import STOP_LENGTH, STOP_TOKEN, Sampling

PATH = "/v1/completions"
ABOVE_ZERO = 1e-3  # nats by which rounding may lift the log-prob of a certain token
LOWEST = float(np.finfo(np.float32).min)


class AnswerError(Exception):
  """An answer that holds no usable row."""


@dataclasses.dataclass(frozen=True)
class Limits:
  """The limits and tokens that end a row.

  Attributes:
    max_new_tokens, min_new_tokens: completion tokens, the stop token included.
    stop_ids: tokens that end a row.
    vocab_size: ids are below it.
  """

  max_new_tokens: int
  min_new_tokens: int
  stop_ids: tuple[int, ...]
  vocab_size: int


@dataclasses.dataclass(frozen=True)
class Completion:
  """A sampled row.

  Attributes:
    tokens: ids, the stop token included.
    log_probs: nats, one of each token.
    reason: STOP_TOKEN or STOP_LENGTH.
  """

  tokens: list[int]
  log_probs: list[float]
  reason: int


def request(model: str, prompt: Sequence[int], seed: int, sampling: Sampling,
            limits: Limits) -> dict:
  """Returns the body that asks for one row.

  Every sampling number is in it, because servers take absent ones from the generation_config.json
  of the weights. `ignore_eos` is left out: in SGLang it would switch off `stop_token_ids`, too.

  Args:
    model: the name under which the server serves it.
    prompt: ids.
    sampling: numbers on the host.
  """
  return {
      "model": model,
      "prompt": [int(token) for token in prompt],
      "n": 1,
      "max_tokens": limits.max_new_tokens,
      "min_tokens": limits.min_new_tokens,
      "stop_token_ids": list(limits.stop_ids),
      "temperature": float(sampling.temperature),
      "top_p": float(sampling.top_p),
      "top_k": int(sampling.top_k) or -1,  # -1 keeps all tokens in both
      "min_p": float(sampling.min_p),
      "repetition_penalty": 1.0,
      "presence_penalty": 0.0,
      "frequency_penalty": 0.0,
      "seed": int(seed),
      "logprobs": 1,
      "return_token_ids": True,
      "skip_special_tokens": False,
      "stream": False,
  }


def parse(answer, prompt: Sequence[int], limits: Limits) -> Completion:
  """Reads the row of an answer to `request`.

  Args:
    answer: decoded JSON.
    prompt: the ids that were sent.

  Raises:
    AnswerError: naming the field that is absent or impossible.
  """
  choices = _field(answer, "choices", list, "the answer")
  if len(choices) != 1:
    raise AnswerError(f"choices has {len(choices)} entries instead of 1")
  choice = choices[0]
  tokens = _ids(choice, "token_ids", limits.vocab_size)
  echoed = _ids(choice, "prompt_token_ids", limits.vocab_size)
  if echoed != [int(token) for token in prompt]:
    raise AnswerError(f"prompt_token_ids has {len(echoed)} ids that are not the {len(prompt)} of "
                      "the prompt")
  reason = _field(choice, "finish_reason", str, "choices[0]")
  log_probs = _log_probs(choice)
  if reason == "stop" and len(log_probs) == len(tokens) + 1:
    tokens = tokens + [_stop_id(choice)]  # left out of token_ids, as of the text
  if len(log_probs) != len(tokens):
    raise AnswerError(f"token_logprobs has {len(log_probs)} entries for {len(tokens)} tokens")
  return Completion(tokens, log_probs, _checked_end(tokens, reason, limits))


def _checked_end(tokens: list[int], reason: str, limits: Limits) -> int:
  """Returns why the row ended, STOP_*, if its tokens agree with what the server says."""
  if not 0 < len(tokens) <= limits.max_new_tokens:
    raise AnswerError(f"{len(tokens)} tokens; allowed are 1 to {limits.max_new_tokens}")
  first = next((i for i, token in enumerate(tokens) if token in limits.stop_ids), None)
  if first is not None and first + 1 < len(tokens):
    raise AnswerError(f"the row continues after the stop token {tokens[first]}")
  if first is not None:
    if len(tokens) < limits.min_new_tokens:
      raise AnswerError(f"the row stops after {len(tokens)} tokens; at least "
                        f"{limits.min_new_tokens} were asked for")
    return STOP_TOKEN
  if reason == "length" and len(tokens) == limits.max_new_tokens:
    return STOP_LENGTH
  if reason == "stop":
    raise AnswerError(f"the row stops at token {tokens[-1]}, which is none of the stop tokens "
                      f"{list(limits.stop_ids)}")
  raise AnswerError(f"finish_reason is {reason!r} after {len(tokens)} of {limits.max_new_tokens} "
                    "tokens")


def _field(container, name: str, kind: type, location: str):
  value = container.get(name) if isinstance(container, dict) else None
  if not isinstance(value, kind):
    raise AnswerError(f"{location} has no {name} of type {kind.__name__}")
  return value


def _ids(choice, name: str, vocab_size: int) -> list[int]:
  ids = _field(choice, name, list, "choices[0]")
  if not all(type(token) is int and 0 <= token < vocab_size for token in ids):
    raise AnswerError(f"{name} holds something other than ids of 0 to {vocab_size - 1}")
  return ids


def _log_probs(choice) -> list[float]:
  log_probs = _field(_field(choice, "logprobs", dict, "choices[0]"), "token_logprobs", list,
                     "logprobs")
  for value in log_probs:
    number = type(value) in (int, float) and math.isfinite(value)
    if not number or not LOWEST <= value <= ABOVE_ZERO:
      raise AnswerError(f"token_logprobs holds {value!r}; allowed are finite numbers up to 0")
  return [min(float(value), 0.0) for value in log_probs]


def _stop_id(choice) -> int:
  """Returns the token that ended the row, by vLLM's name and by SGLang's."""
  stop_id = choice.get("stop_reason", choice.get("matched_stop"))
  if type(stop_id) is not int:
    raise AnswerError("token_logprobs has one entry more than token_ids, and no stop token is "
                      "named")
  return stop_id
