"""A bucket on loopback: the part of Cloud Storage's JSON API that tensorstore's gs:// driver uses.

Objects are in memory. Conditions on generations hold as there: ifGenerationMatch=0 creates only
what is absent, another number replaces only what was read. `python bucket_stub.py` serves until its
standard input ends, and prints its address.
"""

import http.server
import json
import os
import re
import sys
import threading
import urllib.parse
from typing import NamedTuple

PAGE = 5  # names that one listing has, fewer than any run's folder, so that pages are followed
VARIABLE = "TENSORSTORE_GCS_HTTP_URL"


class Stored(NamedTuple):
  """An object of a bucket; `generation` counts all writes of the server."""

  content: bytes
  generation: int


class Bucket(http.server.ThreadingHTTPServer):
  """A server of all buckets.

  Attributes:
    objects: by (bucket, name).
    writes: names in the order in which they were written.
    left: writes until those that follow are held, see `hold_after`.
    conditional: whether conditions on generations are honoured.
  """

  daemon_threads = True

  def __init__(self, conditional: bool = True):
    super().__init__(("127.0.0.1", 0), Requests)
    self.objects: dict[tuple[str, str], Stored] = {}
    self.writes: list[str] = []
    self.guard, self.generation, self.conditional = threading.Lock(), 0, conditional
    self.pattern: str | None = None
    self.left, self.over = 0, threading.Event()
    threading.Thread(target=self.serve_forever, daemon=True).start()

  def hold_after(self, pattern: str, count: int) -> None:
    """After `count` more writes of such a name no other one is done, until `let_go`, which drops
    those that wait: a client is killed there and not later, however slow the killer is.
    """
    with self.guard:
      self.pattern, self.left, self.over = pattern, count, threading.Event()

  def let_go(self) -> None:
    with self.guard:
      self.pattern = None
      self.over.set()

  @property
  def address(self) -> str:
    return f"http://127.0.0.1:{self.server_address[1]}"

  def handle_error(self, request, client_address) -> None:
    """Says nothing of a client that was killed."""
    if not isinstance(sys.exception(), ConnectionError):
      super().handle_error(request, client_address)

  def refuses(self, place: tuple[str, str], query: dict[str, str]) -> bool:
    """Whether the conditions of a request do not hold; an absent object has generation 0."""
    present = self.objects[place].generation if place in self.objects else 0
    match, no_match = query.get("ifGenerationMatch"), query.get("ifGenerationNotMatch")
    return self.conditional and (match not in (None, str(present)) or no_match == str(present))

  def write(self, place: tuple[str, str], content: bytes, query: dict[str, str]) -> Stored | None:
    """Stores an object; None if the conditions do not hold."""
    with self.guard:
      over = self.over
      if self.pattern is None or self.left > 0:
        if self.refuses(place, query):
          return None
        self.generation += 1
        self.objects[place] = Stored(content, self.generation)
        self.writes.append(place[1])
        self.left -= self.pattern is not None and bool(re.search(self.pattern, place[1]))
        return self.objects[place]
    over.wait()
    return None

  def delete(self, place: tuple[str, str], query: dict[str, str]) -> int:
    """Removes an object; returns the status."""
    with self.guard:
      if place not in self.objects:
        return 404
      if self.refuses(place, query):
        return 412
      del self.objects[place]
      return 204

  def names(self, bucket: str, query: dict[str, str]) -> tuple[list[str], str | None]:
    """(a page of names, where the next one begins)."""
    begin = max(query.get("startOffset", ""), query.get("pageToken", ""))
    end, prefix = query.get("endOffset"), query.get("prefix", "")
    with self.guard:
      names = sorted(name for place, name in self.objects if place == bucket
                     and name.startswith(prefix) and name >= begin and (not end or name < end))
    return names[:PAGE], names[PAGE] if len(names) > PAGE else None


class Requests(http.server.BaseHTTPRequestHandler):
  """Reads a request, and answers as the JSON API does."""

  protocol_version = "HTTP/1.1"
  disable_nagle_algorithm = True
  wbufsize = -1  # headers and content leave together
  server: Bucket

  def log_message(self, *arguments) -> None:
    pass

  def _parsed(self) -> tuple[tuple[str, str], dict[str, str]]:
    """((bucket, name), query) of a path such as /storage/v1/b/<bucket>/o/<name>?alt=media."""
    url = urllib.parse.urlsplit(self.path)
    parts = url.path.removeprefix("/upload").split("/", 6)
    name = urllib.parse.unquote(parts[6]) if len(parts) > 6 else ""
    return (parts[4], name), dict(urllib.parse.parse_qsl(url.query))

  def _answer(self, status: int, content: bytes = b"", **headers: str) -> None:
    self.send_response(status)
    for name, value in headers.items():
      self.send_header(name.replace("_", "-"), value)
    self.send_header("Content-Length", str(len(content)))
    self.end_headers()
    self.wfile.write(content)

  def do_POST(self) -> None:
    """Uploads an object."""
    (bucket, _), query = self._parsed()
    content = self.rfile.read(int(self.headers["Content-Length"]))
    stored = self.server.write((bucket, query["name"]), content, query)
    if stored is None:
      return self._answer(412)
    described = {"name": query["name"], "bucket": bucket, "generation": str(stored.generation),
                 "size": str(len(content))}
    self._answer(200, json.dumps(described).encode(), Content_Type="application/json")

  def do_DELETE(self) -> None:
    """Removes an object."""
    self._answer(self.server.delete(*self._parsed()))

  def do_GET(self) -> None:
    """Lists names, or reads an object or a range of its bytes."""
    (bucket, name), query = self._parsed()
    if not name:
      names, following = self.server.names(bucket, query)
      listing = {"items": [{"name": name} for name in names]}
      listing |= {"nextPageToken": following} if following else {}
      return self._answer(200, json.dumps(listing).encode(), Content_Type="application/json")
    with self.server.guard:
      stored, refused = self.server.objects.get((bucket, name)), self.server.refuses(
          (bucket, name), query)
    if stored is None:
      return self._answer(404)
    generation = str(stored.generation)
    if refused:
      return self._answer(304 if "ifGenerationNotMatch" in query else 412,
                          x_goog_generation=generation)
    begin, end = _bounds(self.headers.get("Range"), len(stored.content))
    if begin > 0 or end < len(stored.content):
      of = f"bytes {begin}-{end - 1}/{len(stored.content)}"
      return self._answer(206, stored.content[begin:end], x_goog_generation=generation,
                          Content_Range=of)
    self._answer(200, stored.content, x_goog_generation=generation)


def _bounds(header: str | None, size: int) -> tuple[int, int]:
  """(first byte, end) of a header such as `bytes=0-99`, `bytes=100-` or `bytes=-22`."""
  if not header:
    return 0, size
  first, _, last = header.removeprefix("bytes=").partition("-")
  if not first:
    return max(0, size - int(last)), size
  return int(first), min(size, int(last) + 1) if last else size


if __name__ == "__main__":
  print(Bucket().address, flush=True)
  sys.stdin.read()
  os._exit(0)
