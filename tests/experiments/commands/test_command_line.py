"""Mistakes in a command's flags end in one line, and freed memory leaves a command."""

import os
import subprocess
import sys
import unittest.mock

import command
import numpy as np
import pytest
from absl import flags
from ml_collections import config_flags

from experiments.commands import command_flags, command_line, out_of_memory
from experiments.tasks import tool_arithmetic  # noqa: F401  it registers a task
from jaxrl_llm.config import ConfigError
from jaxrl_llm.registry import REWARDS
from jaxrl_llm.store import checkpoints
from jaxrl_llm.store.signals import Terminated


@pytest.mark.parametrize("values, rest, texts", [
    ({}, ["config=a.py", "workdir=b"], ["config=a.py workdir=b", "--<flag>=<value>"]),
    ({"config": "a"}, ["runs/a"], ["runs/a: no flag"]),
    ({"config": "a"}, [], ["--workdir is not given"]),
    ({"config": "a", "workdir": ""}, [], ["--workdir= is empty", "--workdir=<a folder>"]),
    ({"config": "a", "workdir": "s3://b/c"}, [], ["--workdir=s3://b/c", "gs://<bucket>/<folder>"]),
    ({"config": "a", "workdir": "gs://bucket"}, [], ["--workdir=gs://bucket: no folder"]),
])
def test_arguments_are_refused_in_one_line(monkeypatch, values, rest, texts):
  given = flags.FlagValues()
  for name in ("config", "workdir"):
    flags.DEFINE_string(name, values.get(name), "text", flag_values=given)
  given.mark_as_parsed()
  monkeypatch.setattr(command_flags.flags, "FLAGS", given)
  with pytest.raises(ConfigError) as error:
    command_flags.check(rest, ("config", "workdir"), ("workdir",))
  assert all(text in str(error.value) for text in texts) and "\n" not in str(error.value)


@pytest.mark.parametrize("error, status", [
    (FloatingPointError("the gradient is not finite"), command_line.ENDED_EARLY),
    (ValueError("no such folder"), 1)])
def test_only_what_a_run_came_to_has_the_status_of_an_early_end(monkeypatch, capsys, error, status):
  monkeypatch.setattr(command_line.app, "run", unittest.mock.Mock(side_effect=error))
  with pytest.raises(SystemExit) as ended:
    command_line.run(lambda: None, (), (), errors=(ValueError, FloatingPointError),
                     early=(FloatingPointError,))
  assert ended.value.code == status and capsys.readouterr().err == f"error: {error}\n"


@pytest.mark.slow
@pytest.mark.parametrize("first, loaded", [("pass", []), ("import matplotlib", ["matplotlib"])])
def test_a_run_starts_without_what_it_does_not_need(first, loaded):
  """PyTorch never; matplotlib for the report."""
  code = (f"import sys\n{first}\nimport jaxrl_llm.runs.trainer, experiments.commands.command_line\n"
          "print([name for name in ('matplotlib', 'torch') if name in sys.modules])")
  env = {**os.environ, "PYTHONPATH": str(command.ROOT)}
  done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
  assert done.returncode == 0 and done.stdout.strip() == str(loaded), done.stderr


