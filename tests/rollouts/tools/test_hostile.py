"""Hostile programs end with the right status, harm nothing, leave nothing, and the same worker goes on."""

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hostile_programs import PROGRAMS

DRIVER = Path(__file__).with_name("hostile_driver.py")
SECONDS = 60


def cap():
  """Limits from outside, which every process of the sandbox inherits and none can raise."""
  for name, value in (("RLIMIT_AS", 1 << 30), ("RLIMIT_CPU", 30), ("RLIMIT_FSIZE", 64 << 20), ("RLIMIT_CORE", 0)):
    resource.setrlimit(getattr(resource, name), (value, value))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
  """One line of the driver by program; "isolation" and "end" besides."""
  if os.geteuid() or not shutil.which("unshare"):
    pytest.skip("without root, nothing holds back a program should the sandbox fail to")
  environment = {**os.environ, "TMPDIR": str(tmp_path_factory.mktemp("temporary")), "JAXRL_TEST_SECRET": "1"}
  # --kill-child: when this process ends, or the time below is over, so does all that the driver has started.
  done = subprocess.run(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, str(DRIVER)],
                        capture_output=True, text=True, timeout=SECONDS, preexec_fn=cap, env=environment)
  lines = [json.loads(line) for line in done.stdout.splitlines()]
  assert lines, done.stderr
  if lines[0]["missing"]:
    pytest.skip(f"not offered here: {lines[0]['missing']}")
  return {line.get("name", next(iter(line))): line for line in lines} | {"stderr": done.stderr}


@pytest.mark.parametrize("name", PROGRAMS)
def test_hostile(outcomes, name):
  _, status, text = PROGRAMS[name]
  assert name in outcomes, outcomes["stderr"]
  outcome = outcomes[name]
  assert outcome["status"] in (status if isinstance(status, tuple) else (status,)), outcome
  assert text in outcome["output"]
  assert len(outcome["output"]) < 800
  assert outcome["next"] == ["ok", "45\n"], "the worker does not go on"
  assert outcome["changed"] == [], "something was left behind, or the worker was replaced"


def test_nothing_was_reached(outcomes):
  for name in PROGRAMS:
    assert outcomes[name]["outside"] == "as it was"
    assert not {"DONE", "SEEN", "KILLED", "FOUND"} & set(outcomes[name]["output"].split()), outcomes[name]


def test_nothing_stays_after_the_sandbox(outcomes):
  assert outcomes["end"] == {"end": []}
