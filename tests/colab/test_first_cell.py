"""The first cell of a notebook: a clone, an upload, or one line that says what to fill in."""

import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

COLAB = Path(__file__).parents[2] / "colab"


def shell_lines(name: str) -> list[str]:
  """The shell commands of the first code cell, with the values of its Python lines."""
  cells = json.loads((COLAB / f"{name}.ipynb").read_text())["cells"]
  source = "".join(next(cell for cell in cells if cell["cell_type"] == "code")["source"])
  values: dict[str, str] = {}
  exec("\n".join(line for line in source.splitlines() if line[0] not in "!%"), values)
  return [line[1:].replace("$REPOSITORY", values["REPOSITORY"]).replace("{COMMIT}",
                                                                        values["COMMIT"])
          for line in source.splitlines() if line.startswith("!")]


def run(name: str, content: Path, git: str) -> str:
  """What the cell prints in a Colab whose /content is `content` and whose git is this script."""
  tools = content.parent / "tools"
  tools.mkdir()
  (tools / "git").write_text(f"#!/bin/sh\n{git}\n")
  (tools / "git").chmod(0o755)
  path = f"{tools}{os.pathsep}{os.environ['PATH']}"
  lines = [line.replace("/content", str(content)) for line in shell_lines(name)]
  done = [subprocess.run(line, shell=True, cwd=content.parent, env={**os.environ, "PATH": path},
                         capture_output=True, text=True) for line in lines]
  return "".join(step.stdout + step.stderr for step in done)


def installer(folder: Path) -> None:
  (folder / "colab").mkdir(parents=True)
  (folder / "colab" / "install.py").write_text("import sys\nprint('installed', sys.argv[1])\n")


@pytest.mark.parametrize("name", ["quickstart", "reproduce_tables"])
@pytest.mark.parametrize("case", ["nothing", "upload", "clone"])
def test_the_first_cell(tmp_path, name, case):
  content = tmp_path / "content"
  content.mkdir()
  if case == "upload":  # as GitHub packs it
    installer(tmp_path / "jaxrl_llm-main")
    with zipfile.ZipFile(content / "jaxrl_llm.zip", "w") as file:
      file.write(tmp_path / "jaxrl_llm-main" / "colab" / "install.py",
                 "jaxrl_llm-main/colab/install.py")
  installer(tmp_path / "origin")
  git = "cp -r ../origin jaxrl_llm" if case == "clone" else "echo fatal: not found >&2; exit 128"
  printed = run(name, content, git)
  assert printed == ("Fill in OWNER, or upload\n" if case == "nothing" else "installed main\n")
