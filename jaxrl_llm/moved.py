"""Modules under the names that they had before: what a user imported stays importable.

The table says where each is now; CHANGELOG.md shows it. An old name gives the same module object as
the new one, which is imported when the old name is.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types

_TABLE = (  # (package before, package now, modules; "before:now" where the name changed)
    ("", "parallel", "processes"),
    ("analysis", "benchmark", "benchmark benchmark_metrics"),
    ("analysis", "lab",
     "accuracy chains fitting gradient_noise notebook planted "
     "published seed_results sweeps"),
    ("analysis", "lab.atlas", "atlas atlas_panels atlas_tables coefficients"),
    ("analysis", "lab.exact",
     "comparisons exact exact_gradient exact_group figures monte_carlo studies study_tables"),
    ("analysis", "lab.replay", "frozen replay replay_report replay_run"),
    ("models", "models.hf",
     "hf_beside:extra_tensors hf_config:network_config hf_defaults:recommended_sampling "
     "hf_export:export_weights hf_import:import_weights hf_names:tensor_names peft "
     "peft_import:import_adapters safetensors_files"),
    ("processes", "parallel", "exchanges roll_call start_up"),
    ("reporting", "store", "files"),
    ("rollouts.tools", "sandbox",
     "isolation linux python_sandbox results sandbox_child sandbox_process sandbox_server "
     "sandbox_worker seccomp"),
    ("runs", "build",
     "demonstrations device_checks evaluation_sets learner method_checks resolve "
     "samplers saved scoring server_checks setup shared_starts warm_start"),
    ("rollouts", "rollouts", "book:rollout_table"),
    ("runs", "runs", "prompt_batch:rollout_batch"),
    ("runs", "store", "cache checkpoints disk fingerprints lock signals workdir"),
    ("tasks", "grading",
     "comparisons extraction grading inequalities latex quantities units verifier_pool "
     "verifier_worker verifiers"),
)


def _module_path(package: str, module: str) -> str:
  return ".".join(filter(None, ("jaxrl_llm", package, module)))


def _modules() -> dict[str, str]:
  pairs = {}
  for before, now, names in _TABLE:
    for name in names.split():
      old, _, new = name.partition(":")
      pairs[_module_path(before, old)] = _module_path(now, new or old)
  return pairs


MODULES = _modules()  # name before -> name now
# Packages that no longer exist.
PACKAGES = ("jaxrl_llm.analysis",)


class _Aliases(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Finds the names of the table; all others are left to later finders."""

  def find_spec(self, fullname, path=None, target=None):
    del path, target
    if fullname in MODULES:
      return importlib.machinery.ModuleSpec(fullname, self)
    if fullname in PACKAGES:
      return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
    return None

  def create_module(self, spec):
    if spec.name in PACKAGES:
      return types.ModuleType(spec.name)
    module = importlib.import_module(MODULES[spec.name])
    if any(name.startswith(f"{spec.name}.") for name in MODULES):
      module.__path__ = []  # it was a package, whose modules this finder knows
    spec.loader_state = module.__spec__  # the import system replaces it by the alias's
    return module

  def exec_module(self, module):
    spec = module.__spec__
    if spec.loader_state is not None:
      module.__spec__ = spec.loader_state


def install() -> None:
  """Lets the old names be imported; once is enough."""
  if not any(isinstance(finder, _Aliases) for finder in sys.meta_path):
    sys.meta_path.append(_Aliases())
