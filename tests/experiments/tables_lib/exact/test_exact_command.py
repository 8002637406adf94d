"""The command of the exact laboratory, with methods of one's own beside the package's."""

import subprocess
from pathlib import Path

import forked
import pytest

from experiments.tables_lib.exact import studies
from jaxrl_llm.registry import AGGREGATIONS

ROOT = Path(__file__).parents[4]
PLUGINS = "experiments/extend/estimator.py,experiments/extend/advantage.py"


def run(*flags: str) -> subprocess.CompletedProcess:
  return forked.run(["experiments/exact/run.py", *flags], ROOT)


def test_every_aggregation_is_studied():
  assert set(studies.aggregation_names()) == set(AGGREGATIONS)


@pytest.mark.slow
def test_the_committed_tables_are_the_package_s_own():
  done = run(f"--plugins={PLUGINS}")
  assert done.returncode != 0 and "--plugins needs --out" in done.stderr
