"""What colab/install.py asks pip for: JAX stays, or is replaced for the same accelerator."""

import importlib.util
import subprocess
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "colab" / "install.py"
COLAB = {"jax": "0.10.1", "jaxlib": "0.10.1", "jax-cuda12-plugin": "0.10.1"}


@pytest.fixture
def install(monkeypatch, tmp_path):
  """The module, with a root of its own and `asked`: the commands that it would have run."""
  spec = importlib.util.spec_from_file_location("colab_install", PATH)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  module.asked, module.failing = [], ""

  def run(command, check):
    text = " ".join(map(str, command))
    module.asked.append(text)
    fails = bool(module.failing) and module.failing in text
    return subprocess.CompletedProcess(command, int(fails))

  monkeypatch.setattr(module, "ROOT", tmp_path)
  monkeypatch.setattr(module, "installed", COLAB.copy)
  monkeypatch.setattr(module.subprocess, "run", run)
  return module


def pip(module) -> list[str]:
  return [command for command in module.asked if " pip " in command]


def test_jax_is_held(install, tmp_path):
  install.main("main")
  (command,) = pip(install)
  constraints = tmp_path / "build" / "constraints.txt"
  assert f"{tmp_path}[colab] -c {constraints}" in command
  assert constraints.read_text().split() == [
      "jax==0.10.1", "jax-cuda12-plugin==0.10.1", "jaxlib==0.10.1"]


def test_jax_that_is_too_old_is_replaced_for_the_same_accelerator(install, capsys):
  install.failing = "constraints.txt"
  install.main("main")
  assert len(pip(install)) == 2
  assert "[colab,cuda12]" in pip(install)[-1] and "-c" not in pip(install)[-1].split()
  assert "restart the session" in capsys.readouterr().out


@pytest.mark.parametrize("build, extras", [
    ({}, "colab"), ({"libtpu": "0.0.20"}, "colab,tpu"),
    ({"jax-cuda13-plugin": "0.10.1"}, "colab,cuda13"),
    (COLAB, "colab,cuda12"),
])
def test_the_build_is_that_of_the_runtime(install, build, extras):
  assert install.extras(build) == extras


def test_an_unknown_commit_is_one_line(install):
  install.failing = "checkout"
  with pytest.raises(SystemExit, match="COMMIT = 'nowhere' is not in this repository"):
    install.main("nowhere")
  assert not pip(install)
