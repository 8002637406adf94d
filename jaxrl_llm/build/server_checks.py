"""Refuses configs that a rollout server cannot serve."""

import os
import re
import urllib.parse

from jaxrl_llm.config import ConfigError, RolloutConfig, ServerConfig, VocabularyConfig
from jaxrl_llm.parallel import processes
from jaxrl_llm.rollouts.server import APIS
from jaxrl_llm.rollouts.server.client import KEY


def check(server: ServerConfig, rollout: RolloutConfig, vocabulary: VocabularyConfig,
          compute_dtype: str) -> None:
  """Checks sections of a resolved config.

  Args:
    compute_dtype: dtype of the model.

  Raises:
    ConfigError: no usable address or folder; several processes; numerics of a sampler that is not
      used; a pruned vocabulary whose log-probs the server does not return.
  """
  if not server.url:
    return
  if not _is_address(server.url):
    raise ConfigError(f"server.url = {server.url!r}: allowed is http:// or https://, a host, and a "
                      "port of 1 to 65535. Fix: an address such as http://host:8000.")
  if "://" in server.folder:
    raise ConfigError(f"server.folder = {server.folder!r}: weights are handed over by renaming a "
                      "folder, which a bucket has not. Fix: a folder that both sides see.")
  if not server.folder:
    raise ConfigError("server.folder is empty: weights are handed over through a folder. Fix: one "
                      "that run and server see at the same path.")
  key = os.environ.get(KEY, "")
  if not (key.isascii() and key.isprintable() and key == key.strip()):
    raise ConfigError(
        f"{KEY}, for server.url = {server.url!r}, holds something else than a line of ASCII, which "
        "a header of HTTP cannot say. Fix: the server's API key, or unset the variable.")
  if processes.count() > 1:
    raise ConfigError(f"server.url = {server.url!r} with {processes.count()} processes: allowed "
                      "is 1. Fix: train in one process, or leave server.url empty.")
  for name in ("dtype", "cache_dtype"):
    value = getattr(rollout, name)
    if value != compute_dtype:
      raise ConfigError(
          f"rollout.{name} = {value!r}: it is read only with an empty server.url; the server has "
          f"numerics of its own. Fix: leave rollout.{name} out, or an empty server.url.")
  _check_rules(server, vocabulary)


def _is_address(url: str) -> bool:
  """Returns whether a text is a valid HTTP address."""
  try:
    parts = urllib.parse.urlsplit(url)
    host, port = parts.hostname, parts.port
  except ValueError:  # an open bracket, a port out of range
    return False
  named = re.fullmatch(r"[A-Za-z0-9_.-]+|[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?", host or "")
  return parts.scheme in ("http", "https") and named is not None and port != 0


def _check_rules(server: ServerConfig, vocabulary: VocabularyConfig) -> None:
  """Checks that behavior log-probs are from the distribution that was sampled from."""
  rules = vocabulary.rules if vocabulary.side in ("both", "sampler") else {}
  if rules and not APIS[server.api].prunes:
    able = ", ".join(name for name, api in APIS.items() if api.prunes)
    raise ConfigError(
        f"vocabulary.{next(iter(rules))} = {next(iter(rules.values()))} with server.api = "
        f"{server.api!r}: that server's log-probs are of all tokens, not of the kept ones. "
        f"Fix: server.api={able}, or no pruning in the sampler.")
