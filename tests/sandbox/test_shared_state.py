"""What a program could leave in the kernel or share with the host: none of it is there."""

import errno
import functools
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from jaxrl_llm.sandbox import seccomp

DRIVER = Path(__file__).with_name("shared_driver.py")
WEAK = ("system_calls", "devices")  # without these, programs reach what they try


@functools.cache
def outputs_of(*without) -> dict:
  """Returns the outputs of the driver's programs in a sandbox without these kinds of isolation."""
  done = subprocess.run([sys.executable, str(DRIVER), *without], capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


def offered(*names) -> dict:
  outputs = outputs_of()
  if missing := set(names) & set(outputs["missing"]):
    pytest.skip(f"not offered here: {missing}")
  return outputs


def test_a_key_stays_with_nobody():
  outputs = offered("system_calls")
  if "adds a key" not in outputs:
    pytest.skip("this system has no keyrings")
  steps = ("adds a key", "finds the key", "this process finds the key")
  assert [outputs[step] for step in steps] == ["False\n", "False\n", False]
  weak = outputs_of(*WEAK)
  assert [weak[step] for step in steps] == ["True\n", "True\n", True], "the check sees nothing"


def test_there_are_no_files_of_memory_beside_the_folder():
  assert "PermissionError" in offered("system_calls")["memory"]
  assert outputs_of(*WEAK)["memory"] == ""


def test_buffers_of_sockets_stay_small():
  """Enlarged, the sockets of one process held 220 MiB where the system allows it."""
  assert float(offered("system_calls")["buffers"]) < 1
  allowed = 2 * int(Path("/proc/sys/net/core/wmem_max").read_text()) / 2**20
  if allowed > 2:  # MiB, with what the kernel adds for itself
    assert float(outputs_of(*WEAK)["buffers"]) > 1, "the check sees nothing"


def test_sockets_are_of_unix_and_inet():
  assert set(json.loads(offered("system_calls")["families"])) <= set(seccomp.FAMILIES)
  assert set(json.loads(outputs_of(*WEAK)["families"])) - set(seccomp.FAMILIES)


def test_device_nodes_are_not_the_hosts_and_read_only():
  """Compares nodes and flags of mounts only: a test that changed a node could change the host's."""
  outputs = offered("files", "devices")
  weak = json.loads(outputs_of(*WEAK)["devices"])
  for name, (device, inode, numbers, read_only) in json.loads(outputs["devices"]).items():
    host = os.stat(f"/dev/{name}")
    assert (device, inode) != (host.st_dev, host.st_ino) and numbers == host.st_rdev and read_only
    assert weak[name] == [host.st_dev, host.st_ino, host.st_rdev, os.ST_RDONLY]


def test_devices_and_locks_serve_their_purpose():
  outputs = offered("files")
  assert outputs["uses devices"] == "1 b''\nb'\\x00\\x00'\n2 3\n2\n"
  assert outputs["locks a file of its own"] == "[(7,)]\n"


def test_each_program_has_an_input_of_its_own():
  outputs = outputs_of()
  assert outputs["marks its input"] == "False True\n"
  assert outputs["looks at its input"] == "False ''\n"


def test_a_program_changes_no_process_above_it():
  outputs = offered("system_calls", "files")
  assert outputs["changes"] == []
  assert outputs["serves"] == "3\n1\n[1, 2]\n"
  assert "changes limits above it" in outputs_of(*WEAK, "user")["changes"], "the check sees nothing"


# The filter itself, for both architectures.

ERROR = seccomp.ERROR


def answer(lines, architecture, number, *arguments) -> int:
  """Returns what the kernel would do with a call: a small interpreter of the filter's program."""
  data = {seccomp.NUMBER: number, seccomp.ARCHITECTURE: architecture}
  data |= zip(seccomp.ARGUMENTS, (*arguments, *[0] * 6), strict=False)
  at = value = 0
  while True:
    operation, if_true, if_false, operand = lines[at]
    at += 1
    if operation == seccomp.RETURN:
      return operand
    if operation == seccomp.LOAD:
      value = data[operand]
    else:
      true = value == operand if operation == seccomp.EQUAL else value >= operand
      at += if_true if true else if_false


@pytest.mark.parametrize("architecture, column", seccomp.MACHINES.values())
def test_the_filter_refuses_what_it_lists_and_nothing_else(architecture, column):
  lines = seccomp.program(architecture, column)
  refused = {numbers[column] for numbers, _ in seccomp.CALLS.values()}
  sockets = {numbers[column] for numbers in seccomp.SOCKETS.values()}
  assert len(refused | sockets) == len(seccomp.CALLS) + 2
  # Zeros as arguments: a call on the program itself, but for kinds that have other numbers.
  for number in sorted({*range(600)} - {seccomp.OF_KIND["ioprio_set"][0][column]}):
    if number in sockets:
      allowed = [family for family in range(64)
                 if answer(lines, architecture, number, family) == seccomp.ALLOW]
      assert allowed == [1, 2, 10]
      assert answer(lines, architecture, number, 40) == ERROR | errno.EAFNOSUPPORT
    else:
      expected = ERROR | errno.EPERM if number in refused else seccomp.ALLOW
      assert answer(lines, architecture, number) == expected
  options = [(level, name) for level in range(8) for name in range(99)
             if answer(lines, architecture, seccomp.SET_OPTION[column], 5, level, name)
             != seccomp.ALLOW]
  assert options == [(1, 7), (1, 8)]
  assert answer(lines, 0x40000003, 20) == ERROR | errno.ENOSYS  # 32-bit calls of the same machine
  assert answer(lines, architecture, 0x40000000 + 41) == ERROR | errno.ENOSYS


def test_arguments_decide_where_a_call_also_serves_programs():
  lines, x86 = seccomp.program(0xC000003E, 0), 0xC000003E
  no, allow = ERROR | errno.EPERM, seccomp.ALLOW

  def verdict(number, *arguments):
    return answer(lines, x86, number, *arguments)

  for name, numbers in seccomp.OF_PROCESS.items():
    assert verdict(numbers[0], 0) == allow and verdict(numbers[0], 1) == no, name
  for name, (numbers, kind) in seccomp.OF_KIND.items():
    assert verdict(numbers[0], kind, 0) == allow and verdict(numbers[0], kind, 1) == no, name
    assert verdict(numbers[0], kind + 1, 0) == no, name


def test_an_unknown_architecture_is_said(monkeypatch):
  monkeypatch.setattr(os, "uname", lambda: types.SimpleNamespace(machine="riscv64"))
  with pytest.raises(OSError, match="no table of calls for riscv64"):
    seccomp.install()
