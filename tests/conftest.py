"""Eight CPU devices, and shapes and dtypes of the maths checked against its annotations."""

import collections
import gc
import logging
import os
import signal
import sys
import threading
from pathlib import Path

import programs

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + f" --xla_force_host_platform_device_count=8 {programs.FLAGS}")
os.environ["JAX_PLATFORMS"] = "cpu"
# An installed TPU compiler would look for the machine's TPUs, and complain in every command.
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["JAXRL_LLM_CACHE"] = ""  # tests neither read nor fill the user's folder

# A shell that starts tests in the background ignores Ctrl-C for them, and for the runs that they
# start and interrupt.
if (threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.SIG_IGN):
  signal.signal(signal.SIGINT, signal.default_int_handler)

import jax
import pytest
from jaxtyping import install_import_hook
from suites import LONG

# Each test leaves cycles, but few, and a worker's heap is large: a twentieth of a session's time.
gc.set_threshold(100_000, 20, 50)
programs.share()  # before the workers start, which inherit the folder's name
HERE = Path(__file__).parent
# Beginnings of the names of modules that register something when they are imported.
PLUGINS = ("jaxrl_llm_plugin_", "experiments.papers", "experiments.smollm2.chains",
           "experiments.smollm2.questions", "experiments.smollm2.lengths")
_HOOK = install_import_hook(["jaxrl_llm.ops", "jaxrl_llm.objective"], "beartype.beartype")


def _registries_as_they_were():
  from jaxrl_llm import registry

  tables, before = [*registry.TABLES], []
  for table in tables:
    table.names()  # the package's own entries
    before.append(dict(table.entries))
  modules = set(sys.modules)
  yield
  for table, entries in zip(tables, before, strict=True):
    table.entries.clear()
    table.entries.update(entries)
  for name in set(sys.modules) - modules:
    if name.startswith(PLUGINS):
      del sys.modules[name]


def pytest_collection_modifyitems(items):
  items.sort(key=lambda item: _rank(item.path.relative_to(HERE).as_posix()))


def _rank(file: str) -> int:
  return LONG.index(file) if file in LONG else len(LONG)


# What a test, or a fixture of its module, registers is gone with it: no test depends on those that
# ran before it.
after_each_module = pytest.fixture(_registries_as_they_were, scope="module", autouse=True)
after_each_test = pytest.fixture(_registries_as_they_were, autouse=True)


@pytest.fixture(autouse=True)
def process_settings():
  """Levels and filters of the libraries' loggers, and the hooks of uncaught errors, are restored: a
  command that a test runs in this process changes them for its own end.
  """
  loggers = [logging.getLogger(name) for name in (None, "absl", "asyncio", "jaxrl_llm")]
  before = [(logger, logger.level, list(logger.filters)) for logger in loggers]
  hooks = sys.unraisablehook, threading.excepthook
  yield
  sys.unraisablehook, threading.excepthook = hooks
  for logger, level, filters in before:
    logger.setLevel(level)
    logger.filters[:] = filters


@pytest.fixture
def compiled():
  """Programs compiled from here on, counted by name."""
  names = collections.Counter()

  def count(event, duration, fun_name="", **_):
    del duration
    if event == "/jax/core/compile/backend_compile_duration":
      names[fun_name] += 1

  jax.monitoring.register_event_duration_secs_listener(count)
  yield names
  jax.monitoring.unregister_event_duration_listener(count)
