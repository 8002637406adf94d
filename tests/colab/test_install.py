"""What colab/install.py asks pip for: JAX stays, or is replaced for the same accelerator."""

import subprocess
from pathlib import Path

import experiment_files
import pytest

PATH = Path(__file__).parents[2] / "colab" / "install.py"
COLAB = {"jax": "0.10.1", "jaxlib": "0.10.1", "jax-cuda12-plugin": "0.10.1", "numpy": "2.0.2"}


@pytest.fixture
def install(monkeypatch, tmp_path):
  """The module, with a root of its own and `asked`: the commands that it would have run."""
  module = experiment_files.load(PATH)
  module.asked, module.failing = [], ""
  (tmp_path / ".git").mkdir()

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
  constraints = tmp_path / "build" / "jax.txt"
  assert f"{tmp_path}[colab] -c {constraints}" in command
  assert constraints.read_text().split() == [
      "jax==0.10.1", "jax-cuda12-plugin==0.10.1", "jaxlib==0.10.1", "numpy==2.0.2"]


def test_jax_that_is_too_old_is_replaced_for_the_same_accelerator(install, tmp_path, capsys):
  """NumPy, which the session has loaded, stays: the newest JAX may ask for a newer one."""
  install.failing = "jax.txt"
  install.main("main")
  assert len(pip(install)) == 2
  assert f"[colab,cuda12] -c {tmp_path / 'build' / 'arrays.txt'}" in pip(install)[-1]
  assert (tmp_path / "build" / "arrays.txt").read_text() == "numpy==2.0.2\n"
  printed = capsys.readouterr().out
  assert "restart the session" in printed and "numpy" not in printed


def test_an_upload_is_installed_as_it_is(install, tmp_path, capsys):
  (tmp_path / ".git").rmdir()
  install.main("main")
  assert len(install.asked) == 1 and install.asked == pip(install), "git is not called"
  assert "is no clone" in capsys.readouterr().out


@pytest.mark.parametrize("build, extras", [
    ({}, "colab"), ({"libtpu": "0.0.20"}, "colab,tpu"),
    ({"jax-cuda13-plugin": "0.10.1"}, "colab,cuda13"),
    (COLAB, "colab,cuda12"),
])
def test_the_build_is_that_of_the_runtime(install, build, extras):
  assert install.extras(build) == extras


def test_a_branch_is_as_new_as_its_repository(tmp_path, monkeypatch):
  """A clone's own branch stays where it was, so the notebook would go on with old code."""
  git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C"]
  origin, clone = tmp_path / "origin", tmp_path / "clone"
  commit = [*git, origin, "commit", "-q", "--allow-empty", "-m", "x"]
  subprocess.check_call(["git", "init", "-q", "-b", "main", origin])
  subprocess.check_call(commit)
  subprocess.check_call(["git", "clone", "-q", origin, clone])
  subprocess.check_call(commit)
  newest = subprocess.check_output([*git, origin, "rev-parse", "HEAD"])
  module = experiment_files.load(PATH)
  monkeypatch.setattr(module, "ROOT", clone)
  monkeypatch.setattr(module, "install", lambda *_: True)
  for wanted in ("main", newest.decode().strip()):
    module.main(wanted)
    assert subprocess.check_output([*git, clone, "rev-parse", "HEAD"]) == newest
