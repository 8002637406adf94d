"""A process that runs programs one after the other, each in a fork of itself.

It is run by its path (`python -s -P -S sandbox_worker.py '{...}'`), so that neither this package
nor JAX is imported. There are two processes above a program. The supervisor enters the namespaces
and waits. Its child, the server, is process 1 of the new process namespace: it forks a child for
each program, ends all processes that the program leaves, and reports what the kernel says of it.

On SIGTERM the supervisor kills the server, and with it the kernel kills every process of the
namespace; the supervisor ends when the last of them is gone. The server ends when its input closes,
so that nothing outlives the trainer.

  request  8 bytes of length, then the program in UTF-8
  answer   one JSON line (wait, late, cpu, seconds, and the lengths head, tail, err), then as many
           bytes as the lengths say
"""

import gc
import importlib
import json
import os
import signal
import sys
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import linux
import sandbox_server

sys.path.pop(0)
# Imported once here, so that programs need not load them.
USUAL = ("collections", "datetime", "decimal", "fractions", "heapq", "itertools", "json", "math",
         "re", "statistics")


def main() -> None:
  """Runs the supervisor."""
  settings = json.loads(sys.argv[1])
  settings["folders"] = linux.library_folders(settings["folders"])
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
  requests, answers = os.dup(0), os.dup(1)
  null = os.open(os.devnull, os.O_RDWR)
  for number in (0, 1, 2):
    os.dup2(null, number)
  os.closerange(max(requests, answers, null) + 1, 1 << 20)
  try:
    for name in USUAL:
      importlib.import_module(name)
    isolation = namespaces(set(settings["without"]))
    server = os.fork()
  except BaseException:
    os.write(answers, json.dumps({"error": traceback.format_exc()}).encode() + b"\n")
    raise
  if server == 0:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    serve(requests, answers, isolation, settings)
  os.close(requests)
  os.close(answers)

  def kill_server(*_):
    os.kill(server, signal.SIGKILL)

  signal.signal(signal.SIGTERM, kill_server)
  signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
  os.waitpid(server, 0)


def namespaces(without: set[str]) -> set[str]:
  """Enters the namespaces that the system offers, and returns their names."""
  isolation = set()
  try:
    if not without & {"files", "devices"}:
      linux.enter_private_devices()
      isolation.add("devices")
  except linux.REFUSED:
    pass
  if os.geteuid() == 0 and linux.mapped(linux.NOBODY) and "user" not in without:
    isolation.add("user")
  if "user_namespace" not in without:
    try:
      linux.enter_user_namespace(with_nobody="user" in isolation)
      isolation.add("user_namespace")
    except linux.REFUSED:
      pass
  clone_flags = {
      "files": linux.CLONE_NEWNS,
      "network": linux.CLONE_NEWNET,
      "ipc": linux.CLONE_NEWIPC | linux.CLONE_NEWUTS,
      "processes": linux.CLONE_NEWPID,
  }
  for name, flags in clone_flags.items():
    try:
      if name not in without:
        linux.unshare(flags)
        isolation.add(name)
    except linux.REFUSED:
      pass
  return isolation


def serve(requests: int, answers: int, isolation: set[str], settings: dict) -> None:
  """Runs the server; never returns."""
  try:
    prepare(settings)
    directory, proc = sandbox_server.isolate(isolation, settings)
    ready = {"ready": True, "isolation": sorted(isolation), "directory": directory}
    os.write(answers, json.dumps(ready).encode() + b"\n")
    gc.collect()
    gc.freeze()  # so that a fork shares the pages of all objects that it does not change
    server = sandbox_server.Server(requests, answers, isolation, directory, proc, settings)
    server.run()
    if directory:
      linux.remove_tree(directory)  # a trainer that was killed cannot
  except BaseException:
    try:
      os.write(answers, json.dumps({"error": traceback.format_exc()}).encode() + b"\n")
    except OSError:
      pass
  finally:
    os._exit(0)


def prepare(settings: dict) -> None:
  """Runs the text `setup`: every program inherits its modules, and may use their memory too.

  This is after the namespaces, which a process with threads of a library could not enter, and
  before the folders of installed packages are gone.
  """
  if not settings["setup"]:
    return
  exec(compile(settings["setup"], "<setup>", "exec", dont_inherit=True), {})
  try:
    with open("/proc/self/statm") as file:
      pages = int(file.read().split()[0])
    settings["memory_mb"] += pages * os.sysconf("SC_PAGE_SIZE") >> 20
  except OSError:
    pass  # not Linux


if __name__ == "__main__":
  main()
