"""papers/occ/derivations.md says what the code does: names, defaults, what reaches the trunk."""

import contextlib
from pathlib import Path

import pytest
from method_pages import numbers, sections, table

from experiments.papers import occ
from jaxrl_llm.registry import LOSS_TERMS

PATH = Path(occ.__file__).parent / "derivations.md"
PAGE = PATH.read_text()


def of_the_paper() -> set[str]:
  return {name for name, entry in LOSS_TERMS.entries.items() if hasattr(entry, "loss")
          and entry.loss.__module__.startswith(occ.__name__)}


def compare(page: str) -> None:
  rows = table(page, "Losses")
  assert set(rows) == of_the_paper()
  assert set(rows) <= {word.strip(",") for word in sections(page)}
  for name, (defaults, _, reaches) in rows.items():
    entry = LOSS_TERMS[name]
    assert numbers(defaults) == entry.defaults, name
    assert (reaches == "no") == entry.detached, name
    assert ("calibrated" in reaches) == (entry.transform is not None), name


@pytest.mark.parametrize(("right", "wrong"), [
    ("", ""), ("lambda_max=1.0", "lambda_max=2.0"), ("| `mtp_ce` |", "| `mtp_cd` |"),
    ("yes, calibrated", "yes"), ("a_t) | no", "a_t) | yes"), ("### occ", "### oc")])
def test_the_table_is_that_of_the_code(right, wrong):
  assert right in PAGE
  with pytest.raises(AssertionError) if right else contextlib.nullcontext():
    compare(PAGE.replace(right, wrong, 1))
