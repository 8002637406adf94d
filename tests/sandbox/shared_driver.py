"""Runs the programs of test_shared_state.py in a sandbox and prints their outputs as JSON.

The keyrings that these programs touch are of this process alone: it makes one before it starts the
sandbox, which inherits it.
"""

import ctypes
import json
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
FIND = (10, -3, b"user", b"jaxrl-test", 0)  # KEYCTL_SEARCH in the session's keyring

PROGRAMS = {
    "adds a key": """
import ctypes
c = ctypes.CDLL(None)
print(c.syscall(ADD, b"user", b"jaxrl-test", b"x", 1, -3) > 0)""",
    "finds the key": """
import ctypes
print(ctypes.CDLL(None).syscall(KEYCTL, *FIND) > 0)""",
    "memory": """
import os
os.memfd_create("x")""",
    "buffers": """
import socket
pair, sent = socket.socketpair(), 0
for end in pair:
  try: end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
  except PermissionError: pass
  end.setblocking(False)
  try:
    while True: sent += end.send(bytes(1 << 14))
  except BlockingIOError: pass
print(sent / 2 / 2**20)""",
    "families": """
import socket
found = set()
for family in range(64):
  for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
    for make in (socket.socket, socket.socketpair):
      try:
        make(family, kind)
        found.add(family)
      except OSError: pass
print(sorted(found))""",
    "devices": """
import json, os
found = {}
for name in ("null", "zero", "urandom"):
  path = f"/dev/{name}"
  stat = os.stat(path)
  found[name] = [stat.st_dev, stat.st_ino, stat.st_rdev, os.statvfs(path).f_flag & os.ST_RDONLY]
print(json.dumps(found))""",
    "uses devices": """
import os, subprocess
with open(os.devnull, "r+b", buffering=0) as file: print(file.write(b"x"), file.read())
with open("/dev/zero", "rb") as file: print(file.read(2))
with open("/dev/urandom", "rb") as file: print(len(file.read(2)), len(os.urandom(3)))
handle = os.open(os.devnull, os.O_RDWR)  # as subprocess.DEVNULL
print(os.write(handle, b"xy"))""",
    "marks its input": """
import fcntl, os
before = fcntl.fcntl(0, fcntl.F_GETFL)
fcntl.fcntl(0, fcntl.F_SETFL, before | os.O_NONBLOCK)
print(bool(before & os.O_NONBLOCK), bool(fcntl.fcntl(0, fcntl.F_GETFL) & os.O_NONBLOCK))""",
    "looks at its input": """
import fcntl, os, sys
print(bool(fcntl.fcntl(0, fcntl.F_GETFL) & os.O_NONBLOCK), repr(sys.stdin.read()))""",
    "locks a file of its own": """
import sqlite3
base = sqlite3.connect("base")
base.execute("create table t (x)")
base.execute("insert into t values (7)")
base.commit()
print(base.execute("select x from t").fetchall())""",
}

# What a program could change of the host and of the process above it: each prints True if it did.
CHANGES = {
    "writes the host's buffers": """
import ctypes, os
handle = os.open(os.__file__, os.O_RDONLY)
print(ctypes.CDLL(None).syncfs(handle) == 0)""",
    "changes limits above it": """
import os, resource
now = resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE)
resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, now)
print(True)""",
    "changes processors above it": """
import os
os.sched_setaffinity(os.getppid(), os.sched_getaffinity(0))
print(True)""",
    "changes the scheduler above it": """
import os
os.sched_setscheduler(os.getppid(), os.SCHED_OTHER, os.sched_param(0))
print(True)""",
    "changes priority above it": """
import os
os.setpriority(os.PRIO_PROCESS, os.getppid(), os.getpriority(os.PRIO_PROCESS, os.getppid()))
print(True)""",
}
SERVES = """
import ctypes, os, subprocess, threading
thread = threading.Thread(target=sum, args=([1, 2],))
thread.start()
thread.join()
os.sched_setaffinity(0, os.sched_getaffinity(0))
os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0))
print(os.preadv(os.open(os.__file__, os.O_RDONLY), [bytearray(3)], 0))
import asyncio, concurrent.futures
async def one(): return 1
print(asyncio.run(one()))
with concurrent.futures.ThreadPoolExecutor(2) as pool: print(list(pool.map(abs, [-1, 2])))"""


def main() -> None:
  import hostile_driver  # puts a stub in place of the samplers

  from jaxrl_llm.sandbox import seccomp

  column = seccomp.machine()[1]
  add, keyctl = (seccomp.CALLS[name][0][column] for name in ("add_key", "keyctl"))
  if LIBC.syscall(keyctl, 1, None) < 0:  # KEYCTL_JOIN_SESSION_KEYRING
    keyctl = -1  # no keyrings here; above all, none that others use
  outputs = {}
  with hostile_driver.PythonSandbox(workers=1, timeout=60.0, without=sys.argv[1:]) as sandbox:
    outputs["missing"] = sandbox.isolation.missing
    # A program that is this process's user only tries the changes.
    for name, text in () if "user" in sys.argv else PROGRAMS.items():
      if "key" in name and keyctl < 0:
        continue
      for word, number in (("ADD", add), ("KEYCTL", keyctl), ("FIND", FIND)):
        text = text.replace(word, str(number))
      outputs[name] = sandbox.run(text).output
    outputs["changes"] = [name for name, text in CHANGES.items()
                          if sandbox.run(text).output.strip() == "True"]
    outputs["serves"] = sandbox.run(SERVES).output
  if keyctl >= 0:
    outputs["this process finds the key"] = LIBC.syscall(keyctl, *FIND) > 0
  print(json.dumps(outputs))


if __name__ == "__main__":
  main()
