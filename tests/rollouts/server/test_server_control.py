"""A server whose control answers an error is refused at once, in one line, and is left running."""

import logging
import time
from pathlib import Path

import control_stub
import pytest

from jaxrl_llm.config import ServerConfig
from jaxrl_llm.rollouts.server import Limits, ServerError, ServerSampler, client, control
from jaxrl_llm.rollouts.server.client import Client
from jaxrl_llm.rollouts.server.weights import Weights

ONE, TWO = Weights(Path("/w/one"), "one"), Weights(Path("/w/two"), "two")
BUSY = (500, {"error": "Failed: CUDA out of memory"})
PATHS = {"vllm": ("/pause", "/collective_rpc", "/update_weight_version", "/resume", "/weight_info"),
         "sglang": ("/update_weights_from_disk", "/model_info")}
PATIENCE = 300.0  # seconds; no test waits for it


@pytest.fixture
def serve():
  """Starts stand-ins, which are stopped after the test."""
  started = []

  def start(**settings):
    started.append(control_stub.ControlStub(**settings))
    return started[-1]

  yield start
  for stub in started:
    stub.stop()


def sampler(stub, api: str) -> ServerSampler:
  cfg = ServerConfig(url=stub.url, folder="/w", patience=PATIENCE, api=api)
  return ServerSampler(cfg, None, None, Limits(8, 0, (2,), 17), 2, None)


def message(stub, api: str, target: Weights = ONE, backend: ServerSampler | None = None) -> str:
  """What the run is told; it must come at once, and leave the server going."""
  begin = time.monotonic()
  with pytest.raises(ServerError) as error:
    (backend or sampler(stub, api))._load(target)
  assert time.monotonic() - begin < PATIENCE / 10, "the run waited for a server that refused"
  assert "\n" not in str(error.value) and "Fix: " in str(error.value)
  return str(error.value)


@pytest.mark.parametrize("api, path", [(api, path) for api in PATHS for path in PATHS[api]],
                         ids=lambda text: text.strip("/"))
@pytest.mark.parametrize("status", [500, 409, 404])
def test_an_error_is_told_with_its_text(api, path, status, serve):
  stub = serve(broken={path: (status, BUSY[1])})
  text = message(stub, api)
  assert f"{path}" in text and f"status {status}" in text and "CUDA out of memory" in text
  assert path == "/resume" or not stub.paused


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_an_order_is_not_repeated(status, serve):
  stub = serve(broken={"/collective_rpc": (status, BUSY[1])})
  assert f"status {status}" in message(stub, "vllm")
  assert stub.asked.count("/collective_rpc") == 1 and not stub.paused


def test_waiting_for_a_server_that_refuses_is_rejected(serve, monkeypatch):
  """A wrong one: errors of control count as absence, as those of rows do."""
  stub = serve(broken={"/collective_rpc": BUSY})
  monkeypatch.setattr(Client, "order", lambda self, path, body=None: (
      self._decoded("POST", path, body, client.AWAY) or {}))
  backend = sampler(stub, "vllm")
  backend._client._patience = 0.0
  with pytest.raises(ServerError, match="did not answer"):
    backend._load(ONE)


@pytest.mark.parametrize("answer, text", [
    ({"success": False, "message": "no such folder: /w/one"}, "no such folder: /w/one"),
    ({"success": True}, "has weights 'default' after it was asked to load")])
def test_what_sglang_could_not_load_is_told(answer, text, serve):
  assert text in message(serve(broken={"/update_weights_from_disk": (200, answer)}), "sglang")


def order(stub) -> list[str]:
  return [path.partition("?")[0] for path in stub.asked if path.partition("?")[0] in (
      "/pause", "/collective_rpc", "/update_weight_version", "/resume")]


