"""The C library's allocator: large arrays go back to the system when they are freed."""

import ctypes
import os

M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
LARGE = 1 << 20  # bytes
VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def return_large_arrays() -> None:
  """Makes each array of LARGE bytes or more a mapping, which `free` gives back to the system.

  Without it glibc puts freed weights, activations and old policies into a heap that small objects
  keep from shrinking: its threshold for mappings rises to 32 MiB with the first array that is
  freed. Does nothing with another C library, or if the environment sets the allocator.
  """
  if any(name in os.environ for name in VARIABLES):
    return
  try:
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE)
  except (OSError, AttributeError):  # no glibc
    pass
