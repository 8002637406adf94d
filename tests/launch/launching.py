"""The launch scripts as commands, with stubs of the engines' tools on PATH, or with none."""

import os
import subprocess
import sys
from pathlib import Path

import programs

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
SMALL = "tests/parallel/small_runs.py:plain"
FLAGS = f"{programs.FLAGS} --xla_cpu_multi_thread_eigen=false"


def launch(script: str, *arguments: str, path: str = os.devnull,
           **variables: str) -> subprocess.CompletedProcess:
  """Runs experiments/launch/<script>.py with `path` as PATH, by default one that has nothing."""
  return subprocess.run([sys.executable, f"experiments/launch/{script}.py", *arguments], cwd=ROOT,
                        text=True, capture_output=True, check=False, timeout=900,
                        env=os.environ | programs.ENVIRONMENT | {"PATH": path} | variables)


def stubs(folder: Path, **names: str) -> str:
  """Makes commands of stubs, as sbatch="slurm_stub"; returns a PATH with them first."""
  folder.mkdir()
  for name, stub in names.items():
    (folder / name).write_text(
        f'#!/bin/sh\nexec "{sys.executable}" "{HERE / stub}.py" "$0" "$@"\n')
    (folder / name).chmod(0o755)
  return f"{folder}{os.pathsep}{os.environ['PATH']}"


def devices(count: int) -> dict[str, str]:
  """The variables of a run with so many CPU devices in each process."""
  return {"XLA_FLAGS": f"{FLAGS} --xla_force_host_platform_device_count={count}",
          "JAX_COMPILATION_CACHE_DIR": str(programs.shared_folder()),
          "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
          "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}


def run_flags(workdir: Path, *overrides: str) -> list[str]:
  """The flags of a small run of two iterations that saves each of them."""
  settings = {"checkpoint.every": 1, "evaluation.every": 100, "iterations": 2,
              "warm_start.steps": 4} | dict(text.split("=") for text in overrides)
  return ["--", f"--config={SMALL}", f"--workdir={workdir}",
          *(f"--config.{key}={value}" for key, value in settings.items())]


def gcloud(path: str, folder: Path, *more: str, **variables: str) -> subprocess.CompletedProcess:
  """Runs tpu.py with the stub of gcloud: its calls, and the worker's home, are in `folder`."""
  return launch("tpu", "--name=a", "--zone=z", *more, path=path,
                GCLOUD_STUB_CALLS=str(folder / "calls"), GCLOUD_STUB_HOME=str(folder / "home"),
                **variables)
