"""Every metric of a paper is explained by that paper, and its run logs it."""

import fnmatch

import pytest
import tiny

from jaxrl_llm import paper_table
from jaxrl_llm.config import from_dict
from jaxrl_llm.reporting import glossary
from jaxrl_llm.reporting.reader import read_run
from jaxrl_llm.runs import trainer

# First part of the names -> (iterations, sections) of a run that logs all of them.
RUNS = {
    "credit": (1, {"advantage": {"name": "arca"}, "parameters": {"train": "lora"}}),
    "mtp": (1, {"term": {"name": "occ"}}),
    "pipo": (4, {"transform": {"name": "pipo", "history": 2}}),
}
PREFIXES = paper_table.names("metrics")


def configured(prefix: str):
  iterations, sections = RUNS[prefix]
  config = tiny.get_config("grpo")
  config.iterations = iterations
  config.rollout.update(prompts=8, group_size=4)
  config.warm_start.steps = 20
  for name, values in sections.items():
    config[name].update(values)
  return from_dict(config)


def check_entries(prefix: str, entries) -> None:
  """The glossary looks for a name in the paper that the table names for its first part."""
  assert entries and all(item.name.startswith(f"{prefix}/") for item in entries)
  for item in entries:
    assert glossary.entry(item.name) == item and item not in glossary.GLOSSARY


@pytest.mark.parametrize("prefix", PREFIXES)
def test_its_entries_are_looked_up_by_their_first_part(prefix):
  entries = paper_table.load("metrics", prefix).METRICS
  check_entries(prefix, entries)
  with pytest.raises(AssertionError):
    check_entries(prefix, (*entries, glossary.Entry("elsewhere/loss", "1", "of no paper")))
  with pytest.raises(AssertionError):
    check_entries(prefix, (*entries, glossary.Entry(f"{prefix}/new", "1", "without an entry")))


def without_run(entries, names) -> list[str]:
  return [item.name for item in entries if not fnmatch.filter(names, item.name)]


@pytest.mark.nightly
@pytest.mark.parametrize("prefix", PREFIXES)
def test_its_run_logs_what_it_explains(prefix, tmp_path):
  trainer.run(configured(prefix), tmp_path / "run")
  names = {name for line in read_run(tmp_path / "run").metrics for name in line}
  entries = paper_table.load("metrics", prefix).METRICS
  assert without_run(entries, names) == []
  assert sorted(name for name in names - {"iteration"} if glossary.entry(name) is None) == []
  first = next(name for name in sorted(names) if name.startswith(f"{prefix}/"))
  assert without_run(entries, names - {first}) == [first], "a metric that is not logged is noticed"
