"""A run's folder: what was run, with what, and the refusal to mix two runs."""

import json
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import jax

from jaxrl_llm import config as config_lib
from jaxrl_llm.config import Config, ConfigError
from jaxrl_llm.reporting.writers import write_atomically

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "transformers", "numpy",
            "ml-collections")


def claim(workdir: str | Path, cfg: Config) -> Path:
  """Make the folder and write config.json, or find the same config there; raises as `check` does.
  """
  check(workdir, cfg)
  workdir = Path(workdir)
  path = workdir / "config.json"
  if not path.exists():
    workdir.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(config_lib.to_dict(cfg), indent=2) + "\n")
  return workdir


def check(workdir: str | Path, cfg: Config) -> None:
  """The folder is new, or holds the same config.

  Raises:
    ConfigError: it holds another one; the differences are listed.
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
  """`key: in the workdir, now` for each leaf that differs."""
  out = []
  for key in sorted(theirs.keys() | mine.keys()):
    a, b = theirs.get(key, "absent"), mine.get(key, "absent")
    if isinstance(a, dict) and isinstance(b, dict):
      out += differences(a, b, f"{prefix}{key}.")
    elif a != b:
      out.append(f"{prefix}{key}: {a!r} in the workdir, {b!r} now")
  return out


def write_environment(workdir: Path) -> None:
  versions = {}
  for name in PACKAGES:
    try:
      versions[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
      versions[name] = None
  devices = [str(d.device_kind) for d in jax.devices()]
  content = {
      "python": platform.python_version(),
      "platform": platform.platform(),
      "cpus": os.cpu_count(),
      "packages": versions,
      "devices": devices,
      "backend": jax.default_backend(),
      "git_commit": _commit()
  }
  write_atomically(workdir / "environment.json", json.dumps(content, indent=2) + "\n")


def _commit() -> str | None:
  """Commit of the source tree, marked where it has changes; None outside a checkout."""
  git = lambda *args: subprocess.run([
      "git", "-C", str(Path(__file__).parent), *args
  ], capture_output=True, text=True, check=True, timeout=10).stdout.strip()
  try:
    return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain",
                                                         "--untracked-files=no") else "")
  except (OSError, subprocess.SubprocessError):
    return None
