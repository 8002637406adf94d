"""Show the folder of compiled programs that runs share, or clear it.

  python experiments/cache.py
  python experiments/cache.py --clear

JAXRL_LLM_CACHE=<folder> names another folder, JAXRL_LLM_CACHE= (empty) turns it off. Clearing costs
the next runs time and changes no result.
"""

import argparse
import os
import shutil
import sys

from experiments.commands import cache


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--clear", action="store_true", help="remove all that is in it")
  arguments = parser.parse_args()
  try:
    root = cache.root()
  except RuntimeError as error:
    sys.exit(f"error: {cache.VARIABLE}={os.environ.get(cache.VARIABLE, '')}: {error}. Fix: "
             "another folder.")
  if root is not None and root.exists() and not root.is_dir():
    sys.exit(f"error: {cache.VARIABLE}={root}: no folder. Fix: another one, or {cache.VARIABLE}= "
             "(empty) for none.")
  if root is None:
    print(f"{cache.VARIABLE} is empty: runs share nothing.")
    return
  print(root)
  size = sum(stat.st_size for _, stat in cache.stats((root / cache.PROGRAMS).glob("*")))
  if arguments.clear:
    shutil.rmtree(root / cache.PROGRAMS, ignore_errors=True)
  done = "removed" if arguments.clear else f"of at most {cache.PROGRAM_BYTES >> 20}"
  print(f"  {cache.PROGRAMS}: {size / (1 << 20):.1f} MiB {done}")


if __name__ == "__main__":
  main()
