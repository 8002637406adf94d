"""Rollout servers that are absent, refuse, lie, or answer nonsense."""

import contextlib
import json
import socket

from campaign import main
from machine_cases import free
from servers import Handler, case, changed


class Forgetful(Handler):
  """Loads weights and never says so."""

  def post(self):
    version = self.server.version
    super().post()
    self.server.version = version


class Nameless(Handler):
  """Knows no models, and says so with a status."""

  def get(self):
    self.answer((404, b"<html>not here</html>"))


class Numbered(Handler):
  """Says its version by a number, and its models by a text."""

  def get(self):
    self.answer(b'{"weight_version": 7, "data": "policy"}')


class Around(Handler):
  """Sends everybody to itself."""

  def get(self):
    self.send_response(302)
    self.send_header("Location", self.path)
    self.send_header("Content-Length", "0")
    self.end_headers()


@contextlib.contextmanager
def deaf(here):
  """A port at which somebody listens and never answers."""
  with socket.create_server(("127.0.0.1", 0)) as server:
    yield {"port": str(server.getsockname()[1])}


UNUSABLE = "answers for one row were unusable"
SHORT = {"server.patience": "0", "server.timeout": "1"}
AT_PORT = {"server.url": "http://127.0.0.1:{port}", "server.folder": "{here}/w", **SHORT}


def cut(body):
  def send(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"{")
    handler.close_connection = True

  return send


def gzip_lie(body):
  def send(handler):
    handler.send_response(200)
    handler.send_header("Content-Encoding", "gzip")
    handler.send_header("Content-Length", "4")
    handler.end_headers()
    handler.wfile.write(b"abcd")

  return send


CASES = {
    "nobody listens": main(AT_PORT, "server.url", "did not answer", context=free),
    "nobody answers": main(AT_PORT, "server.url", "did not answer", context=deaf),
    "address without a scheme": main(AT_PORT | {"server.url": "localhost:8000"},
                                     "server.url = 'localhost:8000'"),
    "no folder for weights": main({"server.url": "http://h:1"}, "server.folder"),
    "folder that is a file": main(
        AT_PORT | {"server.folder": "{here}/file"}, "file", files={"file": "x"}, context=free),
    "folder without a server": main({"server.folder": "{here}/w"}, "server.folder"),
    "endless patience": main(AT_PORT | {"server.patience": "1e300"}, "server.patience",
                             context=free),
    "server and devices for rollouts": main(AT_PORT | {"mesh.rollout": "1"}, "mesh.rollout"),
    "server and slots": main(AT_PORT | {"rollout.slots": "4"}, "rollout.slots"),
    "server and turns": main(AT_PORT | {"server.url": "http://h:1"}, "rollout.slots", kind="turns"),
    "key of two lines": case(changed(), "JAXRL_LLM_SERVER_KEY",
                             environment={"JAXRL_LLM_SERVER_KEY": "a\nb"}),
    "key that is no Latin text": case(changed(), "JAXRL_LLM_SERVER_KEY",
                                      environment={"JAXRL_LLM_SERVER_KEY": "schlüssel \u4e2d"}),
    "version that never changes": case(changed(), "weights", handler=Forgetful),
    "no such path": case(changed(), "404", handler=Nameless),
    "version of a number": case(changed(), "weights", handler=Numbered),
    "sends around": case(changed(), "TooManyRedirects", handler=Around, values=SHORT),
    "busy for ever": case(lambda body: (503, b"busy"), "did not answer", values=SHORT),
    "model that is not served": case(lambda body: (404, b'{"message": "no model"}'), "404"),
    "cut off": case(cut, "did not answer", values=SHORT),
    "packed in name only": case(gzip_lie, "did not answer", values=SHORT),
    "huge number": case(lambda body: json.dumps({"choices": 1}).encode() + b" " * 10**6, UNUSABLE,
                        "choices"),
}
