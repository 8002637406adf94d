"""Folders of runs that are no folders, are damaged, or belong to another run; checkpoints of
another shape.
"""

import contextlib
import json
import shutil
import subprocess
import sys

from campaign import SMALL, Case

AGAIN = (f"--config={SMALL}", "--workdir={here}/run", "--config.iterations=3")


def resumed(prepare, *texts: str, flags: tuple[str, ...] = (), **fields) -> Case:
  """Returns a case of a finished run that is to go on after its folder was changed."""
  return Case((*AGAIN, *flags), texts, needs=("run",),
              prepare=lambda here: prepare(here / "run"), **fields)


def new(*texts: str, workdir: str = "{here}/new", **fields) -> Case:
  return Case((f"--config={SMALL}", f"--workdir={workdir}"), texts, **fields)


def written(name: str, content: str | bytes):
  def change(run):
    (run / name).write_bytes(content if isinstance(content, bytes) else content.encode())

  return change


def configured(**changes):
  """Returns what changes keys of config.json; a section is written with a double underscore."""
  def change(run):
    config = json.loads((run / "config.json").read_text())
    for key, value in changes.items():
      *sections, name = key.split("__")
      place = config
      for section in sections:
        place = place[section]
      place[name] = value
    (run / "config.json").write_text(json.dumps(config))

  return change


def removed(*names):
  def change(run):
    for name in names:
      path = run / name
      shutil.rmtree(path) if path.is_dir() else path.unlink()

  return change


def replaced(name: str):
  """Returns what puts a folder where a file of a run is."""
  def change(run):
    (run / name).unlink(missing_ok=True)
    (run / name / "x").mkdir(parents=True)

  return change


def checkpoints(change):
  def every(run):
    for folder in sorted((run / "checkpoints").iterdir()):
      change(folder)

  return every


def emptied(folder):
  for path in folder.rglob("*"):
    if path.is_file():
      path.write_bytes(b"")


def flipped(folder):
  """One bit of the largest file."""
  path = max((path for path in folder.rglob("*") if path.is_file()),
             key=lambda path: path.stat().st_size)
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(bytes(content))


def without_checksums(folder):
  """Neither checksums nor arrays."""
  (folder / "checksums.sha256").unlink()
  shutil.rmtree(folder / "default")


# Checkpoints of width 16 under a config of width 32.
OTHER_SHAPES = configured(model__width=32)


@contextlib.contextmanager
def locked(here):
  """Another process trains in the folder."""
  (here / "new").mkdir()
  code = ("import fcntl, sys, time\nf = open(sys.argv[1], 'w')\nfcntl.flock(f, fcntl.LOCK_EX)\n"
          "print('held', flush=True)\nsys.stdin.read()\n")
  with subprocess.Popen([sys.executable, "-c", code, here / "new" / "lock"],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
    process.stdout.readline()
    yield {}
    process.stdin.close()


DEEP = "{" + '"a": {' * 50_000
CASES = {
    "no folder named": Case((f"--config={SMALL}",), ("--workdir",)),
    "file": new("new", files={"new": "x"}),
    "in a file": new("new", files={"new": "x"}, workdir="{here}/new/run"),
    "folder of the kernel": new("/proc", workdir="/proc/run"),
    "name of 300 letters": new("x" * 20, workdir="{here}/" + "x" * 300),
    "link to itself": new("new", prepare=lambda here: (here / "new").symlink_to("new")),
    "lock that is a folder": new("lock", files={"new/lock/x": "x"}),
    "held by another process": new("another", context=locked),
    "config that is a folder": new("config.json", files={"new/config.json/x": "x"}),
    "rollouts that are a file": new("rollouts", files={"new/rollouts": "x"}),
    "metrics that are a folder": new("metrics.jsonl", files={"new/metrics.jsonl/x": "x"}),
    "config that is cut": resumed(written("config.json", '{"seed": 0,'), "config.json"),
    "config without end": resumed(written("config.json", DEEP), "config.json"),
    "config of sections that are numbers": resumed(configured(rollout=3), "rollout"),
    "metrics of no JSON": resumed(written("metrics.jsonl", "{\n{\n{\n"), "metrics.jsonl"),
    "metrics without iterations": resumed(written("metrics.jsonl", "{}\n{}\n{}\n"),
                                          "metrics.jsonl"),
    "inputs of numbers": resumed(written("inputs.json", '{"pretrained": 3}'), "inputs.json"),
    "curves that are a folder": resumed(replaced("curves.png"), "curves.png"),
    "no checkpoints any more": resumed(removed("checkpoints"), "checkpoint"),
    "checkpoints of a wrong bit": resumed(checkpoints(flipped), "checkpoints"),
    "checkpoints without arrays": resumed(checkpoints(without_checksums), "checkpoints"),
    "checkpoints that are files": resumed(
        checkpoints(lambda folder: (shutil.rmtree(folder), folder.write_text("x"))),
        "no checkpoint"),
    "checkpoints of another width": resumed(OTHER_SHAPES, "model.width"),
    "checkpoints of another width, said so": resumed(
        OTHER_SHAPES, "checkpoints", flags=("--config.model.width=32",)),
    "checkpoints of another optimizer": resumed(
        configured(optimizer__name="sgd", optimizer__b1=None), "optimizer"),
    "checksums of nonsense": resumed(
        checkpoints(lambda folder: (folder / "checksums.sha256").write_text("x\ny z\n")),
        "checksums"),
    "warm start of nothing": resumed(lambda run: emptied(run / "warm_start"), "warm_start"),
    "environment of no JSON": resumed(replaced("environment.json"), "environment.json"),
}
