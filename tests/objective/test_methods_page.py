"""The methods pages of objective/ say what the code does: names, defaults, anchors, rules and
recipes are those of the registries, and every method has a section.
"""

import ast
import contextlib
import re
from pathlib import Path

import pytest

import jaxrl_llm
from jaxrl_llm.config import CorrectionConfig, KLConfig
from jaxrl_llm.objective import advantages, correction, estimators, mtp
from jaxrl_llm.presets import PRESETS
from jaxrl_llm.registry import AGGREGATIONS

FOLDER = Path(jaxrl_llm.__file__).parent / "objective"
ESTIMATORS = (FOLDER / "README.md").read_text()
ADVANTAGES = (FOLDER / "advantages.md").read_text()
MISMATCH = (FOLDER / "mismatch.md").read_text()
MTP = (FOLDER / "mtp.md").read_text()
CORRECTION = "Correction, rejection and the sequence mask"


def table(page: str, heading: str, number: int = 0) -> dict[str, list[str]]:
  """Returns first column without backticks -> other cells, of a section's `number`-th table."""
  sections = re.split(r"^## ", page, flags=re.M)
  section = next(s for s in sections if s.startswith(heading + "\n"))
  found = re.findall(r"(?:^\|.*\|\n?)+", section, re.M)
  rows = [line.strip("|").split(" | ") for line in found[number].strip().split("\n")]
  rows = [[cell.strip() for cell in row] for row in rows if not row[0].startswith("---")]
  assert len({len(row) for row in rows}) == 1, f"{heading}: rows of unequal length"
  cells = {row[0].strip("`"): row[1:] for row in rows[1:]}
  assert len(cells) == len(rows) - 1, f"{heading}: a name stands there twice"
  return cells


def sections(page: str) -> set[str]:
  """Returns the words of all third-level headings."""
  return set(" ".join(re.findall(r"^### (.*)", page, re.M)).split())


def numbers(cell: str) -> dict:
  if cell == "-":
    return {}
  pairs = (item.split("=") for item in cell.split(", "))
  return {name: None if value == "none" else ast.literal_eval(value) for name, value in pairs}


def of_the_package(registry) -> set[str]:
  modules = {name: registry.spec(name).function.__module__ for name in registry.names()}
  return {name for name, module in modules.items() if module.startswith("jaxrl_llm.objective.")}


def compare_estimators(page: str) -> None:
  rows = table(page, "Estimators")
  assert set(rows) == of_the_package(estimators)
  assert set(rows) <= sections(page)
  for name, (_, defaults, anchor, _) in rows.items():
    spec, given = estimators.spec(name), numbers(defaults)
    assert given == spec.defaults, f"{name}: {defaults} on the page, registered {spec.defaults}"
    assert [type(v) for v in given.values()] == [type(v) for v in spec.defaults.values()], name
    assert anchor == spec.anchor, f"{name}: {anchor} on the page, registered {spec.anchor}"


def test_estimators():
  compare_estimators(ESTIMATORS)


@pytest.mark.parametrize(("right", "wrong"), [
    ("log_low=0.025", "log_low=0.03"),
    ("dual_clip=none", "dual_clip=3.0"),
    ("| `minpro` |", "| `minpr` |"),
    ("### minpro", "### minpr"),
    ("cap=none | behavior", "cap=none | recomputed"),
    (", w_min=0.8", ""),
])
def test_a_wrong_page_is_noticed(right, wrong):
  assert right in ESTIMATORS
  with pytest.raises(AssertionError):
    compare_estimators(ESTIMATORS.replace(right, wrong, 1))


def test_advantages_and_aggregations():
  rows = table(ADVANTAGES, "Advantages")
  assert set(rows) == of_the_package(advantages)
  assert set(rows) <= sections(ADVANTAGES)
  assert set(table(ADVANTAGES, "Aggregation")) == set(AGGREGATIONS.names())


def compare_mtp(page: str) -> None:
  rows = table(page, "Losses")
  assert set(rows) == of_the_package(mtp)
  assert set(rows) - {"none"} <= {word.strip(",") for word in sections(page)}
  for name, (defaults, _, reaches) in rows.items():
    assert numbers(defaults) == mtp.spec(name).defaults, name
    assert name == "none" or (reaches == "no") == mtp.spec(name).detached
    assert ("calibrated" in reaches) == (mtp.spec(name).calibrate is not None)


@pytest.mark.parametrize(("right", "wrong"), [
    ("", ""), ("lambda_max=1.0", "lambda_max=2.0"), ("| `ce` |", "| `cd` |"),
    ("yes, calibrated", "yes"), ("a_t) | no", "a_t) | yes"), ("### occ", "### oc")])
def test_losses_of_the_second_head(right, wrong):
  assert right in MTP
  with pytest.raises(AssertionError) if right else contextlib.nullcontext():
    compare_mtp(MTP.replace(right, wrong, 1))


def test_correction_and_kl():
  named = set(re.findall(r"[a-z_]+", " ".join(table(MISMATCH, CORRECTION))))
  assert set(vars(CorrectionConfig())) <= named | {"cap"}
  assert set(table(MISMATCH, CORRECTION, number=1)) == set(correction.RULES)
  choices = KLConfig.__dataclass_fields__["name"].metadata["choices"]
  assert set(table(MISMATCH, "KL to a reference")) == set(choices)


def recipe(estimator, advantage, aggregation, further, *_) -> dict[str, str]:
  """Returns the keys and values that a row of the recipes' table names, as text."""
  names = {"estimator": estimator, "advantage": advantage, "aggregation": aggregation}
  pairs = re.findall(r"`([^`=]+)=([^`]+)`", further)
  return {f"{key}.name": value.strip("`") for key, value in names.items()} | dict(pairs)


def test_recipes():
  rows = table(ESTIMATORS, "Recipes")
  assert {name: recipe(*row) for name, row in rows.items()} == {
      name: {key: str(value) for key, value in keys.items()} for name, keys in PRESETS.items()
  }


SAID = {
    "otb": "fully on-policy",
    "tir_otb": "fully on-policy",
    "opo": "strictly on-policy",
    "reinforce": "a run warns",
    "minpro": "that of `cispo`",
    "topr": "reward -1",
    "decoupled_ppo": "becomes 0",
}


def check_deviations(page: str) -> None:
  """Every recipe names its source, and what differs from it, if only that nothing is known to."""
  for name, (*_, source, differs) in table(page, "Recipes").items():
    assert source == "-" or re.search(r"\d{4}|verl", source), f"{name}: {source}"
    assert len(differs) > 5 and SAID.get(name, "") in differs, f"{name}: {differs}"


def test_recipes_say_what_differs_from_their_source():
  check_deviations(ESTIMATORS)
  for right, wrong in (("| none known |", "| - |"), ("published fully on-policy", "published"),
                       ("| 2602.10693 |", "| somewhere |")):
    assert right in ESTIMATORS
    with pytest.raises(AssertionError):
      check_deviations(ESTIMATORS.replace(right, wrong))


@pytest.mark.parametrize("page", [ESTIMATORS, ADVANTAGES, MISMATCH, MTP])
def test_prose_is_short_and_links_exist(page):
  prose = [line for line in page.split("\n") if not line.startswith("|")]
  assert max(map(len, prose)) <= 100
  for target in re.findall(r"\]\(([^)#:]+)\)", page):
    assert (FOLDER / target).exists(), target
