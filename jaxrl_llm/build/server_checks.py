"""Refuses configs that a rollout server cannot serve."""

import urllib.parse

from jaxrl_llm.config import Config, ConfigError
from jaxrl_llm.parallel import processes
from jaxrl_llm.rollouts.server import APIS


def check(cfg: Config) -> None:
  """Checks a resolved config.

  Raises:
    ConfigError: no usable address or folder; several processes; numerics of a sampler that is not
      used; a pruned vocabulary whose log-probs the server does not return.
  """
  server = cfg.server
  if not server.url:
    return
  parts = urllib.parse.urlsplit(server.url)
  if parts.scheme not in ("http", "https") or not parts.hostname:
    raise ConfigError(f"server.url = {server.url!r}: allowed is http:// or https:// and a host. "
                      "Fix: an address such as http://host:8000.")
  if not server.folder:
    raise ConfigError("server.folder is empty: weights are handed over through a folder. Fix: one "
                      "that run and server see at the same path.")
  if processes.count() > 1:
    raise ConfigError(f"server.url = {server.url!r} with {processes.count()} processes: allowed "
                      "is 1. Fix: train in one process, or leave server.url empty.")
  for name in ("dtype", "cache_dtype"):
    value = getattr(cfg.rollout, name)
    if value != cfg.model.compute_dtype:
      raise ConfigError(
          f"rollout.{name} = {value!r}: it is read only with an empty server.url; the server has "
          f"numerics of its own. Fix: leave rollout.{name} out, or an empty server.url.")
  _check_rules(cfg)


def _check_rules(cfg: Config) -> None:
  """Checks that behavior log-probs are those of the distribution that was sampled from."""
  rules = cfg.vocabulary.rules if cfg.vocabulary.side in ("both", "sampler") else {}
  if rules and not APIS[cfg.server.api].prunes:
    able = ", ".join(name for name, api in APIS.items() if api.prunes)
    raise ConfigError(
        f"vocabulary.{next(iter(rules))} = {next(iter(rules.values()))} with server.api = "
        f"{cfg.server.api!r}: that server's log-probs are of all tokens, not of the kept ones. "
        f"Fix: server.api={able}, or no pruning in the sampler.")
