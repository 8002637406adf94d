"""Folders of runs that are no folders, are damaged, or belong to another run; checkpoints of
another shape.
"""

import json
import shutil

from campaign import SMALL, Case

AGAIN = (f"--config={SMALL}", "--workdir={here}/run", "--config.iterations=3")


def resumed(prepare, *texts: str, flags: tuple[str, ...] = (), **fields) -> Case:
  """Returns a case of a finished run that is to go on after its folder was changed."""
  return Case((*AGAIN, *flags), texts, needs=("run",),
              prepare=lambda here: prepare(here / "run"), **fields)


def new(*texts: str, workdir: str = "{here}/new", **fields) -> Case:
  """Returns a case of a run that begins in this folder."""
  return Case((f"--config={SMALL}", f"--workdir={workdir}"), texts, **fields)


def written(name: str, content: str | bytes):
  """Returns what overwrites a file of a run."""
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


def checkpoints(change):
  """Returns what changes every checkpoint."""
  def every(run):
    for folder in sorted((run / "checkpoints").iterdir()):
      change(folder)

  return every


def emptied(folder):
  for path in folder.rglob("*"):
    if path.is_file():
      path.write_bytes(b"")


def without_checksums(folder):
  """Neither checksums nor arrays."""
  (folder / "checksums.sha256").unlink()
  shutil.rmtree(folder / "default")


def other_shapes(run):
  """Checkpoints of width 16 under a config of width 32."""
  configured(model__width=32)(run)


DEEP = "{" + '"a": {' * 50_000
CASES = {
    "no folder named": Case((f"--config={SMALL}",), ("--workdir",)),
    "folder of the kernel": new("/proc", workdir="/proc/run"),
    "lock that is a folder": new("lock", files={"new/lock/x": "x"}),
    "rollouts that are a file": new("rollouts", files={"new/rollouts": "x"}),
    "config without end": resumed(written("config.json", DEEP), "config.json"),
    "metrics without iterations": resumed(written("metrics.jsonl", "{}\n{}\n{}\n"),
                                          "metrics.jsonl"),
    "no checkpoints any more": resumed(removed("checkpoints"), "checkpoint"),
    "checkpoints without arrays": resumed(checkpoints(without_checksums), "checkpoints"),
    "checkpoints of another width, said so": resumed(
        other_shapes, "checkpoints", flags=("--config.model.width=32",)),
    "warm start of nothing": resumed(lambda run: emptied(run / "warm_start"), "warm_start"),
}
