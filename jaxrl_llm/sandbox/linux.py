"""System calls that Python 3.11 lacks, and the steps of isolation made of them.

Only the standard library is used, because the worker processes load this file by its path, without
the package. If the system refuses a step, the caller gets an OSError and continues without the
step; if the C library lacks the call, it gets an AttributeError.
"""

import ctypes
import functools
import os
import stat
import subprocess
import sys
import sysconfig

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT = 1, 2, 4, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MS_NOEXEC, MS_NOATIME, MS_NODIRATIME = 8, 1024, 2048  # the same values as ST_* of statvfs
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP = 1, 4, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
REFUSED = (OSError, AttributeError)
NOBODY = 65534
HOME = "/tmp"  # working directory of every program, inside the file tree of its worker
LIBRARIES = "/.libraries"  # below it stand folders of modules that a program's HOME would hide
DEVICES = {"null": (1, 3), "zero": (1, 5), "urandom": (1, 9)}  # numbers of Linux
SYSTEM_FOLDERS = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64")
_LIBC = ctypes.CDLL(None, use_errno=True)


def call(name: str, *args) -> int:
  """Calls a function of the C library; raises OSError if it returns a negative number."""
  code = getattr(_LIBC, name)(*args)
  if code < 0:
    number = ctypes.get_errno()
    raise OSError(number, f"{name}: {os.strerror(number)}")
  return code


def unshare(flags: int) -> None:
  call("unshare", flags)


def prctl(option: int, value: int) -> None:
  zeros = [ctypes.c_ulong(0)] * 3
  call("prctl", option, ctypes.c_ulong(value), *zeros)


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
  call("mount", source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags),
       options.encode())


def mapped(number: int) -> bool:
  """Returns whether this process's user namespace knows the user and the group `number`."""
  for name in ("uid_map", "gid_map"):
    try:
      with open(f"/proc/self/{name}") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    except OSError:
      return True  # no user namespaces at all
    if not any(first <= number < first + count for first, _, count in ranges):
      return False
  return True


def enter_user_namespace(with_nobody: bool) -> None:
  """Moves this process into a separate user namespace, in which it has the id 0.

  With `with_nobody`, which needs root, the id 65534 keeps its number. Two ids can only be mapped by
  a process outside of the namespace: a forked helper.

  Raises:
    OSError: the system has no user namespaces; nothing has changed.
    RuntimeError: the ids could not be mapped; the process has no user now and must end.
  """
  pid, uid, gid = os.getpid(), os.geteuid(), os.getegid()
  if not with_nobody:
    unshare(CLONE_NEWUSER)
    write("/proc/self/setgroups", "deny")
    write("/proc/self/uid_map", f"0 {uid} 1")
    write("/proc/self/gid_map", f"0 {gid} 1")
    return
  wait, go = os.pipe()
  helper = os.fork()
  if helper == 0:
    try:
      os.close(go)
      if os.read(wait, 1):
        for name in ("uid_map", "gid_map"):
          write(f"/proc/{pid}/{name}", f"0 0 1\n{NOBODY} {NOBODY} 1")
        os._exit(0)
    finally:
      os._exit(1)
  is_inside = False
  try:
    unshare(CLONE_NEWUSER)
    is_inside = True
    os.write(go, b"1")
  finally:
    os.close(go)
    os.close(wait)
    status = os.waitpid(helper, 0)[1]
  if is_inside and status != 0:
    raise RuntimeError("the ids of the user namespace could not be mapped")


def write(path: str, text: str) -> None:
  with open(path, "w") as file:
    file.write(text)


def enter_private_devices() -> None:
  """Replaces /dev by a folder with separate device nodes, in a separate mount namespace.

  Times, modes and locks of a node are shared by all that see it, so these are not the host's. Only
  root of the host can make nodes, so this comes before the user namespace.

  Raises:
    OSError: the system refuses; /dev is as before.
  """
  unshare(CLONE_NEWNS)
  mount("none", "/", "none", MS_REC | MS_PRIVATE)
  mount("tmpfs", "/dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "size=64k,mode=0755")
  try:
    for name, numbers in DEVICES.items():
      os.mknod(f"/dev/{name}", stat.S_IFCHR | 0o666, os.makedev(*numbers))
      os.chmod(f"/dev/{name}", 0o666)  # whatever the umask
      os.close(os.open(f"/dev/{name}", os.O_RDWR))  # a container may refuse here
  except OSError:
    call("umount2", b"/dev", MNT_DETACH)
    raise


def library_folders(more: list[str]) -> list[str]:
  """Returns the folders of modules and shared objects, and `more`; none is inside another."""
  prefix = [] if sys.base_prefix == "/usr" else [f"{sys.base_prefix}/lib"]
  python = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"),
            sysconfig.get_config_var("LIBDIR")]
  candidates = [*prefix, *python, *SYSTEM_FOLDERS, *more]
  folders = sorted({os.path.realpath(path) for path in candidates if path and os.path.isdir(path)})
  return [path for path in folders if not any(path.startswith(f"{parent}/") for parent in folders)]


