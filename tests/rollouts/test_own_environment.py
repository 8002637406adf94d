"""The base of one's own environments: where turns end, and whose problem a row has."""

import types

import pytest

from jaxrl_llm.rollouts.environment import TurnEnvironment
from jaxrl_llm.tasks.tokenizer import character_tokenizer
from jaxrl_llm.types import Problem
from jaxrl_llm.wiring import sampler

TOKENIZER = character_tokenizer("0123456789;<>")
EOS = TOKENIZER.eos_token_id


def ids(text: str) -> list[int]:
  return TOKENIZER.encode(text, add_special_tokens=False)


def test_a_turn_ends_with_its_first_marker_or_stop_token():
  environment = TurnEnvironment(TOKENIZER, (EOS,), markers=(";",))
  assert environment.turn_end(ids("12")) is None
  assert environment.turn_end(ids("12;3;")) == 3
  assert environment.turn_end(ids("12;3;"), seen=1) == 3
  assert environment.turn_end([*ids("12"), EOS, *ids(";")]) == 3
  assert environment.split([*ids("12"), EOS]) == ("12", True)


def test_without_markers_only_a_stop_token_ends_a_turn():
  environment = TurnEnvironment(TOKENIZER, (EOS,))
  assert environment.turn_end(ids("12;")) is None
  assert environment.turn_end([*ids("1"), EOS]) == 2


def test_batches_under_way_at_once_have_their_own_problems():
  environment = TurnEnvironment(TOKENIZER, (EOS,))
  first = environment.for_rows({0: Problem("a", "1")})
  second = environment.for_rows({0: Problem("b", "2")})
  assert (first.problems[0].answer, second.problems[0].answer) == ("1", "2")
  assert not environment.problems


@pytest.mark.parametrize("raised", [ValueError("stuck"), SystemExit(0)])
def test_an_environment_that_cannot_be_closed_ends_no_run(raised, caplog):
  def close():
    raise raised

  nothing = [None] * 8
  nothing[3] = types.SimpleNamespace(close=close)
  sampler.Sampler(*nothing).close()
  assert "environment SimpleNamespace: close: " in caplog.text
