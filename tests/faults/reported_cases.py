"""What once ended in a traceback, or passed in silence: the kinds that began this campaign."""

import contextlib
import socket
import threading

import servers
from campaign import SMALL, Case, main

REWARD = ("from jaxrl_llm import register\n@register.reward('mine')\n"
          "def mine(problem, completion, cfg):\n  return ")
SHAPING = ("from jaxrl_llm import register\n@register.shaping('mine')\n"
           "def mine(rewards, *arguments, **more):\n  return None\n")
ENVIRONMENT = """
from jaxrl_llm import register
@register.environment('mine')
class Mine:
  def __init__(self, *arguments):
    pass
  def turn_end(self, ids, seen=0):
    return 2 if len(ids) >= 2 else None
  def step(self, row_id, ids, last=False):
    raise ValueError('why')
  def close(self):
    pass
"""
MANY = {"iterations": "100000", "evaluation.every": "100000", "checkpoint.every": "100000"}


@contextlib.contextmanager
def stranger(here):
  """Sends a stray line to the port after the coordinator's, as soon as somebody listens there."""
  with socket.socket() as place:
    place.bind(("127.0.0.1", 0))
    port = place.getsockname()[1]
  ended = threading.Event()

  def call():
    while not ended.wait(0.1):
      with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port + 1), 1) as s:
        s.sendall(b"GET / HTTP/1.1\r\n\r\n")
        return

  thread = threading.Thread(target=call)
  thread.start()
  yield {"port": str(port)}
  ended.set()
  thread.join()


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
    "stray line at the roll call": Case(
        (f"--config={SMALL}", "--workdir={here}/new", "--coordinator=127.0.0.1:{port}",
         "--processes=2", "--process=0", "--wait_for_processes=2"), ("process 1",),
        context=stranger),
    "environment that raises": main(
        {"plugins": "{here}/mine.py", "environment.name": "mine"}, "mine.py", "ValueError: why",
        kind="turns", files={"mine.py": ENVIRONMENT}),
    "answer of 200,000 brackets": servers.case(
        lambda body: b"[" * 200_000, "answers for one row were unusable"),
    "file in place of checkpoints": main({}, "checkpoints",
                                         files={"new/checkpoints": "a file"}),
    "replay of a torn file": Case(("{here}/run",), ("iteration_00002.jsonl",), script="replay",
                                  needs=("run",), prepare=tear),
}
SILENT = {
    "shaping that returns nothing": main(
        {"plugins": "{here}/mine.py", "shaping.name": "mine"}, "mine.py", "None",
        files={"mine.py": SHAPING}),
    "reward that always fails": main(
        {"plugins": "{here}/mine.py", "reward.name": "mine"}, "mine.py", "ZeroDivisionError",
        files={"mine.py": REWARD + "1 / 0\n"}),
    "server that drips": servers.case(
        servers.drip, "server.url", values={"server.timeout": "1", "server.patience": "0"}),
    "no number of seconds": Case((f"--config={SMALL}", "--workdir={here}/new",
                                  "--wait_for_processes=nan"), ("wait_for_processes", "nan")),
    "folder that is moved away": main(MANY, "new", context=mover),
}
