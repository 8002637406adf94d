"""A filter on system calls: programs get an error for calls that reach beyond their sandbox.

Only the standard library is used, because the worker processes load this file by its path, without
the package. The filter is a classic BPF program that the kernel runs at each system call; it is
inherited by every program, and none can take it away.

Refused are calls whose effects outlive a program or count in no limit, large parts of the kernel
that no program of tests needs, and changes of another process's limits, priority or processors,
which a program without a separate user could do to the process that starts the next programs. What
lets two programs notice each other stays open: nothing that they know is secret. Sockets are of the
families UNIX, INET and INET6, which asyncio and multiprocessing need and the network namespace
bounds.
"""

import ctypes
import errno
import os
import struct
import sys

# (machine as named by os.uname, bits of a pointer): (architecture for the kernel, column of CALLS)
MACHINES = {("x86_64", 64): (0xC000003E, 0), ("aarch64", 64): (0xC00000B7, 1)}
KEYS = "keys are kept beyond a program's end, and shared with the trainer and other programs"
RINGS = "its requests pass by this filter"
MEMORY = "its memory is counted by no limit"
KERNEL = "no program of tests needs this part of the kernel"
HOST = "it makes the host write what waits for its disks"
# name: ((number on x86_64, on aarch64), why it is refused)
CALLS = {
    "add_key": ((248, 217), KEYS),
    "request_key": ((249, 218), KEYS),
    "keyctl": ((250, 219), KEYS),
    "memfd_create": ((319, 279), MEMORY),
    "memfd_secret": ((447, 447), MEMORY),
    "shmget": ((29, 194), MEMORY),
    "msgget": ((68, 186), MEMORY),
    "io_uring_setup": ((425, 425), RINGS),
    "io_uring_enter": ((426, 426), RINGS),
    "io_uring_register": ((427, 427), RINGS),
    "syslog": ((103, 116), "it shows the kernel's messages, which name the host's devices"),
    "bpf": ((321, 280), KERNEL),
    "perf_event_open": ((298, 241), KERNEL),
    "userfaultfd": ((323, 282), KERNEL),
    "sync": ((162, 81), HOST),
    "syncfs": ((306, 267), HOST),
    "sync_file_range": ((277, 84), HOST),
}
SOCKETS = {"socket": (41, 198), "socketpair": (53, 199)}
FAMILIES = (1, 2, 10)  # UNIX, INET, INET6; others reach the kernel and its host (NETLINK, VSOCK)
SET_OPTION = (54, 208)  # setsockopt
# Calls whose first argument is a process, 0 for the program's own; no other one is permitted.
OF_PROCESS = {"prlimit64": (302, 261), "sched_setaffinity": (203, 122),
              "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
              "sched_setattr": (314, 274)}
# Calls with a kind and a number: (numbers of the call, the kind that means a process).
OF_KIND = {"setpriority": ((141, 140), 0), "ioprio_set": ((251, 30), 1)}
SOL_SOCKET, SO_SNDBUF, SO_RCVBUF = 1, 7, 8
OTHER_TABLE = 0x40000000  # from here on, numbers of x86_64 are of its 32-bit variant

PR_SET_SECCOMP, MODE_FILTER = 22, 2
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
NUMBER, ARCHITECTURE = 0, 4  # offsets in the kernel's view of a call
ARGUMENTS = (16, 24, 32)
ALLOW, ERROR = 0x7FFF0000, 0x00050000
_LIBC = ctypes.CDLL(None, use_errno=True)


def machine() -> tuple[int, int]:
  """Returns the kernel's name of this architecture, and the column of `CALLS` for it.

  Raises:
    OSError: an architecture whose numbers are not listed here.
  """
  architecture = os.uname().machine, 64 if sys.maxsize > 1 << 32 else 32
  if architecture not in MACHINES or sys.byteorder != "little":
    raise OSError(errno.ENOSYS, f"seccomp: no table of calls for {architecture[0]}")
  return MACHINES[architecture]


def program(architecture: int, column: int) -> list[tuple[int, int, int, int]]:
  """Returns the filter as (operation, jump if true, jump if false, number).

  Calls of another architecture do not exist for a program, those in `CALLS` are not permitted,
  others not for another process, sockets are of one of `FAMILIES`, and their buffers keep their
  size: enlarged ones would hold some MiB each, which no limit counts.
  """
  def refuse(number: int) -> tuple[int, int, int, int]:
    return RETURN, 0, 0, ERROR | number

  lines = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, architecture), refuse(errno.ENOSYS),
           (LOAD, 0, 0, NUMBER), (AT_LEAST, 0, 1, OTHER_TABLE), refuse(errno.ENOSYS)]
  for numbers, _ in CALLS.values():
    lines += [(EQUAL, 0, 1, numbers[column]), refuse(errno.EPERM)]
  lines += other_processes(column)
  lines += [(EQUAL, 0, 8, SET_OPTION[column]), (LOAD, 0, 0, ARGUMENTS[1]),
            (EQUAL, 1, 0, SOL_SOCKET), (RETURN, 0, 0, ALLOW), (LOAD, 0, 0, ARGUMENTS[2]),
            (EQUAL, 1, 0, SO_SNDBUF), (EQUAL, 0, 1, SO_RCVBUF), refuse(errno.EPERM),
            (RETURN, 0, 0, ALLOW)]
  sockets = [numbers[column] for numbers in SOCKETS.values()]
  lines += [(EQUAL, 2, 0, sockets[0]), (EQUAL, 1, 0, sockets[1]), (RETURN, 0, 0, ALLOW),
            (LOAD, 0, 0, ARGUMENTS[0])]
  for family in FAMILIES:
    lines += [(EQUAL, 0, 1, family), (RETURN, 0, 0, ALLOW)]
  return [*lines, refuse(errno.EAFNOSUPPORT)]


def when(number: int, rules: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
  """Returns lines that apply `rules` to a call, and leave other calls to the lines after them."""
  return [(EQUAL, 0, len(rules) + 1, number), *rules, (RETURN, 0, 0, ALLOW)]


def other_processes(column: int) -> list[tuple[int, int, int, int]]:
  """Returns the rules for calls that a program may only use on itself."""
  no, lines = (RETURN, 0, 0, ERROR | errno.EPERM), []
  for numbers in OF_PROCESS.values():
    lines += when(numbers[column], [(LOAD, 0, 0, ARGUMENTS[0]), (EQUAL, 1, 0, 0), no])
  for numbers, kind in OF_KIND.values():
    lines += when(numbers[column], [(LOAD, 0, 0, ARGUMENTS[0]), (EQUAL, 1, 0, kind), no,
                                    (LOAD, 0, 0, ARGUMENTS[1]), (EQUAL, 1, 0, 0), no])
  return lines


def install() -> None:
  """Filters the calls of this process and of all that it starts from now on.

  Raises:
    OSError: an unknown architecture, or a kernel without filters; nothing has changed.
  """
  lines = program(*machine())
  code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
  header = ctypes.create_string_buffer(struct.pack("@HP", len(lines), ctypes.addressof(code)))
  zeros = [ctypes.c_ulong(0)] * 2
  if _LIBC.prctl(PR_SET_SECCOMP, ctypes.c_ulong(MODE_FILTER),
                 ctypes.c_ulong(ctypes.addressof(header)), *zeros):
    number = ctypes.get_errno()
    raise OSError(number, f"seccomp: {os.strerror(number)}")