def test_importing_is_quiet_without_torch(tmp_path):
  """transformers says at its import that it found no PyTorch; nobody needs it here."""
  (tmp_path / "sitecustomize.py").write_text(
      "import importlib.util\nfound = importlib.util.find_spec\n"
      "importlib.util.find_spec = lambda name, *a: None if name == 'torch' else found(name, *a)\n")
  folders = [str(tmp_path), str(command.ROOT), os.environ.get("PYTHONPATH")]
  env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
  loud = {name: value for name, value in env.items() if not name.startswith("TRANSFORMERS_")}
  for first, words in (("import jaxrl_llm", 0), ("pass", 1)):
    code = f"{first}\nimport transformers\nassert not transformers.is_torch_available()"
    done = subprocess.run([sys.executable, "-c", code], env=loud, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("PyTorch was not found") == words, done.stderr


@pytest.mark.parametrize("flag, plugins", [
    ("--config.plugins={mine}", ("{mine}", "experiments.tasks.tool_arithmetic")),
    ("--config.task.name=modular_chain", ("experiments.tasks.tool_arithmetic",)),
    ("--config.seed=1", ("experiments.tasks.tool_arithmetic",))])
def test_a_config_keeps_the_plugin_of_its_task(tmp_path, monkeypatch, flag, plugins):
  """Beside those of a flag, which replaces the file's list."""
  mine, values = tmp_path / "mine.py", flags.FlagValues()
  mine.write_text("from jaxrl_llm import register\n\n\n"
                 "@register.tool('idle', replace=True)\nclass Idle:\n  pass\n")
  choice = config_flags.DEFINE_config_file("config", flag_values=values)
  monkeypatch.setattr(command_flags.flags, "FLAGS", values)
  arguments = ["main", f"--config={command.ROOT / 'configs/quickstart_tools.py'}",
               flag.format(mine=mine)]
  monkeypatch.setattr(sys, "argv", arguments)
  command_flags.parse(arguments)
  config = command_flags.config_of(choice)
  assert config.plugins == tuple(plugin.format(mine=mine) for plugin in plugins)


BROKEN = {
    "no python": ("hello world\n", "line 1: SyntaxError"),
    "raises": ("def get_config():\n  raise ValueError('why')\n", "line 2, get_config: ValueError"),
    "exits": ("import sys\nsys.exit(0)\n", "line 2, <module>: SystemExit: 0"),
    "absent package": ("import no_such_package\n", "line 1, <module>: ModuleNotFoundError"),
    "wrong arguments": ("def get_config(a, b):\n  pass\n", "TypeError"),
    "null byte": ("x = 1\0\n", "null bytes"),
    "returns nothing": ("def get_config():\n  pass\n", "get_config() returned None"),
    "absent": (None, "no file there"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_config_file_is_one_line(tmp_path, monkeypatch, name, capfd):
  content, text = BROKEN[name]
  path = tmp_path / "broken.py"
  if content is not None:
    path.write_text(content)
  flag_values = flags.FlagValues()
  config_flags.DEFINE_config_file("config", flag_values=flag_values)
  monkeypatch.setattr(command_flags.flags, "FLAGS", flag_values)
  with pytest.raises(ConfigError) as error:
    command_flags.parse(["main", f"--config={path}"])
  message = str(error.value)
  assert "\n" not in message and "broken.py" in message and text in message, message
  assert capfd.readouterr().err == "", "the error is the one line"


@pytest.mark.parametrize("argument", [
    "--config.rollout.group-size=4", "--config.evaluation.sets.a/b.path=x", "--config.=5",
    "--config.rollout.=5", "--config..prompts=3", "--config.rollout[prompts]=3",
    "--config.rollout.class=3", "--config.rollout.größe=3", "--config.a b=3"])
def test_a_key_that_is_no_name_is_one_line(argument):
  with pytest.raises(ConfigError, match="is no key; keys are names"):
    command_flags.check_keys(["main", argument])


@pytest.mark.parametrize("error, lines", [
    (KeyboardInterrupt(), 0), (Terminated(), 0), (RuntimeError("Event loop is closed"), 0),
    (RuntimeError("another"), 1), (SystemExit(3), 1)], ids=repr)
def test_what_a_destructor_raises_is_printed_if_nothing_else_tells(error, lines, capsys):
  class Raises:
    def __del__(self):
      raise error

  hook, sys.unraisablehook = sys.unraisablehook, command_line._report
  try:
    Raises()
  finally:
    sys.unraisablehook = hook
  assert capsys.readouterr().err.count("Traceback") == lines


@pytest.mark.parametrize("file, purpose, key", [
    ("rollouts/engine.py", "in the rollouts", "rollout.slots"),
    ("runs/evaluate.py", "in an evaluation", "rollout.max_new_tokens"),
    ("training/train_step.py", "in an update", "updates.micro_batches"),
    ("models/hf/import_weights.py", "of weights", "parameters.train=lora"),
    ("store/checkpoints.py", "of weights", "mesh.fsdp"),
    ("wiring/warm_start.py", "in the warm start", "warm_start.micro_batches"),
    ("reporting/writers.py", "out of memory, ", "updates.token_budget")])
@pytest.mark.parametrize("text, size", [
    ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 25769803776 bytes.", "24.00 GiB"),
    ("RESOURCE_EXHAUSTED: Ran out of memory in space hbm.\nUsed 20.50G of 15.48G", "20.50G")])
def test_out_of_memory_is_one_line_with_size_and_keys(monkeypatch, capsys, file, purpose, key, text,
                                                      size):
  scope = {}
  source = f"def fail():\n  raise RuntimeError({text!r})"
  exec(compile(source, str(out_of_memory.PACKAGE / file), "exec"), scope)
  monkeypatch.setattr(command_line.app, "run", lambda *_, **__: scope["fail"]())
  with pytest.raises(SystemExit) as end:
    command_line.run(lambda: None, (), (), ())
  (line,) = capsys.readouterr().err.splitlines()
  assert end.value.code == 1 and line.startswith("error: out of memory")
  assert size in line and key in line and "Fix: " in line
  assert purpose in line or "20.50G" == size


def test_no_place_takes_an_error_of_memory_for_its_own(tmp_path, monkeypatch):
  """A checkpoint for which there is no room is not torn, and no plugin is to blame."""
  def fail(*_, **__):
    raise RuntimeError("RESOURCE_EXHAUSTED: 9 bytes")

  with pytest.raises(RuntimeError, match="RESOURCE"), REWARDS.blamed("task"):
    fail()
  checkpoints.save_params(tmp_path / "x", {"a": np.ones(2)})
  monkeypatch.setattr(checkpoints.ocp, "Checkpointer", fail)
  with pytest.raises(RuntimeError, match="RESOURCE"):
    checkpoints.restore_part(tmp_path / "x", {"a": np.ones(2)}, "none")
  monkeypatch.setattr(checkpoints, "is_exhausted", lambda error: False)  # what is rejected
  with pytest.raises(checkpoints.TornCheckpointsError):
    checkpoints.restore_part(tmp_path / "x", {"a": np.ones(2)}, "none")


@pytest.mark.parametrize("text, read", [
    (r"Q: {problem}\nA:", "Q: {problem}\nA:"), (r"a\r\nb", "a\nb"), (r"\n\n", "\n\n"),
    (r"in \boxed{}.\nthink", "in \\boxed{}.\nthink"), (r"{problem}\n", "{problem}\n"),
    (r"A:\t{problem}", "A:\t{problem}"), (("\\n", r"\n###"), ("\n", "\n###")),
    *((text, text) for text in (r"\nu", r"$\nu=3$", r"\neq 0", r"\not\in", r"\nabla f", r"\text{x}",
                                r"\times 2", r"\boxed{}", r"1\\n", "plain", ()))])
def test_breaks_of_a_flag_are_breaks_and_latex_stays(text, read):
  assert command_flags.with_breaks(text) == read
  wrong = text.replace("\\n", "\n") if isinstance(text, str) else text
  assert text != r"\nu" or wrong != read, "the wrong version: every backslash and n"


def test_an_exit_in_a_plugin_ends_no_run_in_silence(monkeypatch, capsys):
  def exited(*_, **__):
    with command_line._exits_named():
      sys.exit(0)

  monkeypatch.setattr(command_line.app, "run", exited)
  with pytest.raises(SystemExit) as ended:
    command_line.run(lambda: None, (), (), errors=())
  assert ended.value.code == 1 and "sys.exit(0) would end the run" in capsys.readouterr().err


RESIDENT = """
import os
import sys
import jax
import numpy as np
from experiments.commands import command_line

def resident():
  return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

"""
# Large arrays between small ones that stay: a heap could not shrink below the last of them.
MEMORY_PROGRAM = RESIDENT + """
if sys.argv[1] == "set":
  command_line.return_large_arrays()
before = resident()
np.ones(31 << 20, np.uint8)  # freed: raises glibc's threshold
pairs = [(np.ones(8 << 20, np.uint8), np.ones(1 << 16, np.uint8)) for _ in range(32)]
small = [pair[1] for pair in pairs]
del pairs
print(resident() - before)
"""


# Gaps of a heap, and then an event of JAX that took sys.argv[1] seconds.
HEAP_PROGRAM = RESIDENT + """
command_line.return_freed_memory()
before = resident()
pairs = [(np.ones(1 << 16, np.uint8), np.ones(16, np.uint8)) for _ in range(4096)]
last = [pair[1] for pair in pairs]
del pairs
jax.monitoring.record_event_duration_secs("/jax/any", float(sys.argv[1]))
print(resident() - before)
"""


def kept_mebibytes(program: str, argument: str, **variables: str) -> float:
  environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")} | variables
  return float(subprocess.run([sys.executable, "-c", program, argument], text=True,
                              stdout=subprocess.PIPE, check=True, env=environment).stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_freed_arrays_leave_the_process():
  if kept_mebibytes(MEMORY_PROGRAM, "unset") < 200:
    pytest.skip("this C library gives freed arrays back by itself")
  assert kept_mebibytes(MEMORY_PROGRAM, "set") < 20
  assert kept_mebibytes(MEMORY_PROGRAM, "set", MALLOC_MMAP_THRESHOLD_="100000000") > 200


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_a_long_event_returns_what_is_free():
  if kept_mebibytes(HEAP_PROGRAM, "0.5") < 200:
    pytest.skip("this C library gives a heap's gaps back by itself")
  assert kept_mebibytes(HEAP_PROGRAM, "1.5") < 40
