"""Records the contents of the files that a run reads: they may have changed when the run is resumed
or exported.

`inputs.json` in the run's folder has the SHA-256 of each file of problems, demonstrations and
examples, and of the checkpoint in `pretrained`. A run of an older version has no such file; it is
resumed, and its inputs are recorded from then on. Data sets that come from a hub by name have no
files here and are not compared.
"""

import json
import logging
from pathlib import Path

from jaxrl_llm.config import Config, ConfigError, EvaluationConfig, TaskConfig, WarmStartConfig
from jaxrl_llm.models.hf import extra_tensors, gguf, import_adapters, import_weights
from jaxrl_llm.models.hf.errors import CheckpointError
from jaxrl_llm.registry import Choice
from jaxrl_llm.store import contents
from jaxrl_llm.store.files import write_atomically
from jaxrl_llm.store.folders import address_of, path_of
from jaxrl_llm.tasks.mixture import names
from jaxrl_llm.tasks.readers import files_of

FILE = "inputs.json"
PRETRAINED = "pretrained"
# Files of a checkpoint that are read: weights, shapes, tokenizer, chat templates, sampling.
OF_CHECKPOINT = (
    "*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json",
    "adapter_config.json", "tokenizer*.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.*", "merges.txt", "*.model", "chat_template.*", "additional_chat_templates/*.jinja",
    *extra_tensors.FILES)
PLACES = ("path", "file", "examples")  # how keys of a plugin's numbers are called that hold a file
logger = logging.getLogger(__name__)

# SHA-256 by config key, then by file: as the config names it, or inside the folder that it names.
Digests = dict[str, dict[str, str]]


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
  if not earlier:
    return
  now = digests(cfg, only)
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


def record(workdir: str | Path, now: Digests) -> None:
  """Records the inputs of a run that starts, from `digests`; inputs recorded earlier stay as they
  are.
  """
  path = path_of(workdir) / FILE
  earlier = _read(path)
  if not earlier and now and (path_of(workdir) / "checkpoints").exists():
    logger.warning("%s was begun without notes of what its inputs hold: they are those of now",
                   workdir)
  if now.keys() - earlier.keys() or not path.exists():
    write_atomically(path, json.dumps({**now, **earlier}, indent=2) + "\n")


def digests(cfg: Config, only: str = "") -> Digests:
  """Returns the digests of all inputs that are files here; arguments as in `check`."""
  key_files = _asked_files(cfg.task, cfg.warm_start, cfg.evaluation)
  for section in ("task", "reward", "tool", "environment"):
    key_files |= _files_of_numbers(section, getattr(cfg, section))
  if cfg.pretrained:
    key_files[PRETRAINED] = _checkpoint_files(cfg.pretrained)
  for name, checkpoint in cfg.teacher.by_name.items():
    key = f"teacher.{PRETRAINED}" + (f".{name}" if name else "")
    key_files[key] = _checkpoint_files(checkpoint)
  places = {key: files for key, files in key_files.items() if not only or key == only}
  digest_by_file = contents.digests(file for files in places.values() for file in files.values())
  return {key: {address_of(name): digest_by_file[file] for name, file in files.items()}
          for key, files in places.items() if files}


def _read(path: Path) -> Digests:
  """Returns the digests of a run's folder; empty if there are none.

  Raises:
    ConfigError: the file is damaged.
  """
  if not path.exists():
    return {}
  try:
    content = json.loads(path.read_text())
    return {key: dict(files) for key, files in content.items()}
  except (OSError, ValueError, RecursionError, TypeError, AttributeError) as error:
    raise ConfigError(f"{path}: not readable: {error}. Fix: a copy of it, or remove it, and the "
                      "inputs count as they are now.") from error


def _changes(before: dict[str, str], now: dict[str, str]) -> list[str]:
  """Returns a text for each file that is another one, gone or new."""
  out = [f"{name} is gone" for name in before if name not in now]
  out += [f"{name} (SHA-256 {before[name][:12]} then, {now[name][:12]} now)"
          for name in before if name in now and now[name] != before[name]]
  return [*out, *(f"{name} is new" for name in now if name not in before)]


def _asked_files(task: TaskConfig, warm: WarmStartConfig,
                 evaluation: EvaluationConfig) -> dict[str, dict[str, Path]]:
  """Returns the files of problems, demonstrations and examples by key, then by their names in
  messages.
  """
  data_cfg = getattr(task, "data", None)
  paths = [("task.prompt.examples", task.prompt.examples, "train")]
  if data_cfg is not None:
    paths += [("task.data.path", data_cfg.path, data_cfg.split),
              ("task.data.heldout_path", data_cfg.heldout_path, data_cfg.heldout_split)]
  if warm.steps:
    paths.append(("warm_start.path", warm.path, warm.split))
  for name, section in evaluation.chosen:
    paths += [(f"evaluation.sets.{name}.path", section.path, section.split),
              (f"evaluation.sets.{name}.prompt.examples", section.prompt.examples, "train")]
  return {key: {name: file for path in names(value) for name, file in _paths_of(key, path, split)}
          for key, value, split in paths}


def _files_of_numbers(name: str, section: Choice) -> dict[str, dict[str, Path]]:
  """Returns the files that the numbers of a plugin's method name, by key."""
  return {f"{name}.{key}": {value: Path(value)} for key, value in section.given
          if isinstance(value, str) and key.endswith(PLACES) and Path(value).is_file()}


def _paths_of(key: str, path: str, split: str) -> list[tuple[str, Path]]:
  """Returns (name, file) of the files that a path names for a split."""
  return [(str(file), file) for file in files_of(key, path, split)]


def _checkpoint_files(pretrained: str) -> dict[str, Path]:
  """Returns the files of a checkpoint, and of its base where it is an adapter, by their names
  inside.

  None where it is not found, which whoever reads it says.
  """
  try:
    directory = import_weights.local_directory(pretrained)
    places = {"": directory}
    if import_adapters.is_adapter(directory):
      places["base/"] = import_weights.base_directory(pretrained)
  except (CheckpointError, OSError):
    return {}
  return {prefix + str(file.relative_to(place)): file.resolve() for prefix, place in places.items()
          for pattern in (["*.gguf"] if gguf.files(place) else OF_CHECKPOINT)
          for file in sorted(place.glob(pattern))
          if file.is_file() and not file.name.startswith(".")}
