"""A process that compares expressions with math-verify, one JSON line in, one JSON line out.

Run by path (`python -P verifier_worker.py`), so that nothing of this package, and no JAX, is
imported. It has its own
process because sympy can run for hours inside one C call: only the kernel can end that.

  {"gold": "1/2", "prediction": "0.5", "seconds": 10.0}   ->   {"correct": true}   or   {"error": "..."}
"""

import functools
import json
import logging
import os
import resource
import signal
import sys


def main() -> None:
  """Answers until its input ends; says {"ready": true} once math-verify is imported."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  limit = int(sys.argv[1])
  resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
  # What libraries print must not mix with the answers.
  answers = os.fdopen(os.dup(1), "w", buffering=1)
  os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
  logging.disable(logging.CRITICAL)
  import math_verify  # here: slow, and the caller times questions, not the start

  answers.write('{"ready": true}\n')
  for line in sys.stdin:
    question = json.loads(line)
    # Should the parent die meanwhile, the kernel ends this process by the alarm, whatever it
    # computes.
    signal.setitimer(signal.ITIMER_REAL, 2 * question["seconds"] + 1)
    answers.write(json.dumps(answer(math_verify, question["gold"], question["prediction"])) + "\n")
    signal.setitimer(signal.ITIMER_REAL, 0)


def answer(math_verify, gold: str, prediction: str) -> dict:
  """Whether the two are equal; an exception of the comparison leaves the question open."""
  try:
    return {
        "correct":
            bool(
                math_verify.verify(parsed(math_verify, gold), parsed(math_verify, prediction),
                                   timeout_seconds=None, raise_on_error=True))
    }
  except Exception as error:
    return {"error": f"{type(error).__name__}: {str(error)[:200]}"}


@functools.lru_cache(1024)  # the rows of a group share their gold; parsing is most of the time
def parsed(math_verify, text: str) -> list:
  """What math-verify finds in a box with this content."""
  config = (math_verify.LatexExtractionConfig(boxed_match_priority=0),
            math_verify.ExprExtractionConfig())
  return math_verify.parse(f"\\boxed{{{text}}}", extraction_config=config, parsing_timeout=None,
                           raise_on_error=True)


if __name__ == "__main__":
  main()
