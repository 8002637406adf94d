"""A run's folder: its config and environment, and the refusal to mix two runs."""

import json
import logging
import os
import platform
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import jax

from jaxrl_llm import config as config_lib
from jaxrl_llm.config import ConfigError, read_saved
from jaxrl_llm.store.files import write_atomically
from jaxrl_llm.store.folders import path_of

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "transformers", "numpy",
            "ml-collections")
# Keys that say how rows are divided for computing; a resumed run may have other values.
LAYOUT = ("mesh.", "updates.micro_batches:", "updates.token_budget:", "updates.shared_prompts:",
          "warm_start.micro_batches:", "rollout.slots:")
# Keys that say how long a run is, when it evaluates and saves, and which completions it keeps;
# no iteration reads them.
SCHEDULE = ("iterations:", "warnings:", "evaluation.every:", "checkpoint.every:", "rollouts.")
# Keys that say where a rollout server is and how patient a run is with it.
SERVER = ("server.url:", "server.folder:", "server.in_flight:", "server.timeout:",
          "server.patience:")
VECTORS = ("avx512f", "avx2", "avx")  # instructions of x86 processors, the widest first
logger = logging.getLogger(__name__)


def claim(workdir: str | Path, values: dict) -> Path:
  """Makes the folder and writes config.json, unless the same config exists; raises as `check`.

  Keys of `LAYOUT`, `SCHEDULE` and `SERVER` that changed are written; differences of `LAYOUT` are
  logged.
  """
  changes = check(workdir, values)
  workdir = path_of(workdir)
  path = workdir / "config.json"
  if changes or not path.exists():
    workdir.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(values, indent=2) + "\n")
  layout_changes = [line for line in changes if line.startswith(LAYOUT)]
  if layout_changes:
    logger.warning("the run resumes with its rows divided otherwise: %s. Numbers agree with those "
                   "of an undivided run to rounding, not to the bit", "; ".join(layout_changes))
  return workdir


def check(workdir: str | Path, values: dict) -> list[str]:
  """Refuses a folder that holds another config; returns the differences that do not matter.

  The plugins there are imported only if `values` names them, too.

  Args:
    values: a resolved config, as `to_dict` gives it.

  Raises:
    ConfigError: listing the differences.
  """
  path = path_of(workdir) / "config.json"
  if not path.exists():
    return []
  saved_config, mine = read_saved(path, "another --workdir, or remove this one"), _as_json(values)
  saved_plugins = {"plugins": saved_config.get("plugins") or []}
  differing = differences(saved_plugins, {"plugins": mine["plugins"]})
  differing = differing or differences(_as_json(
      config_lib.to_dict(config_lib.from_saved(saved_config))), mine)
  same_server = mine["server"]["url"] == "" or _server_url(saved_config) == ""
  may_change = LAYOUT + SCHEDULE + (() if same_server else SERVER)
  refusals = [line for line in differing if not line.startswith(may_change)]
  if refusals:
    raise ConfigError(f"--workdir={workdir} holds another config:\n  " + "\n  ".join(refusals)
                      + "\nFix: another --workdir, or the config that it was begun with.")
  return differing


def _server_url(saved: dict) -> str:
  """Returns the server's address in a saved config, which an older one does not have."""
  return saved.get("server", {}).get("url", "")


def _as_json(values: dict) -> dict:
  """Returns a config as it is read back from a file: lists in place of tuples."""
  return json.loads(json.dumps(values))


def differences(saved_config: dict, mine: dict, prefix: str = "") -> list[str]:
  """Returns a line for each leaf that differs: key, value of `saved_config`, and of `mine` (now).
  """
  out = []
  for key in sorted(saved_config.keys() | mine.keys()):
    a, b = saved_config.get(key, "absent"), mine.get(key, "absent")
    if isinstance(a, dict) and isinstance(b, dict):
      out += differences(a, b, f"{prefix}{key}.")
    elif a != b:
      out.append(f"{prefix}{key}: {a!r} in the workdir, {b!r} now")
  return out


def write_environment(workdir: Path) -> None:
  """Writes environment.json: versions, processor, devices and the git commit.

  Logs a change of devices.
  """
  devices = [str(d.device_kind) for d in jax.devices()]
  path = workdir / "environment.json"
  old_devices = _devices(path)
  if old_devices not in (None, devices):
    logger.warning("the run resumes on other devices: %d x %s, before %d x %s. Numbers agree to "
                   "rounding, not to the bit", len(devices), devices[0], len(old_devices),
                   (old_devices or ["none"])[0])
  content = {
      "python": platform.python_version(),
      "platform": platform.platform(),
      "cpus": os.cpu_count(),
      "processor": _processor(),
      "packages": versions(PACKAGES),
      "devices": devices,
      "backend": jax.default_backend(),
      "git_commit": _commit(),
  }
  write_atomically(path, json.dumps(content, indent=2) + "\n")


def _devices(path: Path) -> list[str] | None:
  """Returns the devices of an earlier environment.json; None where there is none that can be read.
  """
  try:
    return list(json.loads(path.read_text())["devices"])
  except (OSError, ValueError, KeyError, TypeError):
    return None


def versions(packages: Sequence[str]) -> dict[str, str | None]:
  """Returns the version of each package; None where it is not installed."""
  by_package: dict[str, str | None] = {}
  for name in packages:
    try:
      by_package[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
      by_package[name] = None
  return by_package


def _processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
  """Returns the model and widest vector instructions of the CPU: programs, and their rounding,
  differ by them.
  """
  try:
    pairs = [line.partition(":") for line in cpuinfo.read_text().splitlines()]
  except OSError:  # not Linux
    return platform.processor() or platform.machine()
  fields = {key.strip(): value.strip() for key, _, value in pairs}
  widest = [name for name in VECTORS if name in fields.get("flags", "").split()][:1]
  return ", ".join([fields.get("model name") or platform.machine(), *widest])


def _commit() -> str | None:
  """Returns the commit of the source tree, marked "+changes" if a Python file differs; None outside
  a checkout.
  """
  try:
    commit = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain", "--untracked-files=no", "--", ":(top)*.py")
    return commit + "+changes" if changes else commit
  except (OSError, subprocess.SubprocessError):
    return None


def _git(*arguments: str) -> str:
  """Returns the output of a git command in the source tree."""
  command = ["git", "-C", str(Path(__file__).parent), *arguments]
  process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
  return process.stdout.strip()
