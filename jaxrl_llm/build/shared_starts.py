"""Warm starts that runs share: one that another run trained from the same inputs is copied.

An entry is a folder named by `key`, with the files of `workdir/warm_start` and a list of their
hashes. It appears complete or not at all; one that does not fit its list is removed. Training gives
the same bytes, so a run does not depend on what was there.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import jax
from tqdm import tqdm

from jaxrl_llm import config as config_lib
from jaxrl_llm.build import inputs as run_inputs
from jaxrl_llm.build.learner import Learner
from jaxrl_llm.config import Config
from jaxrl_llm.store import cache, disk
from jaxrl_llm.store.workdir import usable_cores, versions

LIMIT_BYTES = 1 << 30
MANIFEST, FILES = "files.json", "files"
UNFINISHED, LOCK = ".new-", ".lock-"
# Sections that a warm start does not read, so that runs of different methods share it.
UNREAD = ("iterations", "reward", "dynamic_sampling", "shaping", "estimator", "advantage",
          "aggregation", "correction", "kl", "teacher", "entropy", "critic", "term", "vocabulary",
          "transform", "updates", "evaluation", "checkpoint")
# As UNREAD, in the section of rollouts: how completions are sampled, not what a row holds.
UNREAD_ROLLOUT = ("prompts", "group_size", "temperature", "slots", "chunk", "dtype", "cache_dtype",
                  "quantization", "logit_noise", "meter_rows")
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "ml-dtypes",
            "transformers", "tokenizers", "safetensors", "datasets", "pyarrow", "reasoning-gym",
            "qwix")
JAX_SETTINGS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl",
                "jax_threefry_partitionable")
# Variables that change no number, or only through devices and settings, which `machine` has.
UNREAD_VARIABLES = ("JAX_PLATFORMS", "JAX_PLATFORM_NAME", "JAX_LOG", "JAX_TRACEBACK", "JAX_DUMP",
                    "JAX_EXPLAIN", "JAX_INCLUDE_FULL", "JAX_PERSISTENT", "XLA_PYTHON_CLIENT")
PACKAGE = Path(config_lib.__file__).parents[1]
logger = logging.getLogger(__name__)


def fetch(name: str | None, path: Path) -> bool:
  """Copies a start to `path`, which appears complete or not at all.

  Args:
    name: of the entry, see `key`.

  Returns:
    Whether there was one.
  """
  temporary = path.with_name(f"{path.name}.copy")
  cache.remove(temporary)  # of a run that was killed while it copied
  folder = None if name is None else cache.folder(cache.STARTS)
  if folder is None or not (folder / name / MANIFEST).is_file():
    return False
  try:
    listed = json.loads((folder / name / MANIFEST).read_text())
    shutil.copytree(folder / name / FILES, temporary)
    if hashes(temporary) != listed:
      raise ValueError("its files are not those of its list")
  except (OSError, ValueError) as error:
    cache.remove(temporary)
    if disk.is_full(error):
      raise  # the entry is complete, and the run cannot continue
    logger.warning("the shared warm start %s is torn (%s), so it is trained again", folder / name,
                   str(error)[:200])
    cache.remove(folder / name)
    return False
  temporary.rename(path)
  with contextlib.suppress(OSError):  # another run may remove it
    (folder / name / MANIFEST).touch()  # it was used now
  return True


@contextlib.contextmanager
def reserved(name: str | None) -> Iterator[None]:
  """Makes other runs of this machine that want the same start wait, and then copy it.

  A process that ends in any way releases it. Without file locks in the folder, each run trains.

  Args:
    name: as in `fetch`.
  """
  folder = None if name is None else cache.folder(cache.STARTS)
  with contextlib.ExitStack() as stack:
    if folder is not None:
      lock = folder / f"{LOCK}{name}"
      with contextlib.suppress(OSError):
        file = stack.enter_context(open(lock, "w"))
        stack.callback(lock.unlink, missing_ok=True)
        try:
          fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
          tqdm.write("another run trains the same warm start: waiting for it")
          fcntl.flock(file, fcntl.LOCK_EX)
    yield


def store(name: str | None, path: Path) -> None:
  """Copies the start at `path` into the shared folder, unless it exists already or is too large.

  Args:
    name: as in `fetch`.
  """
  folder = None if name is None else cache.folder(cache.STARTS)
  if folder is None or cache.size_and_time(path)[0] > LIMIT_BYTES:
    return
  temporary = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=folder))
  try:
    shutil.copytree(path, temporary / FILES)
    (temporary / MANIFEST).write_text(json.dumps(hashes(temporary / FILES)))
    if not (folder / name / MANIFEST).is_file():
      cache.remove(folder / name)  # left by a process that was killed while it removed one
    try:
      temporary.rename(folder / name)
    except OSError:
      pass  # another run was first; its start has the same bytes
    _prune(folder)
  except OSError as error:
    logger.warning("the warm start is not shared with other runs: %s", error)
  finally:
    cache.remove(temporary)


def _prune(folder: Path) -> None:
  """Keeps `LIMIT_BYTES`, and removes what processes killed an hour ago left unfinished."""
  entries = []
  for path in list(folder.iterdir()):
    if path.name.startswith(LOCK):
      continue  # empty, and perhaps held
    if not path.name.startswith(UNFINISHED):
      entries.append(path)
    elif 0.0 < cache.size_and_time(path)[1] < time.time() - 3600:
      cache.remove(path)
  cache.prune(entries, LIMIT_BYTES)


def hashes(folder: Path) -> dict[str, str]:
  """Returns the SHA-256 of each file in a folder, by its path there."""
  return {str(path.relative_to(folder)): _digest(path)
          for path in sorted(folder.rglob("*")) if path.is_file()}


def _digest(path: Path) -> str:
  with path.open("rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


def key(cfg: Config, learner: Learner) -> str | None:
  """Returns the name of a warm start: a hash of all that it is made of.

  None if it cannot be shared: there is no shared folder, nothing is trained, or the problems come
  from a hub and may change.
  """
  if not cfg.warm_start.steps or jax.process_count() > 1:
    return None
  try:
    if cache.root() is None:
      return None
    made_of = inputs(cfg, learner)
  except (OSError, RuntimeError) as error:
    logger.info("the warm start is not shared: %s", error)
    return None
  if made_of is None:
    return None
  return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:32]


def inputs(cfg: Config, learner: Learner) -> dict | None:
  """Returns what a warm start is made of, as JSON; None if a part of it has no known version."""
  values = config_lib.to_dict(cfg)
  for name in UNREAD:
    values.pop(name)
  values["model"] = dataclasses.asdict(learner.model.config)
  values["mesh"] = dict(learner.mesh.shape)
  del values["plugins"]  # their content counts
  del values["task"]["shuffle_rewards"]  # there are none
  for name in UNREAD_ROLLOUT:
    del values["rollout"][name]
  for name in ("learning_rate", "warmup_steps"):  # the warm start has its own schedule
    del values["optimizer"][name]
  data_values = values["task"].get("data", {})
  data_values.pop("teacher_column", None)
  paths = (data_values.get("path", ""), data_values.get("heldout_path", ""),
           cfg.task.prompt.examples, cfg.warm_start.path)
  paths = [path.strip() for entry in paths for path in entry.split(",") if path.strip()]
  if not all(Path(path).exists() for path in paths):
    return None
  files = {key: digests for key, digests in run_inputs.digests(cfg).items()
           if not key.startswith(("evaluation.", "teacher."))}
  if cfg.pretrained and run_inputs.PRETRAINED not in files:
    return None
  sources = {str(path.relative_to(PACKAGE)): _digest(path) for path in PACKAGE.rglob("*.py")}
  return {
      "config": values,
      "files": files,
      "sources": sources,
      "plugins": [_digest(path) for path in plugin_files(cfg.plugins)],
      "machine": machine(),
  }


def plugin_files(plugins: tuple[str, ...]) -> list[Path]:
  """Returns the files of loaded plugins, and of the modules in their folders that are loaded."""
  folders, files = set(), set()
  for plugin in (name.strip() for entry in plugins for name in entry.split(",") if name.strip()):
    path = Path(plugin if plugin.endswith(".py") else sys.modules[plugin].__file__ or "").resolve()
    if path.is_file():
      files.add(path)
      folders.add(path.parent)
  for module in list(sys.modules.values()):
    file = Path(getattr(module, "__file__", None) or "/")
    if file.suffix == ".py" and "site-packages" not in file.parts and folders & {*file.parents}:
      files.add(file)
  return sorted(files)


def machine() -> dict:
  """Returns versions, devices and settings on which the bits of a result depend."""
  environment = {name: value for name, value in os.environ.items()
                 if name.startswith(("JAX_", "XLA_", "NVIDIA_TF32")) and "CACHE" not in name
                 and not name.startswith(UNREAD_VARIABLES)}
  processor = []
  if Path("/proc/cpuinfo").exists():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processor = sorted({line for line in lines if line.startswith(("model name", "flags"))})
  return {
      "python": sys.version, "packages": versions(PACKAGES), "environment": environment,
      "settings": [str(getattr(jax.config, name)) for name in JAX_SETTINGS],
      "devices": [str(device.device_kind) for device in jax.devices()],
      "processor": processor, "threads": usable_cores(),
  }
