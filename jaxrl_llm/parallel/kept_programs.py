"""Compiled programs on disk, which a start with the same config takes without tracing them.

JAX's compilation cache (store/cache.py) saves only compiling: to look a program up there, JAX
traces and lowers it first, which is half of a start. Here a program is looked up by its
sources:

- its name and what it closes over, such as a network and configs, each written by `canonical`;
- shapes, dtypes, shardings and the tree of its arguments, and its static arguments;
- the sources of this package, the versions of JAX, its settings, devices and processor.

These name a link to the file of the program. The file is named by the lowered program: after a
change of the sources a program is traced once more, but compiled only if it has changed.

A function that `canonical` cannot write without an address in memory is compiled as usual. So is
everything until `keep_in`, with plugins, whose code is not in the key, with several processes, and
while JAX traces.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import logging
import os
import pickle
import platform
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.experimental.serialize_executable as executables
import numpy as np

from jaxrl_llm.config import plugins

ENDING, LINK = ".program", ".link"
PACKAGE = Path(__file__).parent.parent
VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
ADDRESS = re.compile(r"\bat 0x[0-9a-f]+")
HIT = "/jax/compilation_cache/cache_hits"
_place: list[Path] = []  # the folder, if there is one
# Programs that came from JAX's cache: the CPU's cannot be written again, parts of them are missing.
_hits = [0]
_listening: list[bool] = []
logger = logging.getLogger(__name__)


def keep_in(folder: Path | None) -> None:
  """Makes this process keep programs in a folder, which exists; None: nowhere.

  Its programs are run without checks, so no other user may write there.
  """
  if not _listening:
    jax.monitoring.register_event_listener(_count_hit)
    _listening.append(True)
  _place[:] = [] if folder is None else [folder]


def _count_hit(event: str, **_) -> None:
  _hits[0] += event == HIT


@dataclasses.dataclass(frozen=True)
class Kept:
  """A jitted function whose compiled programs are kept; it is called as the function is.

  Attributes:
    program: the jitted function.
    identity: its name and what it closes over, see `canonical`; None if that cannot be written.
    static_names: its static arguments, which are given by name.
    compiled: the programs of this process, by the kind of their arguments.
  """

  program: jax.stages.Wrapped
  identity: str | None
  static_names: tuple[str, ...] = ()
  compiled: dict = dataclasses.field(default_factory=dict, repr=False, compare=False)

  def __call__(self, *args, **named):
    dynamic = {key: value for key, value in named.items() if key not in self.static_names}
    leaves, tree = jax.tree.flatten((args, dynamic))
    if not self._applies(leaves):
      return self.program(*args, **named)
    static = tuple(named.get(name) for name in self.static_names)
    kind = (tree, tuple(map(_kind, leaves)), static)
    if kind not in self.compiled:
      self.compiled[kind] = self._get(kind, args, named)
    return self.compiled[kind](*args, **dynamic)

  def trace(self, *args, **named) -> jax.stages.Traced:
    """Returns the program for arguments that may be abstract, as `jax.jit` traces it."""
    return self.program.trace(*args, **named)

  def _applies(self, leaves) -> bool:
    return (bool(_place) and not plugins.LOADED and self.identity is not None
            and jax.process_count() == 1
            and not any(isinstance(leaf, (jax.core.Tracer, jax.ShapeDtypeStruct))
                        for leaf in leaves)
            and not jax.config.jax_disable_jit and not jax.config.jax_debug_nans)

  def _get(self, kind: tuple, args, named) -> Callable:
    """Returns the compiled program from the folder, or one that is compiled now and put there."""
    arguments = f"{kind[0]} {kind[1]} {canonical(kind[2])}"
    link = _path(f"{sources()} {environment()} {self.identity} {arguments}", LINK)
    if ADDRESS.search(arguments):
      return self.program.lower(*args, **named).compile()
    program = _read(_link_target(link))
    if program is not None:
      return program
    lowered = self.program.lower(*args, **named)
    path = _path(f"{environment()} {arguments} {lowered.out_tree} {lowered.as_text()}", ENDING)
    program = _read(path)
    if program is None:
      hits = _hits[0]
      program = lowered.compile()
      if _hits[0] == hits:
        _write(path, program)
    _write_atomically(link, path.name.encode())
    return program


def kept(program: jax.stages.Wrapped, name: str, *statics: Any,
         static_names: tuple[str, ...] = ()) -> Kept:
  """Returns a jitted function whose compiled programs are kept.

  Args:
    name: of the function, unique among functions with equal statics.
    statics: all that the function closes over and that may differ between two starts.
    static_names: its static arguments.
  """
  text = canonical((name, *statics))
  return Kept(program, None if ADDRESS.search(text) else text, static_names)


def canonical(value: Any) -> str:
  """Writes a value such that equal texts of two processes mean equal values.

  A value that is known only by its address is written with it; see ADDRESS.
  """
  if isinstance(value, jax.sharding.Mesh):
    return f"Mesh({value.shape}, {[str(device) for device in value.devices.flat]})"
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    parts = [f"{field.name}={canonical(getattr(value, field.name))}"
             for field in dataclasses.fields(value)]
    return f"{type(value).__module__}.{type(value).__qualname__}({', '.join(parts)})"
  if isinstance(value, (tuple, list)):
    return f"{type(value).__name__}[{', '.join(map(canonical, value))}]"
  if isinstance(value, dict):
    return f"dict[{', '.join(f'{canonical(k)}: {canonical(v)}' for k, v in value.items())}]"
  if isinstance(value, (set, frozenset)):
    return f"set[{', '.join(sorted(map(canonical, value)))}]"
  if isinstance(value, functools.partial):
    return f"partial[{canonical((value.func, value.args, value.keywords))}]"
  if isinstance(value, np.ndarray):
    return f"array({value.dtype}, {value.shape}, {hashlib.sha256(value.tobytes()).hexdigest()})"
  module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "<")
  if callable(value) and str(module).startswith("jaxrl_llm.") and "<" not in name:
    return f"{module}.{name}"
  return repr(value)


def _kind(leaf) -> tuple:
  """Returns the properties of an argument that decide which program serves it."""
  if isinstance(leaf, jax.Array):
    return jax.typeof(leaf), leaf.sharding, leaf.committed
  if isinstance(leaf, (np.ndarray, np.generic)):
    return leaf.shape, leaf.dtype
  return (type(leaf),)


@functools.cache
def sources() -> str:
  """Returns the digest of this package's files."""
  code = hashlib.sha256()
  for file in sorted(PACKAGE.rglob("*.py")):
    code.update(f"{file.relative_to(PACKAGE)} ".encode() + file.read_bytes())
  return code.hexdigest()


