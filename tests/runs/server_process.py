"""The rollout server of the tests as a process, which may be killed and started again."""

import os
import socket
import subprocess
import sys
from pathlib import Path

SERVER = Path(__file__).parents[1] / "rollouts" / "server" / "engine_server.py"


class Server:
  """A server process on a port of its own; as a context it runs from begin to end."""

  def __init__(self):
    with socket.socket() as free:
      free.bind(("127.0.0.1", 0))
      self.port = free.getsockname()[1]
    self.url, self.process = f"http://127.0.0.1:{self.port}", None

  def __enter__(self) -> "Server":
    self.start()
    return self

  def __exit__(self, *_) -> None:
    self.kill()

  def start(self) -> None:
    self.process = subprocess.Popen(
        [sys.executable, SERVER, f"--port={self.port}"], stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(SERVER.parents[3]), "XLA_FLAGS": ""})
    assert self.process.stdout.readline().strip() == self.url

  def kill(self) -> None:
    if self.process is not None:
      self.process.kill()
      self.process.communicate()
      self.process = None
