"""How tests, and the commands that they start, compile: fast, as their programs run for
milliseconds.
"""

import importlib.metadata
import os
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


def shared_folder() -> Path:
  """Returns the folder of compiled programs for the commands of one session of tests.

  The processes of pytest-xdist inherit it from the one that started them.
  """
  if FOLDER not in os.environ:
    os.environ[FOLDER] = tempfile.mkdtemp(prefix="jaxrl_llm_programs_")
  return Path(os.environ[FOLDER])
