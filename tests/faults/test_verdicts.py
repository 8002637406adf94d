"""The campaign names every wrong end of a command, so that none of them passes for a right one."""

import campaign
import pytest
from campaign import Case, Ended, main

RIGHT = "error: rollout.prompts = 0: out of range; allowed: 1 to inf. Fix: a value in the range.\n"
USAGE = "usage: replay.py [-h] workdir\n"
WARNING = "W1126 01:00:00.123456 140000 lock.py:10] the file system has no locks\n"
TRACE = 'Traceback (most recent call last):\n  File "x.py", line 1\nKeyError: 3\n'


@pytest.mark.parametrize("errors", [
    RIGHT, WARNING + RIGHT, "error: 2 problems\n1. rollout.prompts = 0. Fix: 1.\n2. seed\n",
    RIGHT.replace(" Fix", "\n  missing: a tensor\nFix"),
    USAGE + "replay.py: error: rollout.prompts: invalid\n"])
def test_a_right_error_is_clean(errors):
  words = ["rollout.prompts"]
  assert campaign.verdict(Ended(1, "progress\n", errors), words) == campaign.CLEAN


@pytest.mark.parametrize("ended, verdict", [
    (Ended(None, "", RIGHT), "hang"),
    (Ended(0, "", RIGHT), "silent"),
    (Ended(0, "", ""), "silent"),
    (Ended(1, "", TRACE), "traceback"),
    (Ended(1, TRACE, RIGHT), "traceback"),
    (Ended(0, "", TRACE), "traceback"),
    (Ended(-11, "", RIGHT), "status -11"),
    (Ended(1, "", ""), "0 errors"),
    (Ended(1, "", RIGHT * 2), "2 errors"),
    (Ended(1, RIGHT, ""), "0 errors"),
    (Ended(1, "", "Task exception was never retrieved\n" + RIGHT), "noise"),
    (Ended(1, "", RIGHT + "E1126 01:00:00.1 1 coordination_service.cc:1] lost\n"), "noise"),
    (Ended(1, "", "E1126 01:00:00.1 1 coordination_service.cc:1] lost\n" + RIGHT), "noise"),
    (Ended(1, "", RIGHT.replace("rollout.prompts", "it")), "unnamed rollout.prompts"),
    (Ended(1, "", RIGHT.replace("Fix: ", "")), "no fix"),
])
def test_a_wrong_end_is_named(ended, verdict):
  assert campaign.verdict(ended, ["rollout.prompts"]) == verdict


def ended_command(folder, monkeypatch, source: str, *flags: str, **fields) -> Ended:
  """How a command of its own ends in place of main.py, through the driver."""
  (folder / "experiments").mkdir()
  (folder / "experiments" / "mine.py").write_text(source + "\n")
  monkeypatch.setattr(campaign, "ROOT", folder)
  return campaign.execute(Case(flags, script="mine", **fields), folder, {})


@pytest.mark.parametrize("script, verdict", [
    ("raise ValueError('why')", "traceback"), ("print('done')", "silent"),
    ("import time; time.sleep(600)", "hang"), ("import os; os.kill(os.getpid(), 9)", "status -9"),
    ("import sys; sys.exit('error: x. Fix: y.')", campaign.CLEAN)])
def test_a_command_that_ends_wrongly_is_reported(tmp_path, monkeypatch, script, verdict):
  limit = 2.0 if verdict == "hang" else campaign.LIMIT
  ended = ended_command(tmp_path, monkeypatch, script, limit=limit)
  assert campaign.verdict(ended, ("x",)) == verdict, ended


def test_a_good_run_would_be_reported(tmp_path):
  """A case whose input is not bad at all is no case: its command ends with 0."""
  case = main({"iterations": "0"}, "iterations")
  ended = campaign.execute(case, tmp_path, {})
  assert campaign.verdict(ended, case.texts) == "silent", ended.errors


def test_places_in_arguments_are_filled_and_braces_stay(tmp_path, monkeypatch):
  ended = ended_command(tmp_path, monkeypatch, "import sys\nprint(sys.argv[1:])", "{here}/x",
                        "{problem}")
  assert ended.output == f"{[f'{tmp_path}/x', '{problem}']}\n"
