"""Installs the package beside what Colab has: `python colab/install.py COMMIT`.

Colab's JAX is built for its runtime's accelerator. So every JAX package that is installed is held
at its version; only where that version is too old or too new for this package, JAX is replaced,
together with the build for the same accelerator. NumPy and pandas, which the session and other
packages of Colab have loaded, are held then, too: pip takes the newest JAX that goes with them.
"""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Builds for an accelerator, and the extra of setup.py that asks for the same one.
BUILDS = {"jax-cuda13-plugin": "cuda13", "jax-cuda12-plugin": "cuda12", "libtpu": "tpu"}
ARRAYS = ("numpy", "pandas")


def installed() -> dict[str, str]:
  """Returns the version of every installed package of JAX, and of ARRAYS, by name."""
  versions = {(d.metadata["Name"] or "").lower().replace("_", "-"): d.version
              for d in metadata.distributions()}
  return {name: version for name, version in versions.items()
          if name in ("jax", "jaxlib", "libtpu", *ARRAYS) or name.startswith("jax-cuda")}


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
  versions = installed()
  arrays = {name: version for name, version in versions.items() if name in ARRAYS}
  jax = {name: version for name, version in versions.items() if name not in ARRAYS}
  if install("colab", *held_by_file("jax", versions)):
    return
  print(f"Not with {' '.join(held(jax)) or 'no JAX'}: installing JAX for {extras(versions)}. If it "
        "was imported before, restart the session.")
  if install(extras(versions), *held_by_file("arrays", arrays)):
    return
  print(f"Not with {' '.join(held(arrays))} either: installing these anew, too. Restart the "
        "session.")
  if not install(extras(versions)):
    sys.exit("error: pip could not install the package; its message is above.")


def held_by_file(name: str, versions: dict[str, str]) -> tuple[str, str]:
  """Returns flags of pip that hold these packages, in a file of this name in build/."""
  path = ROOT / "build" / f"{name}.txt"
  path.parent.mkdir(exist_ok=True)
  path.write_text("\n".join(held(versions)) + "\n")
  return "-c", str(path)


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
