"""HTTP to one rollout server: time limits, and patience with a server that is away."""

import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from jaxrl_llm.rollouts.server import ServerError

KEY = "JAXRL_LLM_SERVER_KEY"  # environment variable with the server's API key
AWAY = (409, 425, 429, 500, 502, 503, 504)  # the same request for a row may succeed later
STARTING = (429, 502, 503, 504)  # a question may be answered later
PAUSE = 0.5, 10.0  # seconds between two attempts: at first, at most
EACH = 10.0  # seconds between two lines about a server that is away
CONNECT = 10.0  # seconds
LARGEST = 64 << 20  # bytes of an answer, unpacked; one of 32,000 tokens has 3 MB
PIECE = 1 << 16  # bytes read between two looks at the clock
Answer = TypeVar("Answer")
logger = logging.getLogger(__name__)


class AwayError(Exception):
  """The server did not answer this time."""


class Client:
  """Requests to a server, from any thread.

  Args:
    url: its address, such as http://host:8000.
    in_flight: concurrent connections.
    timeout: seconds in which the complete answer to a request must arrive.
    patience: seconds without any answer after which `with_retries` gives up.
  """

  def __init__(self, url: str, in_flight: int, timeout: float, patience: float):
    import requests  # late: a run without a server starts .2 s earlier
    from requests.adapters import HTTPAdapter

    self.url = url.rstrip("/")
    self._timeout, self._patience = timeout, patience
    self._session = requests.Session()
    self._session.trust_env = False  # a proxy for the web does not know the hosts of a cluster
    for scheme in ("http://", "https://"):
      self._session.mount(scheme, HTTPAdapter(pool_maxsize=in_flight))
    if key := os.environ.get(KEY):
      self._session.headers["Authorization"] = f"Bearer {key}"
    self._guard = threading.Lock()
    self._answered = time.monotonic()
    self._away, self._named = False, 0.0
    self.waited = 0.0  # seconds in which the server was away

  def ask(self, path: str, body: dict):
    """Returns the decoded JSON of the answer to a request for a row, or None where it is none.

    Raises:
      AwayError: no answer, or one that asks for patience.
      ServerError: the server refuses the request, which it would do again, or floods.
    """
    return self._decoded("POST", path, body, AWAY)

  def inquire(self, path: str):
    """As `ask`, of a question about the server. It is away only while it starts."""
    return self._decoded("GET", path, None, STARTING)

  def order(self, path: str, body: dict | None = None) -> dict:
    """As `ask`, of a request that changes the server, where waiting mends no error. Returns {} for
    an answer that is no object.
    """
    answer = self._decoded("POST", path, body, ())
    if isinstance(answer, dict) and answer.get("success") is False:
      raise self._refusal("POST", path, "success = false", json.dumps(answer).encode())
    return answer if isinstance(answer, dict) else {}

  def _decoded(self, method: str, path: str, body: dict | None, away: tuple[int, ...]):
    status, content = self._answer(method, path, body)
    if status in away:
      raise AwayError(f"status {status}: {_line(content)}")
    if not 200 <= status < 400:
      raise self._refusal(method, path, f"status {status}", content)
    try:
      return json.loads(content)
    except (ValueError, RecursionError):  # no JSON, or nested without end
      return None

  def _refusal(self, method: str, path: str, what: str, content: bytes) -> ServerError:
    return ServerError(f"server.url = {self.url!r}: {method} {path} was refused with {what}: "
                       f"{_line(content)}. The last checkpoint is complete. Fix: a server as "
                       "jaxrl_llm/rollouts/server/README.md starts it, and the right server.api.")

  def _answer(self, method: str, path: str, body: dict | None) -> tuple[int, bytes]:
    """Returns (status, content) of an answer that is complete in time.

    The time limits of `requests` are for each read, so that a server which sends a byte now and
    then would never be late. A thread reads; it is abandoned if it hangs in the answer's head.
    """
    end = time.monotonic() + CONNECT + self._timeout
    answers: queue.SimpleQueue = queue.SimpleQueue()

    def work() -> None:
      try:
        answers.put(self._read(method, path, body, end))
      except Exception as error:
        answers.put(error)

    threading.Thread(target=work, name="server_answer", daemon=True).start()
    try:
      answer = answers.get(timeout=max(0.0, end - time.monotonic()) + 1.0)
    except queue.Empty:
      raise AwayError(self._late()) from None
    if isinstance(answer, Exception):
      raise answer
    return answer

  def _late(self) -> str:
    return f"its answer was not complete after server.timeout = {self._timeout:g} s"

  def _read(self, method: str, path: str, body: dict | None, end: float) -> tuple[int, bytes]:
    from requests import RequestException

    content, size = [], 0
    try:
      with self._session.request(method, self.url + path, json=body, stream=True,
                                 timeout=(CONNECT, self._timeout)) as answer:
        for piece in answer.iter_content(PIECE):
          content.append(piece)
          size += len(piece)
          if size > LARGEST:
            raise ServerError(
                f"server.url = {self.url!r}: {method} {path}: the answer has more than "
                f"{LARGEST >> 20} MiB. The last checkpoint is complete. Fix: a server as "
                "jaxrl_llm/rollouts/server/README.md starts it.")
          if time.monotonic() > end:
            raise AwayError(self._late())
        return answer.status_code, b"".join(content)
    except RequestException as error:
      raise AwayError(f"{type(error).__name__}: {error}") from error

  def with_retries(self, call: Callable[[], Answer], stop: threading.Event | None = None) -> Answer:
    """Calls until the server answers. The run pauses meanwhile, and says so every EACH seconds.

    Args:
      call: one or several of `ask`.
      stop: ends the waiting.

    Raises:
      AwayError: `stop` was set.
      ServerError: no thread got an answer for `patience` seconds, or `call` raised it.
    """
    begin, pause = time.monotonic(), PAUSE[0]
    while True:
      try:
        value = call()
      except AwayError as error:
        silent = time.monotonic() - max(begin, self._answered)
        if silent > self._patience:
          raise ServerError(
              f"server.url = {self.url!r} did not answer for {silent:.0f} s ({error}). The last "
              "checkpoint is complete. Fix: start the server and give the same command again, or a "
              "larger server.patience.") from error
        self._note_absence(error)
        if stop is not None and stop.wait(pause):
          raise
        if stop is None:
          time.sleep(pause)
        pause = min(2 * pause, PAUSE[1])
        continue
      self._note_answer()
      return value

  def _note_absence(self, error: AwayError) -> None:
    now = time.monotonic()
    with self._guard:
      due = not self._away or now - self._named >= EACH
      self._away, self._named = True, now if due else self._named
    if due:
      logger.warning("server.url = %r does not answer (%s); the run waits for it, %.0f s so far, "
                     "up to server.patience = %.0f s", self.url, error, now - self._answered,
                     self._patience)

  def _note_answer(self) -> None:
    now = time.monotonic()
    with self._guard:
      was_away, self._away = self._away, False
      seconds, self._answered = now - self._answered, now
      self.waited += seconds if was_away else 0.0
    if was_away:
      logger.warning("server.url = %r answers again after %.0f s", self.url, seconds)


def _line(content: bytes) -> str:
  """Returns the beginning of a text, in one line."""
  text = content[:2000].decode("utf-8", errors="replace")
  return " ".join(text.split())[:300] or "(no text)"
