"""Calls of experiments/launch/tpu.py with the stub of gcloud, and what it wrote down."""

import json
import subprocess
from pathlib import Path

import launching


def call(path: str, folder: Path, *more: str, **variables: str) -> subprocess.CompletedProcess:
  """Runs tpu.py; the worker's home folder and the file of calls are in `folder`."""
  return launching.launch("tpu", "--name=a", "--zone=z", *more, path=path,
                          GCLOUD_STUB_CALLS=str(folder / "calls"),
                          GCLOUD_STUB_HOME=str(folder / "home"), **variables)


def calls(folder: Path) -> list[list[str]]:
  return [json.loads(line) for line in (folder / "calls").read_text().splitlines()]
