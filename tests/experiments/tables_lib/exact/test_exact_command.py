"""The command of the exact laboratory, with methods of one's own beside the package's."""

from pathlib import Path

import forked
import pytest

from experiments.tables_lib.exact import studies
from jaxrl_llm.registry import AGGREGATIONS

ROOT = Path(__file__).parents[4]


def test_every_aggregation_is_studied():
  assert set(studies.aggregation_names()) == set(AGGREGATIONS)


@pytest.mark.slow
def test_the_committed_tables_are_the_package_s_own():
  done = forked.run(["experiments/exact/run.py", "--plugins=experiments/extend/estimator.py"], ROOT)
  assert done.returncode != 0 and "--plugins needs --out" in done.stderr
