"""The entries that each one-paper system brings, with their former names: the only place of the
core that names them.

A config value or preset of this table imports the paper's package, `experiments.papers.<folder>`,
when it is first looked up. A paper whose folder is not there brings nothing.
"""

import functools
import importlib
import importlib.util
from typing import Any

PAPERS = (  # (folder, kind, names)
    ("arca", "advantage", ("arca",)),
    ("arca", "column", ("adapter_residual",)),
    ("arca", "preset", ("arca",)),
    ("arca", "metrics", ("credit",)),
    ("occ", "term", ("mtp_ce", "mtp_detach", "mtp_policy", "occ")),
    ("occ", "column", ("mtp_anchor_log_probs",)),
    ("occ", "decorator", ("mtp",)),
    ("occ", "metrics", ("mtp",)),
    ("pipo", "transform", ("pipo",)),
    ("pipo", "preset", ("pipo",)),
    ("pipo", "metrics", ("pipo",)),
)

# Sections of config.json before version 0.2: (section now, method that switches it on by `enabled`
# or None, names before -> now).
FORMER_SECTIONS = {
    "mtp": ("term", None, {"ce": "mtp_ce", "detach": "mtp_detach", "policy": "mtp_policy"}),
    "pipo": ("transform", "pipo", {}),
}


@functools.cache
def _folder_is_there(folder: str) -> bool:
  return importlib.util.find_spec(f"experiments.papers.{folder}") is not None


def names(kind: str) -> list[str]:
  """Returns the names of a kind that papers bring: a table's kind, `preset`, `decorator` (of
  `register`) or `metrics` (the first part of their names).
  """
  return [name for folder, paper_kind, paper_names in PAPERS for name in paper_names
          if paper_kind == kind and _folder_is_there(folder)]


def load(kind: str, name: str) -> Any:
  """Imports the paper that brings a name, and returns its package; None where no paper does."""
  for folder, paper_kind, paper_names in PAPERS:
    if paper_kind == kind and name in paper_names and _folder_is_there(folder):
      return importlib.import_module(f"experiments.papers.{folder}")
  return None


def key_now(key: str) -> str:
  """Returns a hint at the section that took the place of a former one; empty for other keys."""
  former = key.strip("'").split(".")[0]
  if former not in FORMER_SECTIONS:
    return ""
  section, method, names_now = FORMER_SECTIONS[former]
  values = [method] if method else [f"{new} ({old})" for old, new in names_now.items()]
  return (f" Since version 0.2 the section is `{section}`: {section}.name="
          f"{' or '.join(values)}, with its numbers beside it.")


def carried_before(content: dict) -> str | None:
  """Returns the key by which a config.json before version 0.2 chose something that checkpoints held
  in another form: "pipo.enabled"; None if it chose nothing of the kind.
  """
  pipo, mtp = content.get("pipo"), content.get("mtp")
  if isinstance(pipo, dict) and pipo.get("enabled"):
    return "pipo.enabled"
  if isinstance(mtp, dict) and mtp.get("name") == "occ":
    return "mtp.name"
  return None


def renamed(content: dict) -> dict:
  """Returns the content of a config.json with FORMER_SECTIONS under the names of today.

  Sections that chose nothing are left out.
  """
  content = dict(content)
  for former, (section, method, names_now) in FORMER_SECTIONS.items():
    old = content.pop(former, None)
    if not isinstance(old, dict):
      continue
    old = dict(old)
    choice = old.pop("name", "none") if method is None else (
        method if old.pop("enabled", False) else "none")
    if choice != "none":
      content[section] = {**old, "name": names_now.get(choice, choice)}
  return content
