"""Freed arrays go back to the system, and an environment that sets the allocator is obeyed."""

import os
import subprocess
import sys

import pytest

from experiments.commands import allocator

# Large arrays between small ones that stay: a heap could not shrink below the last of them.
PROGRAM = """
import os
import sys
import numpy as np
from experiments.commands import allocator

def resident():
  return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

if sys.argv[1] == "set":
  allocator.return_large_arrays()
before = resident()
np.ones(31 << 20, np.uint8)  # freed: raises glibc's threshold
pairs = [(np.ones(8 << 20, np.uint8), np.ones(1 << 16, np.uint8)) for _ in range(32)]
small = [pair[1] for pair in pairs]
del pairs
print(resident() - before)
"""


def kept_mebibytes(argument: str, **variables: str) -> float:
  environment = {k: v for k, v in os.environ.items() if k not in allocator.VARIABLES} | variables
  done = subprocess.run([sys.executable, "-c", PROGRAM, argument], capture_output=True, text=True,
                        check=True, env=environment)
  return float(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_freed_arrays_leave_the_process():
  if kept_mebibytes("unset") < 200:
    pytest.skip("this C library gives freed arrays back by itself")
  assert kept_mebibytes("set") < 20
  assert kept_mebibytes("set", MALLOC_MMAP_THRESHOLD_="100000000") > 200