def enter_private_files(folders: list[str]) -> None:
  """Replaces the file tree of this mount namespace by one with only the interpreter's libraries.

  `folders`, from `library_folders`, are read-only. There is no /proc and no /etc, /dev has only
  null, zero and urandom, and `HOME` is an empty folder. The nodes take and give data, but their
  times and modes are read-only.
  """
  old = "/.old"
  mount("none", "/", "none", MS_REC | MS_PRIVATE)
  mount("tmpfs", HOME, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=0755")
  os.mkdir(HOME + old)
  call("pivot_root", HOME.encode(), (HOME + old).encode())
  os.chdir("/")
  try:
    _fill(folders, old)
    call("umount2", old.encode(), MNT_DETACH)
  except REFUSED:
    os.chroot(old)
    os.chdir("/")
    raise
  os.rmdir(old)
  mount("none", "/", "none", MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)


def _fill(folders: list[str], old: str) -> None:
  for path in SYSTEM_FOLDERS:
    if os.path.islink(old + path):
      os.makedirs(os.path.dirname(path), exist_ok=True)
      os.symlink(os.readlink(old + path), path)
  for path in folders:
    target = LIBRARIES + path if path.startswith(f"{HOME}/") else path
    os.makedirs(target, exist_ok=True)
    _bind_read_only(old + path, target, MS_REC, MS_NODEV)
  os.mkdir("/dev")
  for name in DEVICES:
    os.close(os.open(f"/dev/{name}", os.O_CREAT | os.O_WRONLY))
    _bind_read_only(f"{old}/dev/{name}", f"/dev/{name}", 0, MS_NOEXEC)
  os.makedirs(HOME, exist_ok=True)


def open_home(size_mb: int, uid: int, folders: list[str]) -> None:
  """Mounts an empty `HOME` of user `uid` with those of `folders` below it: an environment in /tmp.
  """
  mount("tmpfs", HOME, "tmpfs", MS_NOSUID | MS_NODEV,
        f"size={size_mb}m,nr_inodes=1000,mode=0700,uid={uid},gid={uid}")
  for path in folders:
    if path.startswith(f"{HOME}/"):
      os.makedirs(path)
      _bind_read_only(LIBRARIES + path, path, MS_REC, MS_NODEV)


def _bind_read_only(source: str, target: str, how: int, flags: int) -> None:
  mount(source, target, "none", MS_BIND | how)
  # A user namespace may not remove noexec and noatime of the mount that it copies.
  inherited_flags = os.statvfs(target).f_flag & (MS_NOEXEC | MS_NOATIME | MS_NODIRATIME)
  mount("none", target, "none",
        MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | flags | inherited_flags)


def drop_privileges(uid: int | None) -> None:
  """Gives up all capabilities for good and becomes user `uid`; None: stays the same user."""
  for number in range(64):
    try:
      prctl(PR_CAPBSET_DROP, number)
    except REFUSED:
      break
  if uid is not None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
  try:
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    call("capset", header, sets)
  except REFUSED:
    pass  # a user without any capability may also lack the call


def descendants(root: int, proc: int) -> list[int]:
  """Returns the descendant processes of `root`, as far as their parents live.

  Args:
    proc: handle of the folder /proc, which the caller's file tree may lack.
  """
  opener = functools.partial(os.open, dir_fd=proc)
  parents = {}
  for name in os.listdir(proc):
    if name.isdigit():
      try:
        with open(f"{name}/stat", "rb", opener=opener) as file:
          parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
      except (OSError, IndexError):
        continue  # it has ended meanwhile
  pids, front = [], {root}
  while front:
    front = {pid for pid, parent in parents.items() if parent in front}
    pids += front
  return pids


def tasks_of_user(uid: int, proc: int, worker: str) -> int:
  """Returns how many processes and threads a user has, not counting programs in sandboxes.

  Programs are left out because a limit that counted them would grow with each program that starts
  while others run.

  Args:
    proc: as in `descendants`.
    worker: name of the file that the supervisors of sandboxes run.
  """
  opener = functools.partial(os.open, dir_fd=proc)
  tasks, parents, workers = {}, {}, set()
  for name in os.listdir(proc):
    if not name.isdigit():
      continue
    try:
      with open(f"{name}/status", "rb", opener=opener) as file:
        fields = dict(line.split(b":", 1) for line in file if b":" in line)
      if int(fields[b"Uid"].split()[0]) != uid:
        continue
      tasks[name], parents[name] = int(fields[b"Threads"]), fields[b"PPid"].decode().strip()
      with open(f"{name}/cmdline", "rb", opener=opener) as file:
        if worker.encode() in file.read():
          workers.add(name)
    except (OSError, KeyError, ValueError):
      continue  # it has ended meanwhile
  # A supervisor, its server, and below that the programs.
  supervisors = {name for name in workers if parents[name] not in workers}
  servers = {name for name in tasks if parents[name] in supervisors}
  front = programs = {name for name in tasks if parents[name] in servers}
  while front:
    front = {name for name in tasks if parents[name] in front} - programs
    programs = programs | front
  return sum(tasks[name] for name in tasks.keys() - programs)


def kernel() -> tuple[int, int]:
  """Returns the version of the kernel; (0, 0) if it is not written as usual."""
  parts = os.uname().release.split(".")
  try:
    return int(parts[0]), int(parts[1])
  except (IndexError, ValueError):
    return 0, 0


def remove_tree(path: str) -> None:
  """Deletes a folder, whatever its depth and its modes; no other process may still write there."""
  try:
    os.rmdir(path)
  except OSError:
    # Python's own functions fail in deep folders. These do not follow symbolic links.
    for command in (["chmod", "-R", "u+rwx", path], ["rm", "-rf", path]):
      subprocess.run(command, stderr=subprocess.DEVNULL, check=False)
