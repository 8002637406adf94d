"""Rollout servers that are absent, refuse, lie, or answer nonsense."""

import contextlib
import socket

from campaign import main
from servers import Handler, case, changed


class Refusing(Handler):
  """Wants a key."""

  def post(self):
    self.answer((401, b'{"error": "no key"}'))


@contextlib.contextmanager
def closed(here):
  """A port at which nobody listens."""
  with socket.socket() as place:
    place.bind(("127.0.0.1", 0))
    port = place.getsockname()[1]
  yield {"port": str(port)}


SHORT = {"server.patience": "0", "server.timeout": "1"}
AT_PORT = {"server.url": "http://127.0.0.1:{port}", "server.folder": "{here}/w", **SHORT}


def gzip_lie(body):
  def send(handler):
    handler.send_response(200)
    handler.send_header("Content-Encoding", "gzip")
    handler.send_header("Content-Length", "4")
    handler.end_headers()
    handler.wfile.write(b"abcd")

  return send


CASES = {
    "nobody listens": main(AT_PORT, "server.url", "did not answer", context=closed),
    "address with a user": main(AT_PORT | {"server.url": "http://a:b@:80"}, "server.url"),
    "folder without a server": main({"server.folder": "{here}/w"}, "server.folder"),
    "server and slots": main(AT_PORT | {"rollout.slots": "4"}, "rollout.slots"),
    "key that is no Latin text": case(changed(), "JAXRL_LLM_SERVER_KEY",
                                      environment={"JAXRL_LLM_SERVER_KEY": "schlüssel \u4e2d"}),
    "wants a key": case(changed(), "401", handler=Refusing),
    "busy for ever": case(lambda body: (503, b"busy"), "did not answer", values=SHORT),
    "packed in name only": case(gzip_lie, "did not answer", values=SHORT),
}
