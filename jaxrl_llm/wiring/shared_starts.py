"""Warm starts that runs share: one that an earlier run trained from the same inputs is copied.

An entry is a copy of `workdir/warm_start`, named by a hash of all that it was made of, and appears
complete or not at all. Training gives the same bytes, so a run does not depend on what was there.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import filelock
import jax

from jaxrl_llm.config import Config, to_dict
from jaxrl_llm.store import cache, checksums, disk
from jaxrl_llm.store.workdir import usable_cores, versions
from jaxrl_llm.tasks.mixture import names
from jaxrl_llm.wiring import inputs
from jaxrl_llm.wiring.learner import Learner

LIMIT_BYTES = 1 << 30
PACKAGE = Path(__file__).parents[1]
# What a warm start reads of a config, so that runs of different methods share it; of the optimizer
# all but its schedule.
SECTIONS = ("seed", "pretrained", "parameters", "task", "warm_start")
LENGTHS = ("max_prompt_tokens", "max_new_tokens")
SCHEDULE = ("learning_rate", "warmup_steps")
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "transformers", "tokenizers", "datasets",
            "pyarrow", "reasoning-gym", "qwix")
logger = logging.getLogger(__name__)


def entry_of(cfg: Config, learner: Learner) -> Path | None:
  """Returns the folder of the run's start, which need not exist.

  None where it is not shared: nothing is trained, several processes or plugins take part, problems
  come from a hub and may change, or there is no shared folder.
  """
  data = getattr(cfg.task, "data", None)
  paths = [cfg.task.prompt.examples, cfg.warm_start.path]
  paths += [] if data is None else [data.path, data.heldout_path]
  local = all(Path(path).exists() for text in paths for path in names(text))
  if not cfg.warm_start.steps or cfg.plugins or jax.process_count() > 1 or not local:
    return None
  folder = cache.folder(cache.STARTS)
  return None if folder is None else folder / _digest(cfg, learner)


def _digest(cfg: Config, learner: Learner) -> str:
  """Returns a hash of config, files, sources, versions and devices: all that decides the bits."""
  values, code = to_dict(cfg), hashlib.sha256()
  for file in sorted(PACKAGE.rglob("*.py")):
    code.update(f"{file.relative_to(PACKAGE)} ".encode() + file.read_bytes())
  made_of = {name: values[name] for name in SECTIONS} | {
      "optimizer": {key: value for key, value in values["optimizer"].items()
                    if key not in SCHEDULE},
      "lengths": [values["rollout"][key] for key in LENGTHS],
      "left out": values["evaluation"]["sets"],
      "model": dataclasses.asdict(learner.model.config),
      "mesh": dict(learner.mesh.shape),
      "files": inputs.notes(cfg),
      "sources": code.hexdigest(),
      "packages": versions(PACKAGES),
      "settings": {key: str(value) for key, value in jax.config.values.items()
                   if "cache" not in key},
      "flags": os.environ.get("XLA_FLAGS"),
      "machine": [os.uname().nodename, usable_cores(),
                  *(device.device_kind for device in jax.devices())],
  }
  return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:32]


@contextlib.contextmanager
def reserved(entry: Path | None) -> Iterator[None]:
  """Makes other runs of this machine that want the same start wait, and then copy it. Where the
  folder has no file locks, each run trains.
  """
  with contextlib.ExitStack() as stack:
    if entry is not None:
      with contextlib.suppress(OSError, NotImplementedError):
        stack.enter_context(filelock.FileLock(f"{entry}.lock"))
    yield


def fetch(entry: Path | None, path: Path) -> bool:
  """Copies a start to `path`, which appears complete or not at all; returns whether there was one.
  """
  temporary = path.with_name(f"{path.name}.copy")
  cache.remove(temporary)  # of a run that was killed while it copied
  if entry is None or not entry.is_dir():
    return False
  try:
    shutil.copytree(entry, temporary)
    if damage := checksums.damage(temporary):
      raise ValueError(damage)
  except (OSError, ValueError) as error:
    cache.remove(temporary)
    if disk.is_full(error):
      raise
    logger.warning("the shared warm start %s is damaged (%s), so it is trained again", entry,
                   str(error)[:200])
    cache.remove(entry)
    return False
  temporary.rename(path)
  with contextlib.suppress(OSError):  # another run may remove it
    (entry / checksums.NAME).touch()  # it was used now
  return True


def store(entry: Path | None, path: Path) -> None:
  """Copies the start at `path` into the shared folder, unless it is too large."""
  if entry is None or cache.size_and_time(path)[0] > LIMIT_BYTES:
    return
  temporary = Path(tempfile.mkdtemp(dir=entry.parent))
  try:
    shutil.copytree(path, temporary / entry.name)
    (temporary / entry.name).rename(entry)
  except OSError as error:
    logger.warning("the warm start is not shared with other runs: %s", error)
  cache.remove(temporary)
  cache.prune((folder for folder in entry.parent.iterdir() if folder.is_dir()), LIMIT_BYTES)
