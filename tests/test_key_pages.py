"""Every key that belongs to no method stands on a page or in a script, with a reason to set it."""

import re
from pathlib import Path

import test_config

ROOT = Path(__file__).parent.parent
SCRIPTS = ("configs", "experiments", "colab")


def texts() -> list[str]:
  """Returns the pages, and the scripts whose lines set keys."""
  scripts = [file for folder in SCRIPTS for pattern in ("*.py", "*.ipynb")
             for file in (ROOT / folder).rglob(pattern)]
  return [file.read_text() for file in [*ROOT.rglob("*.md"), *scripts]]


def unmentioned(keys: set[str], pages: list[str]) -> list[str]:
  """Returns the keys that no page names in full, sorted; `cfg.rollout.slots` names a key, too."""
  named = {word for page in pages for word in re.findall(r"[A-Za-z_][\w<>-]*(?:\.[\w<>-]+)*", page)}
  named |= {word.partition(".")[2] for word in named if word.split(".")[0] in ("config", "cfg")}
  named |= {re.sub(r"^evaluation\.sets\.[\w-]+\.", f"evaluation.sets.{test_config.NAME}.", word)
            for word in named}
  return sorted(keys - named)


def test_every_key_stands_on_a_page():
  keys = {key.full for key in test_config.walk() if key.method is None}
  assert unmentioned(keys, texts()) == []


def test_a_key_on_no_page_is_missed():
  pages = ["`rollout.slots` and --config.rollout.chunk=4, evaluation.sets.aime.path"]
  keys = {"rollout.slots", "rollout.chunk", "rollout.slot", "evaluation.sets.<name>.path"}
  assert unmentioned(keys, pages) == ["rollout.slot"]


def unknown_of_the_last_column(page: str, keys: set[str]) -> list[str]:
  """Returns what the table for readers of TRL and verl names here that is no key, sorted."""
  table = page.split("## From TRL or verl")[1].split("\n## ")[0]
  cells = [line.rstrip("|").rpartition("|")[2] for line in table.splitlines() if "| `" in line]
  words = {word for cell in cells for word in re.findall(r"`([a-z_.]+)", cell) if "." in word}
  assert len(words) > 10
  return sorted(words - keys)


def test_readers_of_trl_and_verl_are_led_to_keys_that_exist():
  page = (ROOT / "experiments" / "README.md").read_text()
  keys = {key.full for key in test_config.walk()}
  assert unknown_of_the_last_column(page, keys) == []
  assert unknown_of_the_last_column(page.replace("`kl.coef`", "`kl.beta`"), keys) == ["kl.beta"]
