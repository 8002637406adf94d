"""The private parts of JAX that the package uses are where it looks for them."""

import ast
import inspect
from pathlib import Path

import jax

import jaxrl_llm
from experiments.commands import start_up
from jaxrl_llm.parallel import jax_private

PACKAGE = Path(jaxrl_llm.__file__).parent


def private_imports(source: str) -> bool:
  """Whether a file imports from `jax._src` or `jaxlib`."""
  names = []
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      names += [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      names.append(node.module or "")
  return any(name.startswith(("jax._src", "jaxlib")) for name in names)


def test_only_two_files_know_private_modules():
  files = [path.name for folder in (PACKAGE, Path(start_up.__file__).parent)
           for path in folder.rglob("*.py") if private_imports(path.read_text())]
  assert files == ["jax_private.py", "start_up.py"]
  assert private_imports("def f():\n  from jax._src import x")


def test_they_are_there_and_take_what_is_given():
  from jax._src import clusters, distributed

  detect = clusters.ClusterEnv.auto_detect_unset_distributed_params
  inspect.signature(detect).bind(None, None, None, None, None, 1)
  assert hasattr(distributed.global_state, "client"), f"jax {jax.__version__} moved the client"


def test_a_single_process_has_no_client_and_no_place(monkeypatch):
  for name in ("JAX_COORDINATOR_ADDRESS", "SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST"):
    monkeypatch.delenv(name, raising=False)
  assert jax_private.key_value_client() is None
  assert start_up._launched_place(None, 1)[0] is None
