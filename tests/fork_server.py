"""Runs commands in forks of a process that has imported what they import.

`python fork_server.py <descriptor of a socket>`: forked.py starts it. A start of an interpreter
costs as much as half of a small run, nearly all of it for imports. Nothing is computed before the
fork: neither JAX's devices nor threads of Python exist.

Each request is a JSON object with `argv`, `cwd`, `environment`, and with it come the descriptors of
a socket for its replies, of its output and of its errors. The replies are lines of JSON: {"pid"}
at the start, {"status"} at the end, as subprocess counts it.
"""

import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading

# What the commands import, at their top or on their way.
MODULES = ("jaxrl_llm.runs.trainer", "experiments.commands.command_line", "experiments.report",
           "jaxrl_llm.presets",
           "ml_collections.config_flags", "matplotlib.backends.backend_agg", "tensorboard.summary",
           "multiprocessing.synchronize", "PIL.BmpImagePlugin", "PIL.GifImagePlugin",
           "PIL.JpegImagePlugin", "PIL.PpmImagePlugin")
REQUEST = 1 << 20  # bytes; the largest holds all variables of the environment
HANDLES = 1 << 16  # no command has more descriptors open


def prepare() -> None:
  """Imports; leaves nothing that a fork may not have."""
  # The folder of tests has parts of the same names, without what is imported here.
  sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
  for name in MODULES:
    importlib.import_module(name)
  from jax._src import xla_bridge

  assert not xla_bridge.backends_are_initialized(), "the devices belong to the commands"
  assert threading.active_count() == 1, threading.enumerate()
  gc.collect()
  gc.freeze()  # the children copy fewer pages


def serve(requests: socket.socket) -> dict:
  """Forks for each request; returns it in the child. The server ends when its client does."""
  selector = selectors.DefaultSelector()
  selector.register(requests, selectors.EVENT_READ)
  while True:
    for key, _ in selector.select():
      if key.fileobj is not requests:
        selector.unregister(key.fd)
        report(key.fd, *key.data)
        continue
      text, handles, _, _ = socket.recv_fds(requests, REQUEST, 3)
      if not text:
        os._exit(0)
      pid = os.fork()
      if pid == 0:
        forget(requests, selector)
        become(handles)
        return json.loads(text)
      reply = socket.socket(fileno=handles[0])
      send(reply, pid=pid)
      for handle in handles[1:]:
        os.close(handle)
      selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, reply))


def send(reply: socket.socket, **values) -> None:
  try:
    reply.sendall(json.dumps(values).encode() + b"\n")
  except OSError:
    pass  # nobody waits for it


def report(handle: int, pid: int, reply: socket.socket) -> None:
  """Sends how a process ended."""
  _, status = os.waitpid(pid, 0)
  os.close(handle)
  send(reply, status=os.waitstatus_to_exitcode(status))
  reply.close()


def forget(requests: socket.socket, selector: selectors.BaseSelector) -> None:
  """Closes the server's objects in a fork: garbage collection would close their numbers later,
  which the command has used again by then.
  """
  for key in list(selector.get_map().values()):
    if key.data is not None:
      key.data[1].close()
  selector.close()
  requests.close()


def become(handles: list[int]) -> None:
  """Makes the output a fork's own, and closes what belongs to the server."""
  os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
  os.dup2(handles[1], 1)
  os.dup2(handles[2], 2)
  os.closerange(3, HANDLES)
  signal.signal(signal.SIGINT, signal.default_int_handler)


def enter(argv: list[str], cwd: str, environment: dict[str, str]) -> None:
  """Takes on a command's folder, variables and arguments, as a start of an interpreter would."""
  import jax

  os.chdir(cwd)
  os.environ.clear()
  os.environ.update(environment)
  sys.argv = argv
  sys.path[0] = os.path.dirname(os.path.abspath(argv[0]))
  for name, value in jax.config.values.items():  # read from the environment at the import
    if (text := environment.get(name.upper())) is not None:
      jax.config.update(name, parsed(text, value))


def parsed(text: str, default: bool | int | float | str | None) -> bool | int | float | str:
  """A variable's value, of the type of the option's default."""
  if isinstance(default, bool):
    return text.lower() in ("1", "true", "yes", "on")
  return text if default is None else type(default)(text)


if __name__ == "__main__":
  prepare()
  request = serve(socket.socket(fileno=int(sys.argv[1])))
  enter(**request)
  runpy.run_path(sys.argv[0], run_name="__main__")
