"""What an outcome of the environment leaves of a row: ids that fit, the reason, the void."""

import concurrent.futures
import types

import numpy as np
import pytest

from jaxrl_llm.rollouts.environment import Continue, Stop
from jaxrl_llm.rollouts.turns import Turns
from jaxrl_llm.types import STOP_ENVIRONMENT, STOP_LENGTH, STOP_TOKEN

LIMIT, COUNT = 8, 5


def ended(outcome, turns_left=1):
  """(reason or None, tokens put in, void, turn) of a row with 5 of 8 tokens."""
  turns, reasons = Turns(None, 1, LIMIT, 1 + turns_left, None, 1), []
  stats = types.SimpleNamespace(tool_calls=0, tool_seconds=0.0, chunks=1, replayed_steps=0,
                                useful_steps=0)
  flight = types.SimpleNamespace(tokens=np.zeros(
      (1, LIMIT), np.int32), count=np.array([COUNT]), limit=np.array([LIMIT]), stats=stats,
                                 active=lambda: np.array([False]),
                                 end=lambda row, reason: reasons.append(reason))
  answer = concurrent.futures.Future()
  answer.set_result((outcome, 0.0))
  turns.waiting[0] = answer, 0
  turns.collect(flight)
  turns.close()
  put_in = flight.tokens[0, COUNT:flight.count[0]].tolist()
  assert not np.any(turns.turn_id) and not np.any(flight.tokens[0, flight.count[0]:])
  return (*reasons, None)[0], put_in, bool(turns.void[0]), int(turns.turn[0])


@pytest.mark.parametrize(("outcome", "expected"), [
    (Stop(STOP_TOKEN), (STOP_TOKEN, [], False, 1)),
    (Stop(STOP_ENVIRONMENT, void=True), (STOP_ENVIRONMENT, [], True, 1)),
    (Stop(STOP_ENVIRONMENT, ids=(7, 8, 9)), (STOP_ENVIRONMENT, [7, 8, 9], False, 1)),
    (Stop(STOP_ENVIRONMENT, ids=(7, 8, 9, 10)), (STOP_LENGTH, [], False, 1)),
    (Continue((7, 8)), (None, [7, 8], False, 2)),
    (Continue((7, 8, 9)), (STOP_LENGTH, [7, 8, 9], False, 2)),
    (Continue((7, 8, 9, 10)), (STOP_LENGTH, [], False, 1))], ids=str)
def test_what_is_put_in_fits_as_a_whole_or_ends_the_row(outcome, expected):
  assert ended(outcome) == expected
