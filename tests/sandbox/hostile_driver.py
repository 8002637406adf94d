"""Runs the hostile programs in a sandbox and prints a JSON line for each.

test_hostile.py runs it under limits and, if the system offers one, as the first process of a
process namespace: when it ends, so does every process that a program left.
"""

import argparse
import json
import os
import socket
import tempfile
import threading
import time
from pathlib import Path
from unittest import mock

from hostile_programs import PROGRAMS

from jaxrl_llm.sandbox.python_sandbox import PythonSandbox

MOST_PROCESSES = 60
LIMITS = {
    "timeout": 1.0,
    "cpu_seconds": 1,
    "memory_mb": 128,
    "processes": 5,
    "directory_mb": 4,
    "output_chars": 400,
}

LOCK = threading.Lock()  # listing a folder takes a handle, which must not be counted


def processes() -> set[int]:
  with LOCK:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def watch() -> None:
  """Ends everything if a limit fails, because this process is the first of its namespace."""
  while True:
    if os.getpid() == 1 and len(processes()) > MOST_PROCESSES:
      os._exit(99)
    time.sleep(0.05)


def state() -> dict:
  """Returns everything that a program could leave."""
  folder = tempfile.gettempdir()
  with LOCK:
    handles = sorted(os.listdir("/proc/self/fd"))
  return {
      "handles": handles,
      "files": sorted(os.listdir(folder)),
      "processes": sorted(processes()) if os.getpid() == 1 else [],
      "memory segments": len(Path("/proc/sysvipc/shm").read_text().splitlines()),
  }


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument("programs", nargs="*", default=list(PROGRAMS), help="names (default: all)")
  parser.add_argument("--without", default="", help="an isolation to leave out")
  args = parser.parse_args()
  if args.without:
    # The trial program would fail if the user of programs may not read the libraries.
    PythonSandbox._try_one = mock.Mock()
  limits = LIMITS | {"without": args.without.split()}
  threading.Thread(target=watch, daemon=True).start()
  listener = socket.socket(socket.AF_UNIX)
  listener.bind("\0jaxrl-hostile-test")
  listener.listen()
  outside = Path(tempfile.gettempdir()) / "outside"
  outside.write_text("as it was")
  outside.chmod(0o666)
  before_all = state()
  longer = limits | {"timeout": 30.0}
  with PythonSandbox(workers=1, **limits) as sandbox, PythonSandbox(workers=1, **longer) as patient:
    isolation = {"isolation": vars(sandbox.isolation), "missing": sandbox.isolation.missing}
    print(json.dumps(isolation), flush=True)
    for each in (sandbox, patient):
      each.run("'SECRET-OF-ANOTHER'")
    for name in args.programs:
      before = state()
      # The short limit is for what ends only there.
      ends_late = PROGRAMS[name][1] == "timeout" and name != "outlives its processor time"
      chosen = sandbox if ends_late else patient
      result = chosen.run(PROGRAMS[name][0].replace("OUTSIDE", repr(str(outside))))
      for _ in range(10):  # a busy machine may not run it within the short limit
        after = chosen.run("print(sum(range(10)))")
        if after.status != "timeout":
          break
      now = state()
      outcome = {
          "name": name,
          "status": result.status,
          "output": result.output,
          "seconds": result.seconds,
          "next": [after.status, after.output],
          "outside": outside.read_text(),
          "changed": [key for key in now if now[key] != before[key]],
      }
      print(json.dumps(outcome), flush=True)
  now = state()
  print(json.dumps({"end": [key for key in now if now[key] != before_all[key]]}), flush=True)


if __name__ == "__main__":
  main()
