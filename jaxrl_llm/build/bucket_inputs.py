"""Inputs in a bucket: problems, demonstrations, checkpoints, and whatever file a config names."""

import re

from jaxrl_llm.config import Config, ConfigError, from_saved, to_dict
from jaxrl_llm.store import folders

ADDRESS = re.compile(r"gs://[^\s,]+")
FOREIGN = re.compile(r"(?:s3|az|abfs|hdfs)://[^\s,]+")
# Sections whose addresses are not of inputs: a server's folder is one that both see, and plugins
# are imported from files.
UNREAD = ("server", "plugins")


def copied(cfg: Config) -> Config:
  """Returns a config whose addresses in buckets are paths of local copies (folders.local_copy).

  Raises:
    ConfigError: the address holds nothing, or is of another service; naming the key.
  """
  values = to_dict(cfg)
  local = {key: _copied(entry, key) for key, entry in values.items() if key not in UNREAD}
  if folders.is_bucket(cfg.server.folder):
    raise ConfigError(f"server.folder = {cfg.server.folder!r}: weights are handed over by renaming "
                      "a folder, which a bucket has not. Fix: a folder that both sides see.")
  return cfg if local == {key: values[key] for key in local} else from_saved(values | local)


def _copied(entry, key: str):
  """Returns a part of a config, with local paths in place of addresses."""
  if isinstance(entry, dict):
    return {name: _copied(inner, f"{key}.{name}") for name, inner in entry.items()}
  if isinstance(entry, (list, tuple)):
    return type(entry)(_copied(inner, key) for inner in entry)
  if not isinstance(entry, str) or "://" not in entry:
    return entry
  return local_text(entry, f"{key} = ")


def local_text(text: str, key: str) -> str:
  """Returns a text, such as a path or several with commas between, with paths of local copies in
  place of addresses.

  Args:
    key: for messages, with " = " or "=".

  Raises:
    ConfigError: as `copied`.
  """
  if foreign := FOREIGN.search(text):
    raise ConfigError(folders.refusal(key, foreign[0]))
  try:
    return ADDRESS.sub(lambda match: str(folders.local_copy(match[0])), text)
  except OSError as error:
    raise ConfigError(f"{key}{text}: {error}. Fix: the address, or access to the bucket "
                      "(gcloud auth application-default login).") from error
