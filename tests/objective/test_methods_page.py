"""The methods pages say what the code does: what experiments/pages.py writes is up to date and
mended where it is wrong, and links, rules and sources are there.
"""

import importlib
import inspect
import re
from pathlib import Path

import pytest
from method_pages import links, table

import jaxrl_llm
from jaxrl_llm.config import CorrectionConfig, KLConfig
from jaxrl_llm.objective import advantages, correction, estimators

PACKAGE = Path(jaxrl_llm.__file__).parent
FOLDER = PACKAGE / "objective"
ESTIMATORS = (FOLDER / "README.md").read_text()
RECENT = (FOLDER / "recent.md").read_text()
ADVANTAGES = (FOLDER / "advantages.md").read_text()
MISMATCH = (FOLDER / "mismatch.md").read_text()
CORRECTION = "Correction, rejection and the sequence mask"


@pytest.fixture
def pages(monkeypatch):
  monkeypatch.syspath_prepend(str(PACKAGE.parent / "experiments"))
  return importlib.import_module("pages")


def of_the_core(registry) -> set[str]:
  return {name for name in registry.names()
          if registry.spec(name).function.__module__.startswith("jaxrl_llm.")}


def check_links(registry, text: str, folder: Path, names: set[str]) -> None:
  """Each method's name in a table links to the file in which a decorator registers it."""
  targets = dict(links(cell) for cell in re.findall(r"^\| (\[.*?\)) \|", text, re.M))
  assert names <= set(targets)
  for name in names:
    file = (folder / targets[name]).resolve()
    assert file == Path(inspect.getfile(inspect.unwrap(registry.spec(name).function))), name
    assert f'"{name}"' in file.read_text(), name


def test_a_name_links_to_the_file_that_registers_it():
  check_links(estimators, ESTIMATORS, FOLDER, of_the_core(estimators))
  check_links(advantages, ADVANTAGES, FOLDER, of_the_core(advantages))
  with pytest.raises(AssertionError):
    check_links(estimators, ESTIMATORS.replace("](estimators/cumulative.py)",
                                               "](estimators/token.py)", 1), FOLDER, {"ctpo"})


def test_correction_and_kl():
  named = set(re.findall(r"[a-z_]+", " ".join(table(MISMATCH, CORRECTION))))
  assert set(vars(CorrectionConfig())) <= named | {"cap"}
  assert set(table(MISMATCH, CORRECTION, number=1)) == set(correction.RULES)
  choices = KLConfig.__dataclass_fields__["name"].metadata["choices"]
  assert set(table(MISMATCH, "KL to a reference")) == set(choices)


def check_deviations(page: str) -> None:
  """Every recipe names its source, and what differs from it, if only that nothing is known to."""
  for name, (*_, source, differs) in table(page, "Recipes").items():
    assert source == "-" or re.search(r"\d{4}|verl", source), f"{name}: {source}"
    assert len(differs) > 5, f"{name}: {differs}"


def test_recipes_say_what_differs_from_their_source():
  check_deviations(ESTIMATORS)
  for right, wrong in (("| none known |", "| - |"), ("| 2602.10693 |", "| somewhere |")):
    assert right in ESTIMATORS
    with pytest.raises(AssertionError):
      check_deviations(ESTIMATORS.replace(right, wrong))


@pytest.mark.parametrize("page", [ESTIMATORS, RECENT, ADVANTAGES, MISMATCH])
def test_prose_is_short_and_links_exist(page):
  prose = [line for line in page.split("\n") if not line.startswith("|")]
  assert max(map(len, prose)) <= 100
  for target in re.findall(r"\]\(([^)#:]+)\)", page):
    assert (FOLDER / target).exists(), target


# --- what experiments/pages.py writes


def test_nothing_is_out_of_date(pages):
  assert pages.renew(write=False) == []


@pytest.mark.parametrize(("part", "right", "wrong"), [
    ("estimators", "log_low=0.4, log_high=0.4", "log_low=0.4, log_high=0.5"),
    ("estimators", "| behavior | 2602.10693", "| recomputed | 2602.10693"),
    ("estimators", "dual_clip=none", "dual_clip=3.0"),
    ("estimators", ", w_min=0.8", ""),
    ("recipes", "`correction.cap=5.0`", "`correction.cap=4.0`"),
    ("advantages", "`sum_pi_squared`", "`entropy`"),
    ("aggregations", "`luspo`, ", ""),
])
def test_a_wrong_table_is_mended(pages, part, right, wrong):
  entry = next(p for p in pages.parts() if p.name == part)
  page = entry.page.read_text()
  _, text, _ = pages.split(page, entry)
  assert right in text
  assert pages.renewed(page.replace(text, text.replace(right, wrong, 1)), entry) == page


def test_a_cell_that_is_written_by_hand_is_kept(pages):
  entry = next(p for p in pages.parts() if p.name == "recipes")
  page = entry.page.read_text().replace("| none known |", "| none known to us |", 1)
  assert pages.renewed(page, entry) == page


def halved(log_probs, anchor_log_probs, advantages, mask, cfg):
  """Half of every weight. A second sentence.

    loss_t = -A_t log pi(a_t) / 2

  Source: arXiv 2601.00001, eq. 3; own form of it. The rest is unconfirmed.
  """


def test_a_new_estimator_needs_no_line_on_a_page(pages, monkeypatch):
  """It gets a row and a section, and a page without them is out of date."""
  monkeypatch.setattr(halved, "__module__", "jaxrl_llm.objective.estimators.token")
  estimators.register("halved", cap=2.0, floor=None, anchor="behavior")(halved)
  entries = {p.name: p for p in pages.parts()}
  page = pages.renewed(ESTIMATORS, entries["estimators"])
  row = ("| [`halved`](estimators/token.py) | Half of every weight | cap=2.0, floor=none | "
         "behavior | 2601.00001, eq. 3; own form of it |")
  assert row in page and page.index("| [`sapo`]") < page.index(row) < page.index("| [`m2po`]")
  page = pages.renewed(page, entries["further estimators"])
  assert "### halved\n\nHalf of every weight." in page
  assert "\n    loss_t = -A_t log pi(a_t) / 2\n" in page
  old = pages.renew(write=False)
  assert [line.split(":")[0] for line in old] == [
      "jaxrl_llm/objective/README.md, estimators",
      "jaxrl_llm/objective/README.md, further estimators", "experiments/atlas"]
