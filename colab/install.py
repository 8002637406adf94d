"""Installs the package beside what Colab has: `python colab/install.py COMMIT`.

Colab's JAX is built for its runtime's accelerator. So every JAX package that is installed is held
at its version; only where that version is too old or too new for this package, JAX is replaced,
together with the build for the same accelerator.
"""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Builds for an accelerator, and the extra of setup.py that asks for the same one.
BUILDS = {"jax-cuda13-plugin": "cuda13", "jax-cuda12-plugin": "cuda12", "libtpu": "tpu"}


def installed() -> dict[str, str]:
  """Returns the version of every installed package of JAX, by name."""
  found = {(d.metadata["Name"] or "").lower().replace("_", "-"): d.version
           for d in metadata.distributions()}
  return {name: version for name, version in found.items()
          if name in ("jax", "jaxlib", "libtpu") or name.startswith("jax-cuda")}


def held(versions: dict[str, str]) -> list[str]:
  """Returns lines that let pip change none of these packages."""
  return [f"{name}=={version}" for name, version in sorted(versions.items())]


def extras(versions: dict[str, str]) -> str:
  """Returns the extras for JAX anew, for the accelerator that these packages are built for."""
  return ",".join(["colab", *[extra for name, extra in BUILDS.items() if name in versions][:1]])


def install(extra: str, *flags: str) -> bool:
  """Installs the package, editable; returns whether that succeeded."""
  command = [sys.executable, "-m", "pip", "install", "-q", "-e", f"{ROOT}[{extra}]", *flags]
  return subprocess.run(command, check=False).returncode == 0


def main(commit: str) -> None:
  if (ROOT / ".git").exists():
    check_out(commit)
  else:
    print(f"{ROOT} is no clone: it is installed as it is, COMMIT = {commit!r} is not read.")
  versions, constraints = installed(), ROOT / "build" / "constraints.txt"
  constraints.parent.mkdir(exist_ok=True)
  constraints.write_text("\n".join(held(versions)) + "\n")
  if install("colab", "-c", str(constraints)):
    return
  print(f"Not with {' '.join(held(versions)) or 'no JAX'}: installing JAX for "
        f"{extras(versions)}. If it was imported before, restart the session.")
  if not install(extras(versions)):
    sys.exit("error: pip could not install the package; its message is above.")


def check_out(commit: str) -> None:
  """Puts the clone at a commit, tag or branch, as new as the repository that it came from."""
  fetched = subprocess.run(["git", "-C", ROOT, "fetch", "-q", "origin", commit], check=False)
  # A branch of the clone stays where it was; what was fetched is as new as the repository.
  wanted = commit if fetched.returncode else "FETCH_HEAD"
  checkout = ["git", "-C", ROOT, "checkout", "-q", "--detach", wanted]
  if subprocess.run(checkout, check=False).returncode:
    sys.exit(f"error: COMMIT = {commit!r} is not in this repository. Fix: a branch, a tag or the "
             "40 digits of a commit.")


if __name__ == "__main__":
  if len(sys.argv) != 2:
    sys.exit("error: one argument is needed. Fix: python colab/install.py COMMIT")
  main(sys.argv[1])
