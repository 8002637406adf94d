"""What the notebooks call: sizes, folders, and that an edited cell is what runs."""

import functools

import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from experiments.report.run_folder import read_run
from experiments.tables_lib import checkout, notebook
from experiments.tables_lib.exact import exact_gradient
from jaxrl_llm import presets, register
from jaxrl_llm.config import EstimatorConfig, base_config, from_dict
from jaxrl_llm.objective.estimators import common

CELL = """
@register.estimator("mine", replace=True)
def mine(log_probs, anchor_log_probs, advantages, mask, cfg):
  weight = {weight} + 0 * log_probs
  loss = common.score_function_surrogate(weight, log_probs, advantages, mask)
  none = mask & False
  return common.output(loss, common.clip_counts(mask, high=none, low=none, dropped=none))
"""


def edited(weight: float) -> None:
  """Runs the cell that registers `mine`, as it stands after an edit."""
  names = {"__name__": "__main__", "register": register, "common": common}
  exec(CELL.format(weight=weight), names)


def coefficients(row_function) -> list[float]:
  """Returns the coefficient of `mine` after each of two edits of its cell."""
  values, ones = [], np.ones((1, 2))
  for weight in (1.0, 3.0):
    edited(weight)
    out = row_function(EstimatorConfig("mine"))(-ones, -ones, ones, ones > 0)
    values.append(float(out[0][0, 0]))
  return values


@pytest.mark.parametrize("devices, measured", [("cpu", True), ("cpu, cpu", True),
                                               ("TPU v5 lite", False), ("Tesla T4", False)])
def test_the_first_cell_says_what_a_run_takes(devices, measured):
  text = notebook.expected(devices, 2)
  assert ("here there are 2" in text) == measured == ("not measured" not in text)


def test_an_edited_estimator_is_what_the_exact_table_shows():
  assert coefficients(exact_gradient.row_function) == [1.0, 3.0]
  stale = functools.cache(exact_gradient.row_function)  # a cache by name
  assert coefficients(stale) == [1.0, 1.0]


@pytest.mark.nightly
def test_an_edited_estimator_is_what_trains(monkeypatch, tmp_path):
  monkeypatch.setattr(checkout, "RUNS", tmp_path)
  monkeypatch.setenv(checkout.VARIABLE, "1")
  norms = []
  for weight in (1.0, 0.0):
    edited(weight)
    folder = notebook.run(config("mine"), "mine")
    norms.append(read_run(folder).series("optimizer/grad_norm")[1])
  assert {path.name for path in tmp_path.iterdir()} == {"mine", "mine-2"}
  assert norms[0].max() > 0 and norms[1].max() == 0


def config(estimator: str = "ppo"):
  out = presets.apply(base_config(), "grpo")
  out.model.vocab_size = 17
  out.task.update(name="modular_chain", num_terms=2)
  out.rollout.update(max_prompt_tokens=4, max_new_tokens=6, window=6)
  out.estimator.name = estimator
  return out


def test_fast_changes_sizes_alone(monkeypatch):
  monkeypatch.delenv(checkout.VARIABLE, raising=False)
  assert notebook.sized(config()) == config()
  monkeypatch.setenv(checkout.VARIABLE, "1")
  small = notebook.sized(config()).to_dict()
  flat, full = (flatten_dict(sizes, sep=".") for sizes in (small, config().to_dict()))
  changed = {key for key in flat if flat[key] != full[key]}
  assert changed <= set(checkout.SIZES) and "iterations" in changed
  assert all(type(size) is int for size in checkout.SIZES.values())
  from_dict(small)


def test_a_mistake_is_one_line(monkeypatch, tmp_path):
  monkeypatch.setattr(checkout, "RUNS", tmp_path)
  wrong = config()
  wrong.estimator.name = "grop"
  with pytest.raises(SystemExit, match=r"^error: estimator.name = 'grop'"):
    notebook.run(wrong, "x")


def test_tables_and_versions_are_shown(monkeypatch, tmp_path, capsys):
  monkeypatch.setenv(checkout.VARIABLE, "1")
  monkeypatch.setattr(notebook, "display", show)
  edited(1.0)
  notebook.exact_table(EstimatorConfig("mine"))
  bias = [line.split("|") for line in capsys.readouterr().out.splitlines() if "|" in line]
  named = {line[1].strip(): [cell.strip() for cell in line[2:-1]] for line in bias[2:7]}
  assert named["mine"] == named["none"] != named["token"]
  page = tmp_path / "page.html"
  page.write_text('<p title="a">b</p>')
  notebook.show_page(page)
  assert "srcdoc=\"&lt;p title=&quot;a&quot;&gt;" in capsys.readouterr().out


def test_runs_of_one_name_are_all_compared(monkeypatch, tmp_path, capsys):
  monkeypatch.setattr(notebook, "display", show)
  folders = [tmp_path / parent / "run" for parent in ("a", "b")]
  for folder in folders:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "metrics.jsonl").write_text('{"iteration": 0, "eval/accuracy": 0.5}\n')
  notebook.compare(*folders)
  printed = capsys.readouterr().out
  assert "| a/run" in printed and "| b/run" in printed
  with pytest.raises(SystemExit, match=r"error: .*run has no metric 'eval/acc'"):
    notebook.compare(*folders, metric="eval/acc")


def show(page) -> None:
  """Prints what a notebook would render."""
  print(page.data)
