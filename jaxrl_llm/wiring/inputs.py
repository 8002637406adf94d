"""Notes which files a run reads: they may have changed when the run is resumed or exported.

`inputs.json` in the run's folder has size and SHA-256 of each file of problems, demonstrations and
examples, of the plugins, and of the checkpoint in `pretrained`; a file's time never counts. A key
that an older version did not note is noted from then on. Data sets that come from a hub by name
have no files here and are not compared.
"""

import json
import sys
from pathlib import Path

from jaxrl_llm.config import Config, ConfigError
from jaxrl_llm.config.plugins import names as plugin_names
from jaxrl_llm.models import hf
from jaxrl_llm.store import checksums
from jaxrl_llm.store.files import write_atomically
from jaxrl_llm.store.folders import path_of
from jaxrl_llm.tasks.data import names

FILE = "inputs.json"
PRETRAINED = "pretrained"
PLACES = ("path", "file", "examples")  # how keys of a plugin's numbers are called that hold a file

# [bytes, SHA-256] by config key, then by file: as the config names it, or inside its folder.
Notes = dict[str, dict[str, list]]


def check(workdir: str | Path, cfg: Config, only: str = "") -> None:
  """Refuses a run whose inputs have changed since it started.

  Args:
    cfg: of the run, resolved.
    only: the config key that counts; empty: all of them.

  Raises:
    ConfigError: naming the key, its file, and what was there.
  """
  earlier = {key: files for key, files in _read(path_of(workdir) / FILE).items()
             if not only or key == only}
  now = notes(cfg, only) if earlier else {}
  for key, files in earlier.items():
    changes = _changes(files, now[key]) if key in now else []
    if key == PRETRAINED and cfg.parameters.train == "all":  # the weights are in the run's folder
      changes = [line for line in changes if not line.endswith(".safetensors is gone")]
    if changes:
      more = f", and {len(changes) - 1} more" if len(changes) > 1 else ""
      raise ConfigError(
          f"--workdir={workdir}: the contents of {key} have changed since the run began: "
          f"{changes[0]}{more}. Fix: restore them, use another --workdir, or, to continue with the "
          f"new contents, remove {path_of(workdir) / FILE}.")


def record(workdir: str | Path, now: Notes) -> None:
  """Writes the notes of a run that starts; what was noted earlier stays as it is."""
  path = path_of(workdir) / FILE
  earlier = _read(path)
  if now.keys() - earlier.keys() or not path.exists():
    write_atomically(path, json.dumps({**now, **earlier}, indent=2) + "\n")


def notes(cfg: Config, only: str = "") -> Notes:
  """Returns size and SHA-256 of all inputs that are files here; arguments as in `check`."""
  key_files = {key: files for key, files in _files(cfg).items() if files and only in ("", key)}
  every = list({file: None for files in key_files.values() for file in files.values()})
  values = dict(zip(every, checksums.digests(every), strict=True))
  return {key: {name: [file.stat().st_size, values[file]] for name, file in files.items()}
          for key, files in key_files.items()}


def _read(path: Path) -> Notes:
  """Returns the notes in a run's folder; empty if there are none.

  Raises:
    ConfigError: the file is damaged.
  """
  try:
    content = json.loads(path.read_text()) if path.exists() else {}
    # Older versions noted the SHA-256 alone.
    return {key: {name: [None, note] if isinstance(note, str) else list(note)
                  for name, note in files.items()} for key, files in content.items()}
  except (OSError, ValueError, RecursionError, TypeError, AttributeError) as error:
    raise ConfigError(f"{path}: not readable: {error}. Fix: a copy of it, or remove it, and the "
                      "inputs count as they are now.") from error


def _changes(before: dict[str, list], now: dict[str, list]) -> list[str]:
  """Returns a text for each file that is another one, gone or new."""
  out = [f"{name} is gone" for name in before if name not in now]
  for name in before.keys() & now.keys():
    (size, digest), (new_size, new_digest) = before[name], now[name]
    if digest != new_digest or size not in (None, new_size):
      sizes = "" if size in (None, new_size) else f", {size} bytes then, {new_size} now"
      out.append(f"{name} (SHA-256 {digest[:12]} then, {new_digest[:12]} now{sizes})")
  return [*out, *(f"{name} is new" for name in now if name not in before)]


def _files(cfg: Config) -> dict[str, dict[str, Path]]:
  """Returns the files that a run reads by config key, then by their names in messages."""
  task, warm, data = cfg.task, cfg.warm_start, getattr(cfg.task, "data", None)
  paths = [("task.prompt.examples", task.prompt.examples, "train")]
  if data is not None:
    paths += [("task.data.path", data.path, data.split),
              ("task.data.heldout_path", data.heldout_path, data.heldout_split)]
  if warm.steps:
    paths.append(("warm_start.path", warm.path, warm.split))
  for name, section in cfg.evaluation.chosen:
    paths += [(f"evaluation.sets.{name}.path", section.path, section.split),
              (f"evaluation.sets.{name}.prompt.examples", section.prompt.examples, "train")]
  files = {key: _data_files(key, value, split) for key, value, split in paths if value}
  for section in ("task", "reward", "tool", "environment"):  # numbers of a plugin's method
    files |= {f"{section}.{key}": {value: Path(value)} for key, value in getattr(cfg, section).given
              if isinstance(value, str) and key.endswith(PLACES) and Path(value).is_file()}
  plugins = {plugin: Path(plugin if plugin.endswith(".py") else sys.modules[plugin].__file__ or "")
             for plugin in plugin_names(cfg.plugins)
             if plugin.endswith(".py") or plugin in sys.modules}
  files["plugins"] = {plugin: file for plugin, file in plugins.items() if file.is_file()}
  if cfg.pretrained:
    files[PRETRAINED] = hf.checkpoint_files(cfg.pretrained)
  for name, checkpoint in cfg.teacher.by_name.items():
    key = f"teacher.{PRETRAINED}" + (f".{name}" if name else "")
    files[key] = hf.checkpoint_files(checkpoint)
  return files


def _data_files(key: str, value: str, split: str) -> dict[str, Path]:
  """Returns the files of rows that a key names, by their names in messages."""
  from jaxrl_llm.tasks.readers import files_of

  return {str(file): file for path in names(value) for file in files_of(key, path, split)}
