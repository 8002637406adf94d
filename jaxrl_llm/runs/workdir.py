"""A run's folder: its config and environment, and the refusal to mix two runs."""

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import jax

from jaxrl_llm import config as config_lib
from jaxrl_llm.config import Config, ConfigError
from jaxrl_llm.reporting.writers import write_atomically

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "transformers", "numpy",
            "ml-collections")


def claim(workdir: str | Path, cfg: Config) -> Path:
  """Makes the folder and writes config.json, unless the same config is there; raises as `check`."""
  check(workdir, cfg)
  workdir = Path(workdir)
  path = workdir / "config.json"
  if not path.exists():
    workdir.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(config_lib.to_dict(cfg), indent=2) + "\n")
  return workdir


def check(workdir: str | Path, cfg: Config) -> None:
  """Refuses a folder that holds another config.

  Raises:
    ConfigError: listing the differences.
  """
  path = Path(workdir) / "config.json"
  if not path.exists():
    return
  try:
    theirs = json.loads(path.read_text())
  except ValueError as error:
    raise ConfigError(f"{path}: {error}. Fix: another --workdir, or remove this one.") from error
  found = differences(_as_json(config_lib.from_saved(theirs)), _as_json(cfg))
  if found:
    raise ConfigError(f"--workdir={workdir} holds another config:\n  " + "\n  ".join(found)
                      + "\nFix: another --workdir, or the config that it was begun with.")


def _as_json(cfg: Config) -> dict:
  """The config as it is read back from a file: lists in place of tuples."""
  return json.loads(json.dumps(config_lib.to_dict(cfg)))


def differences(theirs: dict, mine: dict, prefix: str = "") -> list[str]:
  """A line for each leaf that differs: its key, `theirs` (in the workdir) and `mine` (now)."""
  out = []
  for key in sorted(theirs.keys() | mine.keys()):
    a, b = theirs.get(key, "absent"), mine.get(key, "absent")
    if isinstance(a, dict) and isinstance(b, dict):
      out += differences(a, b, f"{prefix}{key}.")
    elif a != b:
      out.append(f"{prefix}{key}: {a!r} in the workdir, {b!r} now")
  return out


def write_environment(workdir: Path) -> None:
  """Writes environment.json: versions, devices and the git commit."""
  devices = [str(d.device_kind) for d in jax.devices()]
  content = {
      "python": platform.python_version(),
      "platform": platform.platform(),
      "cpus": os.cpu_count(),
      "packages": versions(PACKAGES),
      "devices": devices,
      "backend": jax.default_backend(),
      "git_commit": _commit(),
  }
  write_atomically(workdir / "environment.json", json.dumps(content, indent=2) + "\n")


def versions(packages: Sequence[str]) -> dict[str, str | None]:
  """The version of each package; None where it is not installed."""
  found: dict[str, str | None] = {}
  for name in packages:
    try:
      found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
      found[name] = None
  return found


def _commit() -> str | None:
  """Commit of the source tree, marked "+changes" if files differ from it; None outside a checkout.
  """
  try:
    commit = _git("rev-parse", "HEAD")
    return commit + "+changes" if _git("status", "--porcelain", "--untracked-files=no") else commit
  except (OSError, subprocess.SubprocessError):
    return None


def _git(*arguments: str) -> str:
  """The output of a git command in the source tree."""
  command = ["git", "-C", str(Path(__file__).parent), *arguments]
  done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
  return done.stdout.strip()
