"""Tiny runs that end themselves by SIGKILL inside a write, as a config file for the real command.

With KILL={"folder": f, "call": n, "delay": s} in the environment, that is s seconds after the n-th
call that changes a file below workdir/f (in any thread: Orbax has its own); with {"after": s}, s
seconds after the config was read. Orbax writes arrays without Python, so that a delay reaches what
lies between two calls. Without KILL, CALLS=path has a line for each call: the name of its folder.
"""

import builtins
import io
import json
import os
import runpy
import signal
import threading
from pathlib import Path

FOLDERS = ("checkpoints", "rollouts")
FUNCTIONS = ("replace", "rename", "mkdir", "unlink", "remove")


def get_config(name: str = "tiny:ctpo"):
  """The config of a module beside this one, as `module:preset`."""
  module, preset = name.split(":")
  plan = json.loads(os.environ.get("KILL", "{}"))
  if "after" in plan:
    _kill_after(plan["after"])
  elif plan or "CALLS" in os.environ:
    _watch(plan)
  return runpy.run_path(str(Path(__file__).with_name(f"{module}.py")))["get_config"](preset)


def _kill_after(seconds: float) -> None:
  timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL))
  timer.daemon = True
  timer.start()


def _watch(plan: dict) -> None:
  counts, opened = dict.fromkeys(FOLDERS, 0), builtins.open

  def note(path) -> None:
    folder = _folder(path)
    if folder is None:
      return
    counts[folder] += 1
    if not plan:
      with opened(os.environ["CALLS"], "a") as file:
        file.write(folder + "\n")
    elif (folder, counts[folder]) == (plan["folder"], plan["call"]):
      if not plan["delay"]:
        os.kill(os.getpid(), signal.SIGKILL)
      _kill_after(plan["delay"])

  def counted(function):
    def call(path, *arguments, **options):
      note(path)
      return function(path, *arguments, **options)
    return call

  def counted_open(path, mode="r", *arguments, **options):
    if set(mode) & set("wax+"):
      note(path)
    return opened(path, mode, *arguments, **options)

  for name in FUNCTIONS:
    setattr(os, name, counted(getattr(os, name)))
  builtins.open = io.open = counted_open


def _folder(path) -> str | None:
  """Which of the folders a path lies in."""
  if not isinstance(path, (str, os.PathLike)):
    return None
  parts = os.fspath(path).split("/")
  return next((folder for folder in FOLDERS if folder in parts), None)
