"""Each module has a test: the mirrored file, one that imports it, or the one that is listed
here.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"
PACKAGE, CLIENTS = ROOT / "jaxrl_llm", ("commands", "families", "planning", "tables_lib", "papers",
                                        "report", "tasks", "writers")
# Modules that tests reach through others: the folder or file below jaxrl_llm/ or, with the clients,
# below the repository, and the test that fails when it is wrong. The longest name counts.
COVERED = {
    "config": "test_config.py",
    "grading": "grading/test_verifiers.py",
    "late.py": "test_loaded_lines.py",
    "method_numbers.py": "test_config.py",
    "models/families": "models/hf/test_families.py",
    "models/hf/errors.py": "models/hf/test_hf_bad_input.py",
    "models/hf/pretrained.py": "models/hf/test_hf_parity.py",
    "models/hf/export_weights.py": "models/hf/test_hf_parity.py",
    "models/hf/extra_tensors.py": "models/hf/test_hf_parity.py",
    "models/hf/gguf_tokenizer.py": "models/hf/test_gguf.py",
    "models/hf/tensor_names.py": "models/hf/test_hf_parity.py",
    "objective/advantages": "objective/test_advantages.py",
    "ops/routing.py": "rollouts/test_routing.py",
    "objective/estimators": "objective/test_estimators.py",
    "objective/plugin_checks.py": "test_broken_plugins.py",
    "objective/step_size.py": "training/test_transform_methods.py",
    "ops/prefix_tree.py": "objective/test_tempo.py",
    "ops/ranked.py": "ops/test_masked.py",
    "parallel/crossings.py": "training/test_devices.py",
    "parallel/layouts.py": "training/test_devices.py",
    "rollouts/assembly.py": "rollouts/test_engine.py",
    "rollouts/backends.py": "runs/test_backends.py",
    "rollouts/engine_sampler.py": "runs/test_one_environment.py",
    "rollouts/environment_table.py": "rollouts/test_environment.py",
    "rollouts/sample_functions.py": "runs/test_backends.py",
    "rollouts/server": "rollouts/server/test_server_sampler.py",
    "rollouts/tools/registry.py": "rollouts/tools/test_tool_table.py",
    "runs/carried.py": "training/test_transforms.py",
    "sandbox": "sandbox/test_python_sandbox.py",
    "store/files.py": "reporting/test_reporting.py",
    "tasks": "tasks/test_dataset.py",
    "tasks/demonstration_file.py": "runs/test_demonstrations.py",
    "tasks/keys.py": "test_config.py",
    "tasks/procedural.py": "tasks/test_task_contract.py",
    "tasks/reward_calls.py": "tasks/test_reward_plugins.py",
    "tasks/verifiers.py": "test_public_names.py",
    "training/micro_batches.py": "training/test_train_step.py",
    "training/teachers.py": "runs/test_teachers.py",
    "wiring": "runs/test_resolve.py",
    "experiments/commands/buckets/checkpoints.py": "runs/test_bucket_run.py",
    "experiments/commands/command_flags.py": "experiments/commands/test_command_line.py",
    "experiments/planning/chains.py": "experiments/planning/test_hlo.py",
    "experiments/planning/model_flops.py": "experiments/planning/test_flops.py",
    "experiments/planning/sampler_programs.py": "experiments/planning/test_plan.py",
    "experiments/report": "reporting/test_reporting.py",
    "experiments/tables_lib/arena": "experiments/tables_lib/arena/test_arena_sweeps.py",
    "experiments/tables_lib/benchmark": "experiments/tables_lib/benchmark/test_benchmark.py",
    "experiments/tables_lib/exact": "experiments/tables_lib/exact/test_exact_command.py",
    "experiments/tables_lib/generators.py": "experiments/papers/tvm/test_search.py",
    "experiments/tables_lib/method_text.py": "experiments/tables_lib/test_compare.py",
    "experiments/tables_lib/plots.py": "experiments/tables_lib/test_compare.py",
    "experiments/tables_lib/sweep_cells.py": "experiments/tables_lib/test_sweeps.py",
    "experiments/papers": "experiments/papers/test_pages.py",
}


def imported(source: str) -> set[str]:
  names = set()
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.ImportFrom) and node.module:
      names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    elif isinstance(node, ast.Import):
      names |= {alias.name for alias in node.names}
  return names


def uncovered(modules: list[str], tests: dict[str, str], covered: dict[str, str]) -> list[str]:
  """Modules without a test.

  Args:
    modules: paths below jaxrl_llm/ or, of the clients, below the repository.
    tests: path below tests/ to the source of each test file.
    covered: as COVERED.
  """
  imports = set().union(*map(imported, tests.values()))
  rest = []
  for module in modules:
    folder, _, name = module.rpartition("/")
    dotted = module.removesuffix(".py").replace("/", ".")
    dotted = dotted if module.startswith("experiments/") else f"jaxrl_llm.{dotted}"
    listed = [key for key in covered if module == key or module.startswith(f"{key}/")]
    test = covered[max(listed, key=len)] if listed else ""
    if f"{folder}/test_{name}".lstrip("/") in tests or dotted in imports or test in tests:
      continue
    rest.append(module)
  return rest


def all_modules() -> list[str]:
  paths = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")]
  paths += [path.relative_to(ROOT) for client in CLIENTS
            for path in (ROOT / "experiments" / client).rglob("*.py")]
  return [path.as_posix() for path in paths if path.name not in ("__init__.py", "__main__.py")]


def all_tests() -> dict[str, str]:
  return {path.relative_to(TESTS).as_posix(): path.read_text() for path in TESTS.rglob("test_*.py")}


def test_every_module_has_a_test():
  assert uncovered(all_modules(), all_tests(), COVERED) == []


def test_the_list_names_what_is_there():
  """A folder or module that is gone leaves the list, and so does a test."""
  modules = all_modules()
  gone = [key for key in COVERED if not any(f"{m}/".startswith(f"{key}/") for m in modules)]
  assert gone == [] and set(COVERED.values()) - set(all_tests()) == set()


def test_a_module_without_a_test_is_noticed():
  tests = {"ops/test_a.py": "import jaxrl_llm.ops.b", "test_c.py": ""}
  modules = ["ops/a.py", "ops/b.py", "ops/c.py", "store/d.py"]
  assert uncovered(modules, tests, {"ops/c.py": "test_c.py"}) == ["store/d.py"]
  assert uncovered(modules, tests, {"ops/c.py": "test_gone.py"}) == ["ops/c.py", "store/d.py"]
