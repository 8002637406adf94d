"""Requests that make each kind of server load weights, and that ask for their version.

A server holds a version, a text that we give it with the weights: their checksum. A server that was
started again has another one. Newer ones also compute a checksum of what they hold.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
from collections.abc import Callable
from typing import NamedTuple

from jaxrl_llm.config import ConfigError, ServerConfig, VocabularyConfig
from jaxrl_llm.registry import VOCABULARY
from jaxrl_llm.rollouts.server import ServerError
from jaxrl_llm.rollouts.server.client import KEY, AwayError, Client

LOADING = "being loaded"  # the version of weights of which a part may be new
logger = logging.getLogger(__name__)


class Api(NamedTuple):
  """Control of one kind of server.

  Attributes:
    oldest: (major, minor) of the first release that has all of it.
    release, weights: paths of the server's release and of the version of its weights.
    checker: path of its checksums of the weights that it holds.
    load: loads a Hugging Face folder under a version.
    prunes: whether its log-probs are of the pruned distribution.
    stated: returns what the server says of its own sampling; empty if it says nothing.
  """

  oldest: tuple[int, int]
  release: str
  weights: str
  checker: str
  load: Callable[[Client, str, str], None]
  prunes: bool
  stated: Callable[[Client], dict]

  def version(self, client: Client) -> str | None:
    """Returns what the server says of its weights; None if it says nothing."""
    return _text(client.inquire(self.weights), "weight_version")

  def checksum(self, client: Client) -> str | None:
    """Returns one checksum of those of all tensors; None where the server computes none."""
    with contextlib.suppress(ServerError):  # no such path
      answer = client.order(self.checker, {"action": "checksum"})
      if checksums := answer.get("checksums") or answer.get("ranks"):
        return hashlib.sha256(json.dumps(checksums, sort_keys=True).encode()).hexdigest()
    return None


def _vllm_load(client: Client, folder: str, version: str) -> None:
  """Requests under way wait meanwhile; what the server cached of prompts is dropped.

  It goes on whatever happens, and has the version only once it is neither paused nor half loaded.
  """
  try:
    client.order("/pause?mode=wait")
    client.order("/update_weight_version", {"new_version": LOADING})
    client.order("/collective_rpc",
                 {"method": "reload_weights", "kwargs": {"weights_path": folder}})
  except BaseException:
    with contextlib.suppress(AwayError, ServerError):  # the first error is the one to tell
      client.order("/resume")
    raise
  client.order("/resume")
  client.order("/update_weight_version", {"new_version": version})


def _sglang_load(client: Client, folder: str, version: str) -> None:
  client.order("/update_weights_from_disk",
               {"model_path": folder, "weight_version": version, "flush_cache": True})


def greet(client: Client, name: str) -> None:
  """Refuses a server, of `server.api`, that is too old; ends a pause in which a killed run left it.

  Raises:
    ServerError: naming both releases.
  """
  api, release = APIS[name], None
  with contextlib.suppress(ServerError):  # no such path
    release = _text(client.inquire(api.release), "version")
  number, oldest = re.match(r"v?(\d+)\.(\d+)", release or ""), ".".join(map(str, api.oldest))
  if number is None or "dev" in str(release):
    logger.warning("server.url = %r says that its release is %r; the run needs %s %s or newer",
                   client.url, release, name, oldest)
  elif tuple(map(int, number.groups())) < api.oldest:
    raise ServerError(f"server.url = {client.url!r} is {name} {release}: its control paths are "
                      f"complete from {oldest} on. Fix: a newer {name}, or server.url='', so that "
                      "this process samples.")
  if name == "vllm":
    client.order("/resume")  # changes nothing where there is no pause


def _vllm_stated(client: Client) -> dict:
  answer = client.inquire("/server_info?config_format=json")
  model = _entry(_entry(answer, "vllm_config"), "model_config")
  mode = {"logprobs_mode": model["logprobs_mode"]} if "logprobs_mode" in model else {}
  return mode | _entry(model, "override_generation_config")


def _sglang_stated(client: Client) -> dict:
  return _entry(client.inquire("/model_info"), "preferred_sampling_params")


def _entry(answer, name: str) -> dict:
  """Returns an object in an answer, which may be written as the text of one; else an empty one."""
  value = answer.get(name) if isinstance(answer, dict) else None
  with contextlib.suppress(ValueError, RecursionError):
    value = json.loads(value) if isinstance(value, str) else value
  return value if isinstance(value, dict) else {}


def differing(stated: dict, body: dict) -> list[str]:
  """Returns what a server's own sampling changes of a request, in words.

  Args:
    stated: as `Api.stated` returns it.
    body: the request, whose numbers go before the server's.
  """
  plain = (body["temperature"], body["top_p"], body["top_k"], body["min_p"]) == (1, 1, -1, 0)
  same = {"logprobs_mode": "raw_logprobs" if plain else "processed_logprobs"}
  return [f"{key} = {value}" for key, value in stated.items()
          if key not in (*body, "max_new_tokens") and value not in (
              None, same.get(key), "processed_logprobs")]


def _text(answer, name: str) -> str | None:
  text = answer.get(name) if isinstance(answer, dict) else None
  return text if isinstance(text, str) else None


APIS = {
    "vllm": Api((0, 27), "/version", "/weight_info", "/weight_checker", _vllm_load, True,
                _vllm_stated),
    "sglang": Api((0, 5), "/server_info", "/model_info", "/weights_checker", _sglang_load, False,
                  _sglang_stated),
}


def served_name(client: Client) -> str:
  """Returns the name under which the server serves its model; empty if it does not say."""
  answer = client.inquire("/v1/models")
  models = answer.get("data") if isinstance(answer, dict) else None
  return _text(models[0], "id") or "" if isinstance(models, list) and models else ""


def check(server: ServerConfig, vocabulary: VocabularyConfig) -> None:
  """Checks what a run asks of its server.

  Raises:
    ConfigError: a key that no header can hold, or a pruned vocabulary whose log-probs the server
      does not return.
  """
  key = os.environ.get(KEY, "")
  if not (key.isascii() and key.isprintable() and key == key.strip()):
    raise ConfigError(
        f"{KEY}, for server.url = {server.url!r}, holds something else than a line of ASCII, which "
        "a header of HTTP cannot say. Fix: the server's API key, or unset the variable.")
  _check_rules(server, vocabulary)


def _check_rules(server: ServerConfig, vocabulary: VocabularyConfig) -> None:
  """Checks that behavior log-probs are from the distribution that was sampled from."""
  rules = vocabulary.rules_of("sampler")
  for name in rules:
    if VOCABULARY[name].of_plugin:
      raise ConfigError(f"vocabulary.{name} = {rules[name]} with server.url = {server.url!r}: a "
                        "server knows no rule of a plugin. Fix: server.url='', so that this "
                        "process samples.")
  if rules and not APIS[server.api].prunes:
    able = ", ".join(name for name, api in APIS.items() if api.prunes)
    raise ConfigError(
        f"vocabulary.{next(iter(rules))} = {next(iter(rules.values()))} with server.api = "
        f"{server.api!r}: that server's log-probs are of all tokens, not of the kept ones. "
        f"Fix: server.api={able}, or no pruning in the sampler.")
