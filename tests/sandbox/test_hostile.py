"""Hostile programs end with the right status, harm and leave nothing, and the worker goes on."""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hostile_programs import PROGRAMS

pytestmark = pytest.mark.slow  # each runs all programs, some of which wait for a limit
DRIVER = Path(__file__).with_name("hostile_driver.py")
SECONDS = 500


def cap():
  """Sets limits from outside, which every process of the sandbox inherits and none can raise."""
  for name, value in (("RLIMIT_AS", 1 << 30), ("RLIMIT_CPU", 30), ("RLIMIT_FSIZE", 64 << 20),
                      ("RLIMIT_CORE", 0)):
    resource.setrlimit(getattr(resource, name), (value, value))


def driven(*arguments):
  """Returns the driver's lines by program, also "isolation" and "end", and its error stream."""
  # --kill-child: when this process ends or SECONDS are over, so does all that the driver started.
  command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable,
             str(DRIVER), *arguments]
  with tempfile.TemporaryDirectory() as folder:
    os.chmod(folder, 0o755)  # so that only the sandbox keeps other users from the file in it
    environment = {**os.environ, "TMPDIR": folder, "JAXRL_TEST_SECRET": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, preexec_fn=cap,
                          env=environment)
  lines = [json.loads(line) for line in done.stdout.splitlines()]
  assert lines, done.stderr
  return {line.get("name", next(iter(line))): line for line in lines} | {"stderr": done.stderr}


@pytest.fixture(scope="module")
def outcomes():
  if os.geteuid() or not shutil.which("unshare"):
    pytest.skip("without root, nothing holds back a program if the sandbox fails")
  probe = driven("exit status")
  if missing := probe["isolation"]["missing"]:
    pytest.skip(f"not offered here: {missing}")
  return driven()


def harm(outcome) -> bool:
  words = {"DONE", "SEEN", "KILLED", "FOUND"} & set(outcome["output"].split())
  return bool(words) or outcome["outside"] != "as it was"


@pytest.mark.parametrize("name", list(PROGRAMS))
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
  assert [name for name in PROGRAMS if harm(outcomes[name])] == []


@pytest.mark.parametrize(("without", "programs"), [
    ("files", ("reads outside", "writes outside")),
    ("network", ("connects to the host's abstract socket", "lists interfaces"))])
def test_a_weaker_sandbox_fails_these_tests(outcomes, without, programs):
  weak = driven("--without", without, *programs)
  for name in programs:
    _, status, text = PROGRAMS[name]
    assert harm(weak[name]) or weak[name]["status"] != status or text not in weak[name]["output"]


def test_nothing_stays_after_the_sandbox(outcomes):
  assert outcomes["end"] == {"end": []}
