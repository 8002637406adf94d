"""experiments/*/sweep.py: every run's flags make a config; pages say what the results say."""

import dataclasses
import shutil
import sys
from pathlib import Path

import pytest
from command_configs import config_of
from suites import quick_for, quick_of

from experiments.tables_lib import sweep_results, sweeps
from jaxrl_llm import registry
from jaxrl_llm.wiring import setup

ROOT = Path(__file__).parent.parent
PATHS = [*ROOT.glob("experiments/*/sweep.py"), *ROOT.glob("experiments/smollm2/*/sweep.py")]
SWEEPS = {path.parent.name: table for path in sorted(PATHS)
          if (table := sweeps.load(path)) is not None}
QUICK = {"staleness"}


def resolved(cell: sweeps.Cell):
  cfg = config_of(*cell.flags)
  if cfg.pretrained.startswith("runs/"):  # of a user's machine; its shape is not asked for
    cfg = dataclasses.replace(cfg, pretrained="")
  return setup.resolve(cfg)


@pytest.fixture
def without_plugins(monkeypatch):
  """As in a new process: plugins that the files of other tests import are not there."""
  for table in registry.TABLES:
    for name, entry in list(table.entries.items()):
      if (module := entry.function.__module__).startswith("experiments."):
        monkeypatch.delitem(table.entries, name)
        monkeypatch.delitem(sys.modules, module, raising=False)


@pytest.mark.parametrize("name", quick_for(QUICK, SWEEPS))
def test_every_run_has_a_config_of_its_own(name, without_plugins, monkeypatch):
  monkeypatch.chdir(ROOT)
  cells = SWEEPS[name].cells
  assert len({cell.name for cell in cells}) == len({cell.flags for cell in cells}) == len(cells)
  configs = [resolved(cell) for cell in cells]
  assert len(set(map(str, configs))) == len(configs)
  for cell, config in zip(SWEEPS[name].cells, configs, strict=True):
    assert {Path(plugin) for plugin in config.plugins} <= set(cell.files), "not in the hash"


def changed(measured):
  """The measured numbers, each near half of what it was."""
  if isinstance(measured, dict):
    return {key: changed(value) for key, value in measured.items()}
  if isinstance(measured, list):
    return [changed(value) for value in measured]
  return measured / 2 + 0.0123 if isinstance(measured, float) else measured


def table_lines(page: Path) -> list[str]:
  return [line for line in page.read_text().splitlines() if line.startswith("|")]


@pytest.mark.parametrize("name", quick_for(QUICK | {"tools", "position"}, SWEEPS))
def test_the_page_is_rendered_from_the_committed_results(name, tmp_path):
  """Up to the bytes; figures depend on the version that draws them."""
  sweep = SWEEPS[name]
  results = sweeps.read_results(sweep)
  page = shutil.copy(sweep.folder / "README.md", tmp_path)
  sweep.render(results, tmp_path)
  assert Path(page).read_text() == (sweep.folder / "README.md").read_text()
  sweep.render({}, tmp_path)
  if table_lines(Path(page)) != table_lines(sweep.folder / "README.md"):  # else no row is complete
    for result in results.values():
      result["measured"] = changed(result["measured"])
    sweep.render(results, tmp_path)
    assert Path(page).read_text() != (sweep.folder / "README.md").read_text()


@pytest.mark.parametrize("name", quick_of(
    QUICK, {name: (name,) for name in SWEEPS}, slow={"tools"}))
def test_a_run_that_ended_early_takes_no_table_away(name, tmp_path):
  sweep = SWEEPS[name]
  results = sweeps.read_results(sweep)
  # Some runs of rows whose seeds are all there; those of a screening (seed 100) choose the rows.
  for result in [result for result in results.values() if result["seed"] < 100][::7]:
    result["measured"] = {key: value[:4] if isinstance(value, list) else value
                          for key, value in result["measured"].items()}
  page = Path(shutil.copy(sweep.folder / "README.md", tmp_path))
  sweep.render(results, tmp_path)
  assert len(table_lines(page)) == len(table_lines(sweep.folder / "README.md"))


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name, sweep in SWEEPS.items() if any(
    result.get("fingerprint") for result in sweeps.read_results(sweep).values())])
def test_a_run_of_the_table_behaves_as_it_did(name, monkeypatch, tmp_path):
  """Of the tables whose results have fingerprints; on the processor that made one of them."""
  monkeypatch.chdir(ROOT)
  results = sweeps.read_results(SWEEPS[name])
  first = next(key for key, result in results.items() if result.get("fingerprint"))
  if any(flag.startswith("--config.pretrained=runs/") for flag in results[first]["flags"]):
    pytest.skip("it begins at parameters that another run left")
  text = sweeps.verify(SWEEPS[name], first, tmp_path)
  if text.startswith(sweep_results.NOT_COMPARABLE):
    pytest.skip(text)
  assert text == sweep_results.SAME
