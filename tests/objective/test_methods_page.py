"""The methods pages of objective/ say what the code does: names, defaults, anchors, rules and
recipes are those of the registries, and every method has a section.
"""

import re
from pathlib import Path

import pytest
from method_pages import numbers, sections, table

import jaxrl_llm
from jaxrl_llm import paper_table
from jaxrl_llm.config import CorrectionConfig, KLConfig
from jaxrl_llm.objective import advantages, correction, estimators
from jaxrl_llm.presets import PRESETS
from jaxrl_llm.registry import AGGREGATIONS

FOLDER = Path(jaxrl_llm.__file__).parent / "objective"
ESTIMATORS = (FOLDER / "README.md").read_text()
ADVANTAGES = (FOLDER / "advantages.md").read_text()
MISMATCH = (FOLDER / "mismatch.md").read_text()
CORRECTION = "Correction, rejection and the sequence mask"


def of_the_package(registry) -> set[str]:
  modules = {name: registry.spec(name).function.__module__ for name in registry.names()}
  return {name for name, module in modules.items() if module.startswith("jaxrl_llm.")}


def of_absent_papers(kind: str) -> set[str]:
  """Returns the names of a kind that papers would bring whose folders are not there."""
  known = {name for _, of, names in paper_table.PAPERS for name in names if of == kind}
  return known - set(paper_table.names(kind))


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
  assert set(rows) - of_absent_papers("advantage") == of_the_package(advantages)
  assert set(rows) <= sections(ADVANTAGES)
  assert set(table(ADVANTAGES, "Aggregation")) == set(AGGREGATIONS.names())


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
  absent = of_absent_papers("preset")
  assert {name: recipe(*row) for name, row in rows.items() if name not in absent} == {
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


@pytest.mark.parametrize("page", [ESTIMATORS, ADVANTAGES, MISMATCH])
def test_prose_is_short_and_links_exist(page):
  prose = [line for line in page.split("\n") if not line.startswith("|")]
  assert max(map(len, prose)) <= 100
  for target in re.findall(r"\]\(([^)#:]+)\)", page):
    assert (FOLDER / target).exists(), target