def test_a_server_goes_on_before_it_has_the_version(serve):
  stub = serve()
  sampler(stub, "vllm")._load(ONE)
  assert order(stub)[1:] == ["/pause", "/update_weight_version", "/collective_rpc", "/resume",
                         "/update_weight_version"]
  assert (stub.version, stub.folder, stub.paused) == ("one", "/w/one", False)


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, MemoryError])
def test_a_run_that_dies_while_it_loads_leaves_no_pause(end, serve, monkeypatch):
  stub, original = serve(), Client.order

  def dies(self, path, body=None):
    if path == "/collective_rpc":
      assert stub.paused
      raise end
    return original(self, path, body)

  monkeypatch.setattr(Client, "order", dies)
  with pytest.raises(end):
    sampler(stub, "vllm")._load(ONE)
  assert not stub.paused and stub.version == control.LOADING
  monkeypatch.undo()
  sampler(stub, "vllm")._load(Weights(ONE.folder, "default"))
  assert stub.folder == "/w/one", "weights that may be half there are loaded again"


def test_a_load_without_an_end_is_rejected(serve, monkeypatch):
  """A wrong one: the server goes on only where all went well."""
  def load(client, folder, version):
    client.order("/pause?mode=wait")
    client.order("/collective_rpc", {"kwargs": {"weights_path": folder}})
    client.order("/resume")

  stub = serve(broken={"/collective_rpc": BUSY})
  monkeypatch.setitem(control.APIS, "vllm", control.APIS["vllm"]._replace(load=load))
  message(stub, "vllm")
  assert stub.paused


def test_a_pause_of_a_killed_run_ends(serve, monkeypatch):
  stub = serve(paused=True, version="one")
  sampler(stub, "vllm")._load(ONE)  # has nothing to load
  assert not stub.paused
  monkeypatch.setattr(control, "greet", lambda *_: None)  # a wrong one
  stub.paused = True
  sampler(stub, "vllm")._load(ONE)
  assert stub.paused


@pytest.mark.parametrize("api, path, old, new", [
    ("vllm", "/version", ("0.9.2", "0.26.1"), ("0.27.0", "v0.30.0+cu128", "1.2")),
    ("sglang", "/server_info", ("0.4.10.post2",), ("0.5.1", "0.10", "1.0rc1"))])
def test_a_server_that_is_too_old_is_named(api, path, old, new, serve, caplog):
  for release in old:
    stub = serve(releases={path: release})
    text = message(stub, api)
    assert f"is {api} {release}" in text
    assert ".".join(map(str, control.APIS[api].oldest)) in text and stub.folder == "none"
  for release in new:
    stub = serve(releases={path: release})
    sampler(stub, api)._load(ONE)
    assert stub.folder == "/w/one" and "says that its release" not in caplog.text
  for releases in ({}, {path: "0.1.dev12+g002032e"}):
    caplog.clear()
    sampler(serve(releases=releases), api)._load(ONE)
    assert "says that its release" in caplog.text


@pytest.mark.parametrize("api", PATHS)
def test_a_server_that_loads_nothing_is_named_by_its_checksum(api, serve, caplog):
  stub = serve()
  backend = sampler(stub, api)
  backend._load(ONE)
  stub.keeps = True
  assert "is that of its earlier weights one" in message(stub, api, TWO, backend)
  stub.keeps, stub.version = False, "default"
  backend._load(ONE)  # started again
  stub.version, stub.folder = "default", "/w/one, damaged"
  stub.keeps = True
  assert "differs from the one under the same version" in message(stub, api, ONE, backend)


def test_believing_a_server_without_its_checksum(serve, monkeypatch):
  """A wrong one: it does not ask, and goes on with the weights of before. The test above rejects
  it; a server that computes none is believed, because there is no other way.
  """
  for stub in (serve(), serve(checks=False)):
    if stub.checks:
      monkeypatch.setattr(ServerSampler, "_check_checksum", lambda *_: None)
    backend = sampler(stub, "vllm")
    backend._load(ONE)
    stub.keeps = True
    backend._load(TWO)
    assert (stub.version, stub.folder) == ("two", "/w/one")
    monkeypatch.undo()


def test_a_question_waits_while_a_server_starts(serve, monkeypatch, caplog):
  monkeypatch.setattr(client, "PAUSE", (0.01, 0.01))
  stub = serve(broken={"/weight_info": (503, {"detail": "starting"})})
  note = Client._note_absence

  def started(self, error):
    note(self, error)
    stub.broken = {}

  monkeypatch.setattr(Client, "_note_absence", started)
  with caplog.at_level(logging.WARNING):
    sampler(stub, "vllm")._load(ONE)
  assert stub.version == "one" and "starting" in caplog.text
