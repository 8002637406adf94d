"""The limit on a program's processes, where the kernel counts all that the user runs."""

import os

import pytest

from jaxrl_llm.sandbox import linux

WORKER = "python\0-P\0/x/sandbox_worker.py\0{}"
# pid: (parent, user, threads, command)
PROCESSES = {
    1: (0, 0, 1, "init"),
    10: (1, 1000, 40, "python\0experiments/main.py"),
    20: (10, 1000, 1, WORKER), 21: (20, 1000, 1, WORKER),  # supervisor and server
    22: (21, 1000, 3, WORKER), 23: (22, 1000, 1, "sleep\0" "9"),  # a program, and what it started
    24: (21, 1000, 1, "sleep\0" "9"),  # detached, so that it came to the server
    30: (10, 1000, 1, WORKER), 31: (30, 1000, 1, WORKER),
    40: (1, 1000, 7, "editor"),
    50: (1, 2000, 9, "another user's"),
}


@pytest.fixture
def proc(tmp_path):
  for pid, (parent, uid, threads, command) in PROCESSES.items():
    folder = tmp_path / str(pid)
    folder.mkdir()
    (folder / "status").write_text(f"Name:\tx\nPPid:\t{parent}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
                                   f"Threads:\t{threads}\n")
    (folder / "cmdline").write_text(command)
  (tmp_path / "60").mkdir()  # it has ended
  (tmp_path / "self").mkdir()
  number = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
  yield number
  os.close(number)


def test_all_tasks_of_the_user_count_but_those_of_programs(proc):
  assert linux.tasks_of_user(1000, proc, "sandbox_worker.py") == 40 + 2 + 2 + 7
  assert linux.tasks_of_user(1000, proc, "another.py") == 40 + 2 + 3 + 1 + 1 + 2 + 7
  assert linux.tasks_of_user(3000, proc, "sandbox_worker.py") == 0
