"""The package passes mypy under .mypy.ini, which says what is not checked and why."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
WRONG = """
from jaxrl_llm.wiring.learner import Start
from jaxrl_llm.types import Reward

def total(rewards: list[Reward]) -> float:
  return sum(reward.valu for reward in rewards)

start = Start({}, None, "one too many")
"""


def mypy(*arguments: str, cache: Path) -> str:
  command = [sys.executable, "-m", "mypy", "--config-file", ".mypy.ini", "--cache-dir", str(cache)]
  done = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True)
  assert not done.stderr, done.stderr
  return done.stdout


def test_the_package_has_no_type_errors_and_a_wrong_file_has(tmp_path):
  assert "Success: no issues" in mypy("jaxrl_llm", cache=tmp_path / "cache")
  wrong = tmp_path / "wrong.py"
  wrong.write_text(WRONG)
  report = mypy(str(wrong), cache=tmp_path / "cache")
  assert "valu" in report and "Too many" in report and "Found 2 errors" in report
