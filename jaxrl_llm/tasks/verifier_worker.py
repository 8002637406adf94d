"""A process that compares expressions with math-verify, one JSON line in, one JSON line out.

  in    {"gold": "1/2", "prediction": "0.5", "seconds": 10.0}
  out   {"correct": true}   or   {"error": "..."}

It has its own process because sympy can run for hours inside one C call, which only the kernel can
end. It is run by its path (`python -P verifier_worker.py`), so that neither this package nor JAX is
imported.
"""

import functools
import json
import logging
import os
import resource
import signal
import sys


def main() -> None:
  """Says {"ready": true} after importing math-verify, then answers until its input ends."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  limit = int(sys.argv[1])
  resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
  # What libraries print must not mix with the answers.
  answers = os.fdopen(os.dup(1), "w", buffering=1)
  os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
  logging.disable(logging.CRITICAL)
  import math_verify  # imported here, before "ready", because the caller times only questions

  answers.write('{"ready": true}\n')
  for line in sys.stdin:
    question = json.loads(line)
    # If the parent dies meanwhile, the kernel's alarm ends this process, whatever it computes.
    signal.setitimer(signal.ITIMER_REAL, 2 * question["seconds"] + 1)
    answers.write(json.dumps(answer(math_verify, question["gold"], question["prediction"])) + "\n")
    signal.setitimer(signal.ITIMER_REAL, 0)


def answer(math_verify, gold: str, prediction: str) -> dict:
  """Returns whether the two are equal, or the exception that the comparison raised."""
  try:
    expected, said = parsed(math_verify, gold), parsed(math_verify, prediction)
    equal = math_verify.verify(expected, said, timeout_seconds=None, raise_on_error=True)
    return {"correct": bool(equal)}
  except Exception as error:
    return {"error": f"{type(error).__name__}: {str(error)[:200]}"}


@functools.lru_cache(1024)  # the rows of a group share their gold, and parsing takes most time
def parsed(math_verify, text: str) -> list:
  """Returns what math-verify finds in a box with this content."""
  config = (math_verify.LatexExtractionConfig(boxed_match_priority=0),
            math_verify.ExprExtractionConfig())
  return math_verify.parse(f"\\boxed{{{text}}}", extraction_config=config, parsing_timeout=None,
                           raise_on_error=True)


if __name__ == "__main__":
  main()
