"""Weights as a Hugging Face folder, named by their checksum, for a server to load."""

import dataclasses
import functools
import hashlib
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from jaxrl_llm.models import Model, hf, mtp
from jaxrl_llm.parallel import processes

KEPT = 2  # folders; a server may still read the one before
DIGITS = 16  # of a checksum in hexadecimal


class Weights(NamedTuple):
  """The folder and version of weights.

  Attributes:
    folder: of the checkpoint, absolute.
    version: checksum of its tensors.
  """

  folder: Path
  version: str


def publish(root: str | Path, model: Model, params, tokenizer, dtype: str | None) -> Weights:
  """Writes `root/<checksum>`, completely or not at all, and removes all but the newest folders.

  All processes must call this together, and the first one writes.

  Args:
    params: as the model reads them; the module that predicts two tokens ahead is left out.
    dtype: as in `hf.save_pretrained`.

  Raises:
    CheckpointError: as `hf.save_pretrained`.
    OSError: the folder cannot be written.
  """
  root = Path(root).resolve()
  draft = root / f"unfinished_{os.getpid()}"
  if processes.is_main():
    # Of runs that were killed; a server serves one run at a time.
    for stale in root.glob("unfinished_*"):
      shutil.rmtree(stale, ignore_errors=True)
    draft.mkdir(parents=True)
  trunk = dataclasses.replace(model, config=dataclasses.replace(model.config, mtp=False))
  hf.save_pretrained(draft, trunk, mtp.without(params), tokenizer=tokenizer, dtype=dtype)
  return processes.from_main("server weights", functools.partial(_named, root, draft))


def _named(root: Path, draft: Path) -> Weights:
  """Gives a complete folder its name, and removes all but the newest."""
  version = checksum(draft)
  target = root / version
  if target.exists():
    shutil.rmtree(draft)
    target.touch()  # the newest again
  else:
    draft.rename(target)
  for old in sorted(_published(root), key=lambda path: path.stat().st_mtime_ns)[:-KEPT]:
    shutil.rmtree(old)
  return Weights(target, version)


def checksum(folder: Path) -> str:
  """Returns the checksum of the tensors of a checkpoint: of its safetensors files, in order."""
  digest = hashlib.sha256()
  for path in sorted(folder.glob("*.safetensors")):
    with path.open("rb") as file:
      digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
  return digest.hexdigest()[:DIGITS]


def _published(root: Path) -> list[Path]:
  """Returns the folders that `publish` wrote; we must not remove others."""
  return [path for path in root.iterdir()
          if path.is_dir() and len(path.name) == DIGITS
          and set(path.name) <= set("0123456789abcdef")]
