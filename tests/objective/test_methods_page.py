"""objective/README.md says what the code does: names, defaults, anchors, rules and recipes are the
registries'.
"""

import ast
import re
from pathlib import Path

import pytest

import jaxrl_llm
from jaxrl_llm.config import AggregationConfig, CorrectionConfig, KLConfig
from jaxrl_llm.objective import advantages, correction, estimators
from jaxrl_llm.presets import PRESETS

PAGE = (Path(jaxrl_llm.__file__).parent / "objective" / "README.md").read_text()


def table(heading: str, page: str = PAGE, number: int = 0) -> dict[str, list[str]]:
  """First column without its backticks -> the other cells, of the `number`-th table below a
  heading.
  """
  section = re.split(r"^## ", page, flags=re.M)
  section = next(s for s in section if s.startswith(heading + "\n"))
  tables = re.findall(r"(?:^\|.*\|\n?)+", section, re.M)
  rows = [[cell.strip()
           for cell in line.strip("|").split(" | ")]
          for line in tables[number].strip().split("\n")]
  assert len({len(row) for row in rows if not row[0].startswith("---")
             }) == 1, f"{heading}: rows of unequal length"
  out = {row[0].strip("`"): row[1:] for row in rows[2:]}
  assert len(out) == len(rows) - 2, f"{heading}: a name stands there twice"
  return out


def numbers(cell: str) -> dict:
  if cell == "-":
    return {}
  pairs = (item.split("=") for item in cell.split(", "))
  return {name: None if value == "none" else ast.literal_eval(value) for name, value in pairs}


def of_the_package(registry) -> set[str]:
  inside = lambda function: function.__module__.startswith("jaxrl_llm.objective.")
  return {name for name in registry.names() if inside(registry.spec(name).function)}


def compare_estimators(page: str) -> None:
  rows = table("Estimators", page)
  assert set(rows) == of_the_package(estimators)
  for name, (_, defaults, anchor, _) in rows.items():
    spec = estimators.spec(name)
    assert numbers(
        defaults
    ) == spec.defaults, f"{name}: {defaults} on the page, {spec.defaults} in the registry"
    assert [type(v) for v in numbers(defaults).values()
           ] == [type(v) for v in spec.defaults.values()], name
    assert anchor == spec.anchor, f"{name}: {anchor} on the page, {spec.anchor} in the registry"


def test_estimators():
  compare_estimators(PAGE)


@pytest.mark.parametrize(("right", "wrong"), [("log_low=0.025", "log_low=0.03"),
                                              ("dual_clip=none", "dual_clip=3.0"),
                                              ("| `minpro` |", "| `minpr` |"),
                                              ("cap=none | behavior", "cap=none | recomputed"),
                                              (", w_min=0.8", "")])
def test_a_wrong_page_is_noticed(right, wrong):
  assert right in PAGE
  with pytest.raises(AssertionError):
    compare_estimators(PAGE.replace(right, wrong, 1))


def test_advantages_and_aggregations():
  assert set(table("Advantages")) == of_the_package(advantages)
  assert set(table("Aggregation")) == set(
      AggregationConfig.__dataclass_fields__["name"].metadata["choices"])


def test_correction_and_kl():
  settings = table("Correction, rejection and the sequence mask")
  fields = {name for cell in settings for name in re.findall(r"[a-z_]+", cell)} & set(
      vars(CorrectionConfig()))
  assert fields | {"cap"} == set(vars(CorrectionConfig()))
  assert set(table("Correction, rejection and the sequence mask",
                   number=1)) == set(correction.RULES)
  assert set(table("KL to a reference")) == set(
      KLConfig.__dataclass_fields__["name"].metadata["choices"])


def test_recipes():
  rows = table("Recipes")
  assert {
      name: row[0] for name, row in rows.items()
  } == {
      name: ", ".join(f"`{key}={value}`" for key, value in recipe.items())
      for name, recipe in PRESETS.items()
  }
