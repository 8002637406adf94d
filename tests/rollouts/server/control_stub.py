"""A stand-in for the control paths of vLLM and SGLang, with the errors that a test names."""

import http.server
import json
import threading

RELEASES = {"/version": "0.27.1", "/server_info": "0.5.23"}
VERSIONS = ("/weight_info", "/model_info")


def serving(answer, port: int = 0) -> http.server.ThreadingHTTPServer:
  """Returns a server on loopback, whose `serve_forever` the caller runs.

  Args:
    answer: (path, JSON of the request) -> (status, JSON or bytes), or None, which closes the
      connection without an answer.
  """
  class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
      size = int(self.headers.get("Content-Length") or 0)
      reply = answer(self.path, json.loads(self.rfile.read(size) or b"{}"))
      if reply is None:
        self.close_connection = True
        return
      status, content = reply
      data = content if isinstance(content, bytes) else json.dumps(content).encode()
      self.send_response(status)
      self.send_header("Content-Length", str(len(data)))
      self.end_headers()
      self.wfile.write(data)

    def do_GET(self):
      self.do_POST()

    def log_message(self, *_):
      pass

  class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128  # of connections that are not accepted yet

  return Server(("127.0.0.1", port), Handler)


class ControlStub:
  """Holds a folder under a version, and may be paused; it never samples.

  Attributes:
    broken: path -> (status, object) that it answers there, in place of doing anything.
    releases: path -> release that it says there; a path that is absent is not known.
    keeps: whether it says that it has loaded, and holds what it had.
    checks: whether it computes checksums of what it holds.
    asked: paths of all requests, in order.
  """

  def __init__(self, port: int = 0, **settings):
    self.broken, self.releases, self.keeps, self.checks = {}, RELEASES, False, True
    self.paused, self.version, self.folder, self.asked = False, "default", "none", []
    vars(self).update(settings)
    self._http = serving(self.answer, port)
    self.port = self._http.server_address[1]
    self.url = f"http://127.0.0.1:{self.port}"
    threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

  def stop(self) -> None:
    self._http.shutdown()
    self._http.server_close()

  def answer(self, path: str, body: dict) -> tuple[int, dict | bytes] | None:
    self.asked.append(path)
    path = path.partition("?")[0]
    if path in self.broken:
      return self.broken[path]
    if path in VERSIONS:
      return 200, {"weight_version": self.version}
    if path in RELEASES:
      known = path in self.releases
      return (200, {"version": self.releases[path]}) if known else (404, {"detail": "Not Found"})
    if path in ("/pause", "/resume"):
      self.paused = path == "/pause"
      return 200, {"status": path[1:]}
    if path == "/collective_rpc":
      return self.load(body["kwargs"]["weights_path"])
    if path == "/update_weight_version":
      self.version = body["new_version"]
      return 200, {"success": True, "new_version": self.version}
    if path == "/update_weights_from_disk":
      self.version = body["weight_version"]
      return self.load(body["model_path"])
    if path == "/weight_checker" and self.checks:
      return 200, {"checksums": {"rank0/weight": self.folder}}
    if path == "/weights_checker" and self.checks:
      return 200, {"success": True, "ranks": [{"checksums": {"weight": self.folder}}]}
    return 404, {"detail": "Not Found"}

  def load(self, folder: str) -> tuple[int, dict]:
    self.folder = self.folder if self.keeps else folder
    return 200, {"success": True, "message": ""}
