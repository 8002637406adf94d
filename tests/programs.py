"""How tests, and the commands that they start, compile: fast, as their programs run for
milliseconds.
"""

import atexit
import functools
import importlib.metadata
import os
import shutil
import tempfile
from pathlib import Path

FOLDER = "JAXRL_LLM_TEST_PROGRAMS"


def _flags() -> str:
  flags = "--xla_backend_optimization_level=0"
  if importlib.metadata.version("jax").startswith("0.10."):
    # Half of the time to compile; later versions end at the flag, which they do not know.
    flags += " --xla_cpu_use_fusion_emitters=false"
  return flags


FLAGS = _flags()
_FOLDERS = [str(Path(__file__).parent / "without_torch"), os.environ.get("PYTHONPATH")]
# Of the commands that tests start.
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": FLAGS,
               "PYTHONPATH": os.pathsep.join(filter(None, _FOLDERS))}


@functools.cache
def shared_folder() -> Path:
  """Returns the folder of compiled programs for tests and the commands that they start.

  It is that of the environment, where several runs of pytest share one, or one of this run, which
  is removed at its end. The processes of pytest-xdist inherit it from the one that started them.
  """
  if FOLDER not in os.environ:
    os.environ[FOLDER] = tempfile.mkdtemp(prefix="jaxrl_llm_programs_")
    atexit.register(shutil.rmtree, os.environ[FOLDER], ignore_errors=True)
  return Path(os.environ[FOLDER])


def environment(**more: str) -> dict[str, str]:
  """Returns the variables of a command that shares the compiled programs."""
  return os.environ | ENVIRONMENT | {
      "JAX_COMPILATION_CACHE_DIR": str(shared_folder()),
      "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
      "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"} | more


def share() -> None:
  """Makes this process keep its programs in that folder, and take them from there."""
  import jax  # it reads variables that conftest.py sets first

  for name, value in {"compilation_cache_dir": str(shared_folder()),
                      "persistent_cache_min_compile_time_secs": 0.0,
                      "persistent_cache_min_entry_size_bytes": -1}.items():
    jax.config.update(f"jax_{name}", value)
