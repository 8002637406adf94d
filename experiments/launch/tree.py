"""A working tree as one file that git reads: commits, and edits and new files on top of them."""

import os
import subprocess
import tempfile
from pathlib import Path

IDENTITY = {f"GIT_{who}_{what}": text for who in ("AUTHOR", "COMMITTER")
            for what, text in (("NAME", "jaxrl_llm"), ("EMAIL", "none"))}


def bundle(root: Path, path: Path) -> str:
  """Writes a bundle whose HEAD is the tree as it is, without what git ignores; nothing else in the
  repository changes.

  Returns:
    What is in it, in words.

  Raises:
    subprocess.CalledProcessError: git failed; its message is in `stderr`.
  """
  with tempfile.TemporaryDirectory() as folder:
    index = {"GIT_INDEX_FILE": f"{folder}/index"}
    head = _git(root, "rev-parse", "HEAD")
    _git(root, "read-tree", head, **index)
    _git(root, "add", "--all", **index)
    tree, commit = _git(root, "write-tree", **index), head
    if tree != _git(root, "rev-parse", f"{head}^{{tree}}"):
      commit = _git(root, "commit-tree", tree, "-p", head, "-m", "edits that are not committed",
                    **IDENTITY)
    clone = Path(folder) / "clone"
    _git(root, "clone", "--quiet", "--shared", "--no-checkout", str(root), str(clone))
    _git(clone, "update-ref", "--no-deref", "HEAD", commit)
    _git(clone, "bundle", "create", "--quiet", str(path), "HEAD")
  return f"commit {head[:10]}" + (" with edits" if commit != head else "")


def _git(folder: Path, *arguments: str, **variables: str) -> str:
  return subprocess.run(["git", "-C", str(folder), *arguments], check=True, text=True,
                        capture_output=True, env=os.environ | variables).stdout.strip()
