"""Every metric of a paper is explained by that paper, and its run logs it."""

import fnmatch

import pytest
import tiny

from experiments.report.run_folder import read_run
from jaxrl_llm.config import from_dict
from jaxrl_llm.reporting import glossary
from jaxrl_llm.runs import trainer

# First part of the names -> (plugin, iterations, sections) of a run that logs all of them.
RUNS = {
    "credit": ("arca", 1, {"advantage": {"name": "arca"}, "parameters": {"train": "lora"}}),
    "mtp": ("occ", 1, {"term": {"name": "occ"}}),
    "pipo": ("pipo", 4, {"transform": {"name": "pipo", "history": 2}}),
}


def configured(prefix: str):
  plugin, iterations, sections = RUNS[prefix]
  config = tiny.get_config("grpo")
  config.plugins, config.iterations = (f"experiments.papers.{plugin}",), iterations
  config.rollout.update(prompts=8, group_size=4)
  config.warm_start.steps = 20
  for name, values in sections.items():
    config[name].update(values)
  return from_dict(config)


def entries_of(prefix: str) -> list[glossary.Entry]:
  return [entry for entry in glossary.all_entries() if entry.name.startswith(f"{prefix}/")]


def without_run(entries, names) -> list[str]:
  return [item.name for item in entries if not fnmatch.filter(names, item.name)]


@pytest.mark.parametrize("prefix", RUNS)
def test_its_metrics_are_no_part_of_the_package_s(prefix):
  entries = entries_of(prefix)
  assert entries and not set(entries) & set(glossary.GLOSSARY)
  assert [glossary.entry(item.name) for item in entries] == entries


@pytest.mark.nightly
@pytest.mark.parametrize("prefix", RUNS)
def test_its_run_logs_what_it_explains(prefix, tmp_path):
  trainer.run(configured(prefix), tmp_path / "run")
  names = {name for line in read_run(tmp_path / "run").metrics for name in line}
  entries = entries_of(prefix)
  assert without_run(entries, names) == []
  assert sorted(name for name in names - {"iteration"} if glossary.entry(name) is None) == []
  first = next(name for name in sorted(names) if name.startswith(f"{prefix}/"))
  assert without_run(entries, names - {first}) == [first], "a metric that is not logged is noticed"
