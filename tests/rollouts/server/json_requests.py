"""What the tests' servers share: a request's JSON goes in, and JSON or bytes come back."""

import http.server
import json


class JsonRequests(http.server.BaseHTTPRequestHandler):
  """Asks the class's `server_answer(method, path, body)`, which returns (status, content).

  None in place of both closes the connection without an answer.
  """

  protocol_version = "HTTP/1.1"
  server_answer = None

  def do_GET(self):
    self._reply("GET")

  def do_POST(self):
    self._reply("POST")

  def _reply(self, method: str) -> None:
    size = int(self.headers.get("Content-Length") or 0)
    body = json.loads(self.rfile.read(size) or b"{}")
    answer = type(self).server_answer(method, self.path, body)
    if answer is None:
      self.close_connection = True
      return
    status, content = answer
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    self.send_response(status)
    self.send_header("Content-Length", str(len(data)))
    self.end_headers()
    self.wfile.write(data)

  def log_message(self, *_):
    pass


def serving(answer, port: int = 0) -> http.server.ThreadingHTTPServer:
  """Returns a server on loopback that answers so; the caller runs `serve_forever`."""
  handler = type("Handler", (JsonRequests,), {"server_answer": staticmethod(answer)})
  server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
  server.daemon_threads = True
  return server
