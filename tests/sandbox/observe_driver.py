"""What programs in a sandbox can observe of its neighbours, or change of the process above them.

Prints JSON: a list of words for each sandbox kind given on the command line. All of it stays inside
of the sandboxes: a program asks about files of the interpreter and about its own parent.
"""

import contextlib
import json
import sys
import threading

PROGRAMS = {
    "watches a library folder": """
import os
import ctypes
c = ctypes.CDLL(None, use_errno=True)
handle = c.inotify_init()
folder = os.path.dirname(os.__file__).encode()
print(handle >= 0 and c.inotify_add_watch(handle, folder, 32) >= 0)""",
    "is notified of a library folder": """
import fcntl, os
handle = os.open(os.path.dirname(os.__file__), os.O_RDONLY)
fcntl.fcntl(handle, fcntl.F_NOTIFY, fcntl.DN_ACCESS)
print(True)""",
    "leases a library file": """
import fcntl, os
handle = os.open(os.__file__, os.O_RDONLY)
fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_RDLCK)
print(True)""",
    "asks the page cache": """
import os
handle = os.open(os.__file__, os.O_RDONLY)
os.pread(handle, 1, 0)  # brings it there
print(os.preadv(handle, [bytearray(1)], 0, os.RWF_NOWAIT) >= 0)""",
    "asks for resident pages": """
import ctypes, mmap, os
with open(os.__file__, "rb") as file: pages = mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ)
c = ctypes.CDLL(None, use_errno=True)
c.mmap.restype = ctypes.c_void_p
with open(os.__file__, "rb") as file: place = c.mmap(None, 4096, 1, 1, file.fileno(), 0)
print(c.mincore(ctypes.c_void_p(place), 4096, ctypes.create_string_buffer(1)) == 0)""",
    "drops the page cache": """
import os
os.posix_fadvise(os.open(os.__file__, os.O_RDONLY), 0, 0, os.POSIX_FADV_DONTNEED)
print(True)""",
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
    "sees a lock on a library file": """
import fcntl, os
handle = os.open(os.__file__, os.O_RDONLY)
fcntl.lockf(handle, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 5)
print(True)""",
}
SHARED = """
import ctypes, os, time
c = ctypes.CDLL(None, use_errno=True)
c.mmap.restype = ctypes.c_void_p
with open(os.__file__, "rb") as file: place = c.mmap(None, 4096, 1, 1, file.fileno(), 0)
number = {"x86_64": 202, "aarch64": 98}[os.uname().machine]
class Time(ctypes.Structure): _fields_ = [("s", ctypes.c_long), ("n", ctypes.c_long)]
word = ctypes.c_uint32.from_address(place).value
"""
WAITS = SHARED + """
c.syscall(number, ctypes.c_void_p(place), 0, word, ctypes.byref(Time(50, 0)), None, 0)"""
WAKES = SHARED + """
found = 0
while found == 0:  # nobody waits yet; less: it is refused
  found = c.syscall(number, ctypes.c_void_p(place), 1, 1, None, None, 0)
  time.sleep(0.1)
print(found > 0)"""
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

  def wait():
    with contextlib.suppress(RuntimeError):  # the sandbox is closed
      sandbox.run(WAITS)

  with hostile_driver.PythonSandbox(workers=2, timeout=60.0, without=sys.argv[1:]) as sandbox:
    found = {name: sandbox.run(text).output.strip() for name, text in PROGRAMS.items()}
    waiter = threading.Thread(target=wait)
    waiter.start()
    found["wakes a thread of another sandbox"] = sandbox.run(WAKES).output.strip()
    serves = sandbox.run(SERVES)
    missing = sandbox.isolation.missing
  waiter.join()
  print(json.dumps({"observes": sorted(name for name, text in found.items() if text == "True"),
                    "missing": missing, "serves": serves.output, "found": found}))


if __name__ == "__main__":
  main()
