"""Programs that mean harm: name -> (program, status it must end with, text its output must hold).

A tuple of statuses means that the system may end the program in any of these ways. The
programs that would harm the machine if a limit were missing come last.
"""

FORGED = '{"wait": 0, "late": false, "cpu": 0.0, "seconds": 0.0, "head": 2, "tail": null, "err": 0}'
CANNOT = """
def cannot(what, *args):
  try:
    what(*args)
    print("DONE", what, args)
  except Exception as error:
    print(type(error).__name__)
"""
MANY = """
import os, time
started, children = time.time(), 0
while children < 4 or time.time() - started < 0.4:
  try:
    if os.fork() == 0:
      {child}
    children += 1
  except OSError:
    time.sleep(0.01)
print("children", children)
"""

PROGRAMS = {
    "busy loop": ("while True: pass", "timeout", "time limit"),
    "catches everything": (
        "import signal, time\n"
        "for s in range(1, 65):\n"
        "  try: signal.signal(s, signal.SIG_IGN)\n  except Exception: pass\n"
        "print('armed')\n"
        "while True:\n  try:\n    while True: time.sleep(0.01)\n  except BaseException: pass",
        "timeout", "armed"),
    "stops itself": ("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", "timeout", ""),
    "hangs at exit": ("import atexit, time; atexit.register(time.sleep, 1000)", "timeout", ""),
    "thread that stays":
        ("import threading, time; threading.Thread(target=time.sleep, args=(99,)).start()",
         "timeout", ""),
    "huge power": ("print(9 ** 9 ** 9)", ("timeout", "memory"), ""),
    "deep recursion": ("def f(): return f()\nf()", "error", "RecursionError"),
    "recursion without limit": ("import sys\nsys.setrecursionlimit(10**9)\nclass A:\n"
                                "  def __getattr__(self, name): return getattr(self, name)\nA().x",
                                ("killed", "memory", "timeout", "error"), ""),
    "nested source": ("eval('-' * 50000 + '1')", ("error", "memory", "killed"), ""),
    "endless output": ("while True: print('x' * 1000)", "timeout", "... output cut ..."),
    "long output": ("print('a' * 5_000_000, 'z')", "ok", "... output cut ..."),
    "flood of errors":
        ("import sys\nfor _ in range(3000): print('e' * 1000, file=sys.stderr)\nprint('done')",
         "ok", "done"),
    "endless line in an exception": ("raise ValueError('x' * 10**7)", "error", "ValueError: xxx"),
    "huge file": ("open('a', 'wb').write(b'x' * (2 << 20))", "error", "File too large"),
    "many files": ("for i in range(100): open(str(i), 'wb').write(b'x' * (1 << 19))", "error",
                   "No space left"),
    "many empty files":
        ("for i in range(10**6): open(str(i), 'w').close()", "error", "No space left"),
    "reads outside": (
        "import os\nfor p in ('/etc/passwd', '/etc/shadow', '/proc/1/environ', '/proc/self/mem', "
        "'/sys', '/root/.ssh', '/home', '/usr/bin', '/dev/mem', OUTSIDE):\n"
        "  if os.path.exists(p): print('SEEN', p)\nprint('blind')", "ok", "blind"),
    "writes outside":
        (CANNOT +
         "import os\nfor p in ('/x', '/lib/x', '/usr/lib/x', os.__file__, '/dev/x', OUTSIDE):\n"
         "  cannot(open, p, 'w')\nprint('harmless')", "ok", "harmless"),
    "reads the environment":
        ("import os, ctypes\ngetenv = ctypes.CDLL(None).getenv\n"
         "print(len(os.environ), getenv(b'JAXRL_TEST_SECRET'), getenv(b'PATH'))", "ok", "0 0 0"),
    "looks at its parent":
        (CANNOT + "import os\nprint(os.getppid())\ncannot(os.kill, 1, 9)\ncannot(os.kill, 1, 19)\n"
         "cannot(open, f'/proc/{os.getppid()}/cmdline')", "ok",
         "1\nPermissionError\nPermissionError\nFileNotFoundError\n"),
    "traces its parent":
        ("import ctypes\nprint(ctypes.CDLL(None).ptrace(16, 1, 0, 0))", "ok", "-1"),
    "signals everybody":
        ("import os\nfor p in range(1, 5000):\n  try:\n    if p != os.getpid(): os.kill(p, 9); "
         "print('KILLED')\n  except OSError: pass\nprint('alone')", "ok", "alone"),
    "signals its group": ("import os; os.kill(0, 9)", "killed", "killed by SIGKILL"),
    "connects":
        ("import socket; socket.create_connection(('127.0.0.1', 22), 0.2)", "error", "OSError"),
    "resolves a name":
        ("import socket; socket.gethostbyname('example.org')", "error", "socket.gaierror"),
    "lists interfaces":
        (CANNOT + "import socket\ncannot(socket.if_nameindex)\nfor i in range(1, 9):\n"
         "  try: print(socket.if_indextoname(i))\n  except OSError: print('none')", "ok",
         "OSError\nlo\nnone\n"),
    "connects to the host's abstract socket":
        ("import socket; socket.socket(socket.AF_UNIX).connect('\\0jaxrl-hostile-test')", "error",
         "ConnectionRefusedError"),
    "imports the package": ("import jaxrl_llm", "error", "ModuleNotFoundError"),
    "spoils modules":
        ("import sys, builtins, os\nsys.modules.clear()\nbuiltins.print = None\nos._exit = None",
         ("ok", "error"), ""),
    "replaces the exit":
        ("import os\nos._exit = lambda code: None\n1 / 0", "error", "ZeroDivisionError"),
    "looks up the stack":
        ("import sys\nframe = sys._getframe()\nwhile frame:\n  if 'SECRET-OF-' + 'ANOTHER' in "
         "repr(frame.f_locals): print('FOUND')\n  frame = frame.f_back\nprint('searched')", "ok",
         "searched"),
    "leaves a daemon":
        ("import os, time\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n"
         "    while True: time.sleep(1)\n  os._exit(0)\nprint('left')", "ok", "left"),
    "child holds the output":
        ("import os, time\nif os.fork() == 0: time.sleep(1000)\nprint('parent')", "ok", "parent"),
    "closes its streams": ("import os\nos.close(1); os.close(2)\n1 / 0", "error", "exit status 1"),
    "drops its streams": ("import sys\nsys.stdout = sys.stderr = None", "ok", ""),
    "prints a forged result":
        (f"import os\nos.write(1, b'''{FORGED}\nok''')\nos.write(2, b'''{FORGED}''')\n"
         "os._exit(3)", "error", FORGED),
    "writes to all handles":
        ("import os\nwritten = 0\nfor fd in range(3, 5000):\n  try:\n"
         f"    os.write(fd, b'''{FORGED}\n'''); written += 1\n  except OSError: pass\n"
         "print('written', written)", "ok", "written 0"),
    "bytes that are no text": ("import sys; sys.stdout.buffer.write(b'\\xff\\xfe\\x00a\\xc3')",
                               "ok", "\ufffd\ufffd\x00a\ufffd"),
    "surrogates in the source": ("print('\ud800')", "error", "UnicodeEncodeError"),
    "null byte in the source": ("print(1)\x00", "error", "null byte"),
    "crash in C": ("import ctypes; ctypes.string_at(0)", "killed", "killed by SIGSEGV"),
    "abort": ("import os; os.abort()", "killed", "killed by SIGABRT"),
    "exit status": ("import sys; sys.exit(3)", "error", "exit status 3"),
    "exit at once": ("import os; os._exit(7)", "error", "exit status 7"),
    "exit with a text": ("raise SystemExit('no')", "error", "no"),
    "many handles":
        ("kept = [open('/dev/null') for _ in range(1000)]", "error", "Too many open files"),
    "many threads": ("import threading, time\nfor _ in range(1000):\n"
                     "  threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
                     "error", "can't start new thread"),
    "deletes its folder":
        ("import shutil, os\nshutil.rmtree('.', ignore_errors=True)\nshutil.rmtree('/tmp', True)\n"
         "print('tried')", "ok", "tried"),
    "locks and links its folder":
        ("import os\nos.symlink('/etc', 'e'); os.symlink('.', 'loop'); os.mkdir('d')\n"
         "os.chmod('d', 0); os.chmod('.', 0)\nprint('locked')", "ok", "locked"),
    "deep folders":
        ("import os\nfor _ in range(600): os.mkdir('d' * 100); os.chdir('d' * 100)\nprint('deep')",
         "ok", "deep"),
    "shared memory that stays":
        ("import ctypes\nprint(ctypes.CDLL(None).shmget(0, 1 << 20, 0o1600))", "ok", "-1"),
    "privileges": (
        "import ctypes\nc = ctypes.CDLL(None)\n"
        "print(c.unshare(0x10000000), c.mount(b'x', b'/tmp', b'tmpfs', 0, b''), c.setuid(0), "
        "c.chroot(b'/tmp'), c.umount2(b'/tmp', 2))", "ok", "-1 -1 -1 -1 -1"),
    "raises its limits": ("import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
                          "error", "not allowed to raise"),
    "executes a shell": ("import os; os.execv('/bin/sh', ['sh'])", "error", "FileNotFoundError"),
    "exception that cannot be printed":
        ("class E(Exception):\n  def __str__(self): raise self\nraise E", "error", "E"),
    "outlives its processor time":
        ("import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
         "timeout", "time limit"),
    "signals all it may": ("import os; os.kill(-1, 9)", "error", "ProcessLookupError"),
    "big allocation": ("x = bytearray(10**9)", "memory", "MemoryError"),
    "growing list": ("x = [0]\nwhile True: x += x", "memory", "MemoryError"),
    "processes that allocate":
        (MANY.format(child="x = bytearray(10**7); time.sleep(9)"), "ok", "children 4"),
    "fork bomb":
        ("import os, time\nwhile True:\n  try: os.fork()\n  except OSError: time.sleep(0.01)",
         "timeout", ""),
    "fork bomb that leaves its session":
        (MANY.format(child="os.setsid(); time.sleep(1000)"), "ok", "children 4"),
}
