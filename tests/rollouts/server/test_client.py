"""A server that drips, floods or nests ends in a line within the time limit."""

import json
import socket
import threading
import time

import pytest

from jaxrl_llm.rollouts.server import ServerError, client
from jaxrl_llm.rollouts.server.client import AwayError, Client

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.fixture
def served(monkeypatch):
  """Returns a client of a server that calls `send` with each connection."""
  server = socket.create_server(("127.0.0.1", 0))

  def start(send, timeout=300.0):
    def answer(connection):
      try:
        connection.recv(1 << 16)
        send(connection)
      except OSError:
        pass
      finally:
        connection.close()

    def accept():
      while True:
        try:
          connection = server.accept()[0]
        except OSError:
          return
        threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return Client(f"http://127.0.0.1:{server.getsockname()[1]}", 2, timeout, 0.0)

  yield start
  server.close()


def response(content: bytes) -> bytes:
  return HEAD + b"Content-Length: %d\r\n\r\n" % len(content) + content


def dripped(head: bytes):
  def send(connection):
    connection.sendall(head)
    while True:
      connection.sendall(b" ")
      time.sleep(0.1)

  return send


def test_an_answer_comes_whole(served):
  content = {"choices": [1, "ö"]}
  answer = served(lambda c: c.sendall(response(json.dumps(content).encode()))).inquire("/x")
  assert answer == content


@pytest.mark.parametrize("head", [
    HEAD + b"Content-Length: 99999\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: "],
                         ids=["body", "head"])
def test_a_dripped_answer_is_late(served, head, monkeypatch):
  monkeypatch.setattr(client, "CONNECT", 0.2)
  for timeout in (0.5, 5.0, 50.0):
    with pytest.raises(AwayError) as error:
      served(dripped(head), timeout).inquire("/x")
    if "not complete" in str(error.value):
      break  # else the machine was so slow that one drop took longer
  assert f"not complete after server.timeout = {timeout:g} s" in str(error.value)


def test_a_flood_is_refused(served, monkeypatch):
  monkeypatch.setattr(client, "LARGEST", 1 << 20)
  with pytest.raises(ServerError, match="the answer has more than 1 MiB"):
    served(lambda c: c.sendall(response(b"[" + b"1," * (1 << 20)))).inquire("/x")


@pytest.mark.parametrize("content", [b"[" * 200_000, b'{"a":' * 100_000, b"9" * 5000, b"\xff"],
                         ids=["brackets", "objects", "digits", "bytes"])
def test_an_answer_that_is_no_json_is_none(served, content):
  assert served(lambda c: c.sendall(response(content))).inquire("/x") is None
