"""What once ended in a traceback, or passed in silence: the kinds that began this campaign."""

import contextlib
import threading

import plugin_cases
import servers
from campaign import Case, main
from machine_cases import processes

MANY = {"iterations": "100000", "evaluation.every": "100000", "checkpoint.every": "100000"}


@contextlib.contextmanager
def mover(here):
  """Moves the folder of the run away once it has logged an iteration."""
  ended = threading.Event()

  def move():
    log = here / "new" / "metrics.jsonl"
    while not ended.wait(0.02):
      if log.exists() and log.read_bytes().count(b"\n") > 1:
        (here / "new").rename(here / "moved")
        return

  thread = threading.Thread(target=move)
  thread.start()
  yield {}
  ended.set()
  thread.join()


def tear(here):
  (path,) = (here / "run" / "rollouts").glob("*2.jsonl")
  path.write_bytes(path.read_bytes()[:-40])


TRACEBACKS = {
    "key with a dash": main({"rollout.group-size": "4"}, "rollout.group-size", "is no key"),
    "key with a slash": main({"evaluation.sets.a/b.path": "x"}, "a/b", "is no key"),
    "key without a name": main({"": "5"}, "is no key"),
    "key that ends in a dot": main({"rollout.": "5"}, "rollout.", "is no key"),
    "environment that raises": plugin_cases.steps("    raise ValueError('why')\n",
                                                  "ValueError: why"),
    "answer of 200,000 brackets": servers.case(
        lambda body: b"[" * 200_000, "answers for one row were unusable"),
    "file in place of checkpoints": main({}, "checkpoints",
                                         files={"new/checkpoints": "a file"}),
    "replay of a torn file": Case(("{here}/run",), ("iteration_00002.jsonl",), script="replay",
                                  needs=("run",), prepare=tear),
}
SILENT = {
    "shaping that returns nothing": plugin_cases.of("shaping", "  return None\n", "None"),
    "reward that always fails": plugin_cases.of("reward", "  return 1 / 0\n",
                                                "ZeroDivisionError"),
    "server that drips": servers.case(
        servers.drip, "server.url", values={"server.timeout": "1", "server.patience": "0"}),
    "no number of seconds": processes("--wait_for_processes=nan",
                                      texts=("wait_for_processes", "nan")),
    "folder that is moved away": main(MANY, "new", context=mover),
}
