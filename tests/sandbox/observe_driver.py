"""What programs in a sandbox can change of the host and of the process above them.

Prints JSON, for a sandbox without the kinds of isolation that the command line names.
"""

import json
import sys

PROGRAMS = {
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

  with hostile_driver.PythonSandbox(workers=1, timeout=60.0, without=sys.argv[1:]) as sandbox:
    found = {name: sandbox.run(text).output.strip() for name, text in PROGRAMS.items()}
    serves = sandbox.run(SERVES)
    missing = sandbox.isolation.missing
  print(json.dumps({"changes": sorted(name for name, text in found.items() if text == "True"),
                    "missing": missing, "serves": serves.output, "found": found}))


if __name__ == "__main__":
  main()
