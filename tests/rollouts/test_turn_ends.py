"""What an answer of the environment leaves of a row: ids that fit, the reason, the void."""

import numpy as np
import pytest

from jaxrl_llm.config import SamplerConfig
from jaxrl_llm.rollouts.environment import Continue, Environment, Stop
from jaxrl_llm.rollouts.rollout_table import NOT_ENDED, RolloutTable
from jaxrl_llm.rollouts.turns import Turns
from jaxrl_llm.types import STOP_ENVIRONMENT, STOP_LENGTH, STOP_TOKEN, PromptBatch

LIMIT, COUNT = 8, 5
IDS = np.arange(1, COUNT + 1)


class Answers(Environment):
  """Ends a turn of COUNT tokens, and gives a set answer."""

  def __init__(self, outcome):
    self.outcome = outcome

  def turn_end(self, turn_ids, seen=0):
    return COUNT

  def step(self, row_id, turn_ids, last=False):
    return self.outcome


def ended(outcome):
  """(reason, tokens that are inserted, void, turn) of a row with 5 of 8 tokens and a turn left."""
  one = np.ones(1, np.int32)
  table = RolloutTable(PromptBatch(one[None], one, one, one), np.array([LIMIT]),
              SamplerConfig(max_new_tokens=LIMIT), max_turns=2)
  table.admitted = 1
  turns = Turns(Answers(outcome), table, workers=1)
  assert table.add_tokens(0, IDS, np.zeros(COUNT)) and turns.ends(0) and table.waiting[0]
  turns.collect()
  turns.close()
  count = table.count[0]
  np.testing.assert_array_equal(table.turn_id[0], np.arange(LIMIT) < COUNT)
  np.testing.assert_array_equal(table.tokens[0, :COUNT], IDS)
  assert not np.any(table.tokens[0, count:]) and not table.waiting[0]
  inserted = table.tokens[0, COUNT:count].tolist()
  return int(table.reason[0]), inserted, bool(table.void[0]), int(table.turn[0])


@pytest.mark.parametrize(("outcome", "expected"), [
    (Stop(STOP_TOKEN), (STOP_TOKEN, [], False, 1)),
    (Stop(STOP_ENVIRONMENT, void=True), (STOP_ENVIRONMENT, [], True, 1)),
    (Stop(STOP_ENVIRONMENT, ids=(7, 8, 9)), (STOP_ENVIRONMENT, [7, 8, 9], False, 1)),
    (Stop(STOP_ENVIRONMENT, ids=(7, 8, 9, 10)), (STOP_LENGTH, [], False, 1)),
    (Continue((7, 8)), (NOT_ENDED, [7, 8], False, 2)),
    (Continue((7, 8, 9)), (STOP_LENGTH, [7, 8, 9], False, 2)),
    (Continue((7, 8, 9, 10)), (STOP_LENGTH, [], False, 1))], ids=str)
def test_what_is_inserted_fits_as_a_whole_or_ends_the_row(outcome, expected):
  assert ended(outcome) == expected
