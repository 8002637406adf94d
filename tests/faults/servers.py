"""A rollout server that holds weights as vLLM does and spoils its answers."""

import contextlib
import http.server
import json
import threading
import time
from collections.abc import Callable

from campaign import Case, main


class Handler(http.server.BaseHTTPRequestHandler):
  """Answers of a server; `spoil` of it makes the bytes of a completion."""

  protocol_version = "HTTP/1.1"

  def log_message(self, *arguments):
    pass

  def do_GET(self):
    self.get()

  def do_POST(self):
    self.post()

  def get(self):
    if self.path == "/v1/models":
      self.answer(json.dumps({"data": [{"id": "policy"}]}).encode())
    else:
      self.answer(json.dumps({"weight_version": self.server.version}).encode())

  def post(self):
    body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
    if self.path.startswith("/v1/completions"):
      self.answer(self.server.spoil(body))
    else:
      self.server.version = body.get("new_version", self.server.version)
      self.answer(b"{}")

  def answer(self, content):
    """Sends a content, (status, content), or calls what takes the handler."""
    with contextlib.suppress(OSError):
      if callable(content):
        content(self)
        return
      status, content = content if isinstance(content, tuple) else (200, content)
      self.send_response(status)
      self.send_header("Content-Length", str(len(content)))
      self.end_headers()
      self.wfile.write(content)


def drip(body):
  """An answer whose bytes come one by one, without end."""
  def send(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    while True:
      handler.wfile.write(b" ")
      time.sleep(0.1)

  return send


def right(body) -> dict:
  """An answer of one token, the end, as it should be."""
  stop = body["stop_token_ids"][0]
  return {"token_ids": [stop], "prompt_token_ids": body["prompt"], "finish_reason": "stop",
          "logprobs": {"token_logprobs": [-0.5]}}


def changed(**fields) -> Callable:
  """Spoils fields of the right answer; a function gets the right value."""
  def spoil(body):
    choice = right(body)
    for name, value in fields.items():
      choice[name] = value(choice[name]) if callable(value) else value
    return json.dumps({"choices": [choice]}).encode()

  return spoil


@contextlib.contextmanager
def serving(spoil: Callable, handler=Handler):
  """Yields the port of a server."""
  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
  server.daemon_threads, server.block_on_close = True, False
  server.version, server.spoil = "none", spoil
  threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
  yield {"port": str(server.server_address[1])}
  server.shutdown()
  server.server_close()


def case(spoil: Callable, *texts: str, values: dict[str, str] | None = None,
         handler=Handler, **fields) -> Case:
  """Returns a case of a run whose completions come from a server that spoils them."""
  keys = {"server.url": "http://127.0.0.1:{port}", "server.folder": "{here}/weights",
          "server.patience": "1", "server.timeout": "5"} | (values or {})
  return main(keys, "server.url", *texts, context=lambda here: serving(spoil, handler), **fields)
