"""Who is missing is named, and who dies ends the others with a line that names it."""

import socket
import subprocess
import sys
import textwrap
import threading
import time

import process_group as group
import pytest

from experiments.commands import roll_call, start_up
from experiments.commands.roll_call import AbsentError, RollCall
from jaxrl_llm.parallel import processes

PEER = textwrap.dedent("""
    import sys, time
    from experiments.commands.roll_call import AbsentError, RollCall
    address, count, index, what = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    call = RollCall(address, count, index, lambda line: (print("ended:", line, flush=True)))
    print("up", flush=True)
    try:
      call.begin(200)
    except AbsentError as error:
      sys.exit(f"absent: {error}")
    print("here", flush=True)
    if what == "done":
      call.leave()
    elif what == "fail":
      call.leave("ConfigError: a key")
    else:
      time.sleep(600)
""")


class Watched(RollCall):
  """A roll call whose end can be waited for."""

  def __init__(self, address, count, index):
    self.lines: list[str] = []
    super().__init__(address, count, index, self.lines.append)

  def line(self, seconds: float = 120.0) -> str | None:
    end = time.monotonic() + seconds
    while not self.lines and time.monotonic() < end:
      time.sleep(0.02)
    return self.lines[0] if self.lines else None


@pytest.fixture
def address():
  return f"127.0.0.1:{group.free_port()}"


@pytest.fixture
def peer(address):
  """Starts a process that is about to come: its imports may take long, and nobody waits then."""
  started = []

  def start(count: int, index: int, what: str) -> subprocess.Popen:
    started.append(subprocess.Popen(
        [sys.executable, "-c", PEER, address, str(count), str(index), what],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    assert started[-1].stdout.readline() == "up\n"
    return started[-1]

  yield start
  for process in started:
    process.kill()


def test_a_killed_process_is_named_to_all(address, peer):
  survivor, victim = (peer(3, index, "wait") for index in (1, 2))
  call = Watched(address, 3, 0)
  call.begin(200)
  victim.kill()
  assert "process 2 of 3" in call.line() and "died" in call.line()
  assert survivor.stdout.readline() == "here\n"
  assert "ended: process 2 of 3" in survivor.stdout.readline()


def test_process_0_is_named_when_it_dies(address, peer):
  first = peer(2, 0, "wait")
  call = Watched(address, 2, 1)
  call.begin(200)
  first.kill()
  assert call.line().startswith("process 0 of 2") and "died" in call.line()


def test_a_failure_is_passed_on_with_its_reason(address, peer):
  peer(2, 1, "fail")
  call = Watched(address, 2, 0)
  call.begin(200)
  assert "ended: ConfigError: a key" in call.line()


@pytest.mark.slow
def test_who_is_done_ends_nobody(address, peer):
  other = peer(2, 1, "done")
  call = Watched(address, 2, 0)
  call.begin(200)
  other.wait(300)
  assert call.line(1.0) is None


@pytest.mark.slow
def test_missing_processes_are_named_in_time(address, peer):
  for seconds in (3, 30, 200):  # in which the process that is there must have come
    other = peer(4, 2, "wait")
    with pytest.raises(AbsentError, match=f"of 4 did not come within {seconds} s") as error:
      RollCall(address, 4, 0, print).begin(seconds)
    if "process 1, 2, 3" not in str(error.value):
      break
    other.kill()
  assert "process 1, 3 of 4 did not come" in str(error.value) and "Fix:" in str(error.value)
  assert "process 1, 3 of 4 did not come" in other.communicate(timeout=300)[1]
  with pytest.raises(AbsentError, match="process 0 of 4 did not come within 1 s"):
    RollCall(address, 4, 1, print).begin(1)


@pytest.mark.slow
def test_a_name_that_comes_late_is_waited_for(address, peer, monkeypatch):
  """As that of a new pod does. One that never comes is named."""
  look_up, begin = socket.getaddrinfo, time.monotonic()

  def late(host, *arguments, **keywords):
    if host == "pod-0.run" and time.monotonic() < begin + 1:
      raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return look_up("127.0.0.1" if host == "pod-0.run" else host, *arguments, **keywords)

  monkeypatch.setattr(socket, "getaddrinfo", late)
  port = address.split(":")[1]
  other = peer(2, 1, "done")
  Watched(f"pod-0.run:{port}", 2, 0).begin(200)
  assert time.monotonic() > begin + 1 and other.wait(300) == 0
  begin = time.monotonic() + 60
  with pytest.raises(AbsentError, match=r"pod-0.run:\d+: process 0 cannot resolve"):
    RollCall(f"pod-0.run:{port}", 2, 0, print).begin(1)


def test_slurm_names_the_place(monkeypatch):
  for name, value in {"SLURM_JOB_ID": "4095", "SLURM_STEP_NODELIST": "node[03-04,07]",
                      "SLURM_NTASKS": "3", "SLURM_PROCID": "2", "SLURM_LOCALID": "0",
                      "SLURM_STEP_TASKS_PER_NODE": "1(x3)"}.items():
    monkeypatch.setenv(name, value)
  place = start_up._launched(5.0)
  assert place == start_up.Place("node03:65535", 3, 2, None)
  assert start_up._roll_call_address(place.coordinator) == "node03:65534"
  monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "3")
  monkeypatch.setenv("SLURM_LOCALID", "2")
  assert start_up._launched(5.0).devices == [2]


def test_alone_nothing_is_asked_of_the_network():
  start_up.start(processes=1)
  start_up.start()
  assert processes.exchange("x", 3) == [3] and processes.deal("x", [4]) == [4]
  assert processes.from_main("x", lambda: 5) == 5 and processes.share(6) == slice(0, 6)
  assert not start_up.fail("nobody hears it")
  start_up.finish()
  assert roll_call.PROBES * roll_call.BETWEEN + roll_call.IDLE < 60


@pytest.mark.parametrize("line", [b"", b"5\n", b"[1,2,3]\n", b"[" * 5000 + b"\n", b"\xff\n"],
                         ids=["silence", "number", "list", "brackets", "bytes"])
def test_strangers_at_the_port_hold_up_nobody(line, monkeypatch):
  """A stray line used to end process 0, and each silent stranger cost its time limit."""
  hear = roll_call._Peer.hear
  monkeypatch.setattr(roll_call._Peer, "hear", lambda self, timeout=None: hear(
      self, None if timeout is None else timeout + 300.0))
  port = group.free_port()
  calls = [Watched(f"127.0.0.1:{port}", 2, index) for index in range(2)]
  first = threading.Thread(target=calls[0].begin, args=(200.0,), daemon=True)
  first.start()
  strangers, end = [], time.monotonic() + 200
  while len(strangers) < 3 and time.monotonic() < end:
    try:
      strangers.append(socket.create_connection(("127.0.0.1", port)))
      strangers[-1].sendall(line)
    except ConnectionRefusedError:
      time.sleep(0.02)
  calls[1].begin(200.0)
  first.join(200)
  assert not first.is_alive() and len(strangers) == 3
  for call in calls:
    call.leave()
  for stranger in strangers:
    stranger.close()
