"""Requests that make each kind of server load weights, and that ask for their version.

A server holds a version, a text that we give it with the weights: their checksum. A server that was
started again has another one.
"""

from collections.abc import Callable
from typing import NamedTuple

from jaxrl_llm.rollouts.server.client import Client


class Api(NamedTuple):
  """Control of one kind of server.

  Attributes:
    version: returns what the server says of its weights; None if it says nothing.
    load: loads a Hugging Face folder under a version.
    prunes: whether its log-probs are of the pruned distribution.
  """

  version: Callable[[Client], str | None]
  load: Callable[[Client, str, str], None]
  prunes: bool


def _vllm_version(client: Client) -> str | None:
  return _text(client.ask("GET", "/weight_info"), "weight_version")


def _vllm_load(client: Client, folder: str, version: str) -> None:
  """Requests that are under way wait meanwhile; what the server cached of prompts is dropped."""
  client.ask("POST", "/pause?mode=wait")
  client.ask("POST", "/collective_rpc",
             {"method": "reload_weights", "kwargs": {"weights_path": folder}})
  client.ask("POST", "/update_weight_version", {"new_version": version})
  client.ask("POST", "/resume")


def _sglang_version(client: Client) -> str | None:
  return _text(client.ask("GET", "/model_info"), "weight_version")


def _sglang_load(client: Client, folder: str, version: str) -> None:
  client.ask("POST", "/update_weights_from_disk",
             {"model_path": folder, "weight_version": version, "flush_cache": True})


def _text(answer, name: str) -> str | None:
  text = answer.get(name) if isinstance(answer, dict) else None
  return text if isinstance(text, str) else None


APIS = {"vllm": Api(_vllm_version, _vllm_load, True),
        "sglang": Api(_sglang_version, _sglang_load, False)}


def served_name(client: Client) -> str:
  """Returns the name under which the server serves its model; empty if it does not say."""
  answer = client.ask("GET", "/v1/models")
  listed = answer.get("data") if isinstance(answer, dict) else None
  return _text(listed[0], "id") or "" if isinstance(listed, list) and listed else ""
