"""The request for a row has the fields of vLLM and SGLang, and no unusable answer becomes a row."""

import copy

import jax
import numpy as np
import pytest
import server_schemas

from jaxrl_llm.rollouts.server import completions
from jaxrl_llm.rollouts.server.completions import AnswerError, Limits
from jaxrl_llm.types import STOP_LENGTH, STOP_TOKEN, Sampling

LIMITS = Limits(max_new_tokens=4, min_new_tokens=2, stop_ids=(1, 2), vocab_size=10)
PROMPT = [5, 6, 7]


def body(**rules) -> dict:
  sampling = jax.device_get(Sampling.of(0.7, **rules))
  return completions.request("policy", np.array(PROMPT), 2**31 - 1, sampling, LIMITS)


def answer(tokens=(3, 4, 1), log_probs=None, reason="stop", **changes) -> dict:
  log_probs = [-0.5] * len(tokens) if log_probs is None else log_probs
  choice = {"index": 0, "text": "", "finish_reason": reason, "token_ids": list(tokens),
            "prompt_token_ids": PROMPT, "logprobs": {"token_logprobs": log_probs}}
  return {"choices": [choice | changes]}


@pytest.mark.parametrize("rules", [{}, {"top_k": 5, "top_p": 0.9, "min_p": 0.1}])
def test_both_servers_understand_the_request(rules):
  assert server_schemas.refuse(body(**rules)) is None


@pytest.mark.parametrize("change", [{"top_k": 5.0}, {"ids": [1]}, {"prompt": "text"}, {"n": True}])
def test_other_requests_are_refused(change):
  assert server_schemas.refuse(body() | change)


def test_a_row_ends_by_a_stop_token_or_by_its_length():
  row = completions.parse(answer(), PROMPT, LIMITS)
  assert (row.tokens, row.log_probs, row.reason) == ([3, 4, 1], [-0.5] * 3, STOP_TOKEN)
  row = completions.parse(answer((3, 4, 5, 6), reason="length"), PROMPT, LIMITS)
  assert row.reason == STOP_LENGTH
  row = completions.parse(answer((3, 4, 5, 2), reason="length"), PROMPT, LIMITS)
  assert row.reason == STOP_TOKEN  # the last token that was allowed


@pytest.mark.parametrize("name", ["stop_reason", "matched_stop"])
def test_a_stop_token_may_be_left_out_of_the_ids(name):
  given = answer((3, 4), [-1.0, -1.0, -0.25], **{name: 2})
  row = completions.parse(given, PROMPT, LIMITS)
  assert (row.tokens, row.log_probs[-1], row.reason) == ([3, 4, 2], -0.25, STOP_TOKEN)


def test_rounding_above_zero_is_none():
  assert completions.parse(answer((3, 1), [1e-6, -1.0]), PROMPT, LIMITS).log_probs == [0.0, -1.0]


NAN = float("nan")
BAD = {
    "no JSON": (None, "no choices"),
    "a list": ([], "no choices"),
    "an error": ({"message": "overloaded"}, "no choices"),
    "no choice": ({"choices": []}, "0 entries"),
    "two choices": ({"choices": answer()["choices"] * 2}, "2 entries"),
    "a text as choice": ({"choices": ["text"]}, "no token_ids"),
    "no ids": (answer(token_ids=None), "no token_ids"),
    "ids as text": (answer(token_ids=["3", "1"]), "something other than ids"),
    "an id out of range": (answer((3, 10)), "0 to 9"),
    "a negative id": (answer((-1, 1)), "0 to 9"),
    "true as an id": (answer((True, 1)), "something other than ids"),
    "another prompt": (answer(prompt_token_ids=[1, 5, 6, 7]), "4 ids that are not the 3"),
    "no log-probs": (answer(logprobs=None), "no logprobs"),
    "too few log-probs": (answer(log_probs=[-1.0, -1.0]), "2 entries for 3 tokens"),
    "a log-prob too many": (answer((3, 1), [-1.0] * 3), "no stop token is named"),
    "no number": (answer(log_probs=[None, -1.0, -1.0]), "None"),
    "NaN": (answer(log_probs=[NAN, -1.0, -1.0]), "nan"),
    "infinite": (answer(log_probs=[-float("inf"), -1.0, -1.0]), "-inf"),
    "infinite in f32": (answer(log_probs=[-1e300, -1.0, -1.0]), "finite"),
    "a probability above 1": (answer(log_probs=[0.1, -1.0, -1.0]), "0.1"),
    "empty": (answer(()), "0 tokens"),
    "too long": (answer((3, 4, 5, 6, 7), reason="length"), "5 tokens; allowed are 1 to 4"),
    "cut off": (answer((3, 4), reason="length"), "'length' after 2 of 4"),
    "aborted": (answer((3, 4), reason="abort"), "'abort'"),
    "too short": (answer((1,)), "at least 2"),
    "another stop token": (answer((3, 4)), "none of the stop tokens"),
    "on after the stop": (answer((1, 3, 4, 2)), "continues after the stop token 1"),
    "no reason": (answer(finish_reason=None), "no finish_reason"),
}


@pytest.mark.parametrize("name", BAD)
def test_unusable_answers_are_named(name):
  given, match = BAD[name]
  with pytest.raises(AnswerError, match=match):
    completions.parse(copy.deepcopy(given), PROMPT, LIMITS)