@functools.cache
def environment() -> str:
  """Returns the inputs of compilation other than sources: versions, settings, devices."""
  versions = [importlib.metadata.version(name) for name in ("jax", "jaxlib", "flax", "optax")]
  settings = {name: value for name, value in sorted(jax.config.values.items())
              if "cache" not in name}
  devices = [f"{device} {device.device_kind}" for device in jax.devices()]
  variables = [os.environ.get(name) for name in VARIABLES]
  return "\n".join([*map(str, (versions, settings, devices, variables)), platform.platform(),
                    _instructions()])


def _instructions() -> str:
  """Returns the instructions of the processor: a program for others would end this process."""
  try:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
  except OSError:  # not Linux
    return platform.processor()
  return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _path(text: str, ending: str) -> Path:
  return _place[0] / (hashlib.sha256(text.encode()).hexdigest()[:40] + ending)


def _link_target(link: Path) -> Path | None:
  try:
    return link.parent / link.read_text()
  except (OSError, ValueError):
    return None


def _read(path: Path | None) -> Callable | None:
  """Returns the program of a file; None if there is none, or none that can be read, which is
  removed.
  """
  try:
    content = b"" if path is None else path.read_bytes()
  except OSError:
    content = b""
  if not content:
    return None
  try:
    numbers, *parts = pickle.loads(content)
    devices = {device.id: device for device in jax.devices()}
    return executables.deserialize_and_load(
        *parts, execution_devices=[devices[number] for number in numbers])
  except Exception as error:  # torn, or of a form that this version does not know
    logger.info("%s cannot be read (%s: %s): compiled again", path, type(error).__name__, error)
    with contextlib.suppress(OSError):
      path.unlink()
    return None


def _write(path: Path, program: jax.stages.Compiled) -> None:
  """Keeps a program, if its device can."""
  try:
    devices = [device.id for device in program.runtime_executable().local_devices()]
    content = pickle.dumps((devices, *executables.serialize(program)))
  except Exception as error:  # not every backend and not every type of a tree can
    logger.info("a program is not kept: %s: %s", type(error).__name__, error)
    return
  _write_atomically(path, content)


def _write_atomically(path: Path, content: bytes) -> None:
  """Writes a file; a folder that cannot be written is as good as none."""
  with contextlib.suppress(OSError):
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".partial")
    with os.fdopen(handle, "wb") as file:
      file.write(content)
    os.replace(temporary, path)
