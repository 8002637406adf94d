"""Mistakes of chains; those of recurrences are tested beside the task."""

import pytest

from experiments.tables_lib.mistakes import Mistake, of_chain
from jaxrl_llm.types import Problem


@pytest.mark.parametrize("completion, expected", [
    (":3+4=7*2=4", []), ("=4", []),
    (":3+4=8*2=6", [Mistake(5, "step")]),  # the wrong value is carried on: one mistake
    (":3+4=7*2=5", [Mistake(9, "step")]), (":3+4=7", [Mistake(6, "step")]),
    (":3+4=7*2=4=", [Mistake(10, "step")]),
    ("=5", [Mistake(0, "guess")]), ("", [Mistake(0, "guess")]),
])
def test_the_first_wrong_character_of_a_chain_is_its_mistake(completion, expected):
  assert of_chain(Problem("3+4*2", "4"), completion) == expected
