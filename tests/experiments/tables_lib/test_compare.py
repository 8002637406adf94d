"""Comparison of runs: groups, means and intervals over seeds, runs of different length."""

import json
import subprocess
import sys
from pathlib import Path

import experiment_files
import numpy as np
import pytest

from experiments.report import strips
from experiments.report.run_folder import read_run
from experiments.tables_lib import compare
from jaxrl_llm.config import Config, to_dict
from jaxrl_llm.reporting.reader import RunError

command = experiment_files.load(Path(__file__).parents[3] / "experiments" / "compare.py")


def write(folder, values, *, estimator="ppo", seed=0, planned=None, **changes):
  """A run that logged these accuracies at iterations 0, 1, ..."""
  folder.mkdir()
  config = to_dict(Config())
  config["estimator"]["name"], config["seed"] = estimator, seed
  config["iterations"] = len(values) - 1 if planned is None else planned
  (folder / "config.json").write_text(json.dumps(config | changes))
  lines = [{"iteration": i, "eval/accuracy": value} for i, value in enumerate(values)]
  (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
  return folder


@pytest.fixture
def runs(tmp_path):
  return [
      write(tmp_path / "a", [0.1, 0.9, 0.2]),
      write(tmp_path / "b", [0.3, 0.5, 0.6], seed=1),
      write(tmp_path / "c", [0.2, 0.4, 0.7, 0.9], seed=2, planned=2),
      write(tmp_path / "d", [0.1, 0.1, 0.1], estimator="ctpo"),
  ]


def test_runs_that_differ_in_the_seed_are_one_group(runs):
  comparison = compare.compare(runs[:2] + runs[3:], "eval/accuracy")
  assert {group.label: group.seeds for group in comparison.groups} == {"ppo": [0, 1], "ctpo": [0]}
  first, second = compare.rows(comparison)
  assert first[:3] == ("ppo", "0, 1", "2") and second[0] == "ctpo"
  assert second[3] == "0.1 (one seed)"
  # Student's t with one degree of freedom: 12.7062 standard errors of 0.2
  assert first[3] == f"0.4 ± {12.7062 * 0.2:.2g}"
  assert first[4].startswith("0.75 ±"), "the best of each seed: 0.9 and 0.6"
  assert compare.rows(compare.compare(runs[:2] + runs[3:], "-eval/accuracy"))[0][0] == "ctpo"


def test_a_longer_run_counts_up_to_the_shorter_ones_end_and_is_told(runs, tmp_path):
  going = write(tmp_path / "e", [0.5, 0.6], seed=3, planned=2)
  comparison = compare.compare([runs[0], going], "eval/accuracy")
  (group,) = comparison.groups
  assert group.label == "all runs" and group.iterations.tolist() == [0, 1]
  np.testing.assert_array_equal(group.values, [[0.1, 0.9], [0.5, 0.6]])
  (note,) = comparison.notes
  assert "iteration 1 of 2" in note and "/e:" in note
  empty = write(tmp_path / "f", [], seed=4, planned=2)
  comparison = compare.compare([*runs[:2], empty, runs[3]], "eval/accuracy", ["seed"])
  assert len(comparison.groups) == 2 and any("left out" in note for note in comparison.notes)


@pytest.mark.parametrize("metric, by, message", [
    ("eval/acuracy", [], "Fix: eval/accuracy"),
    ("eval/accuracy", ["nam.learning_rate"], "Fix: optimizer.learning_rate or warm_start.learning"),
])
def test_unknown_names_are_refused_with_the_nearest(runs, metric, by, message):
  with pytest.raises(RunError) as error:
    compare.compare(runs, metric, by)
  assert message in str(error.value) and "\n" not in str(error.value)


def test_the_command_leaves_its_own_folder_out(runs, tmp_path, monkeypatch, capsys):
  """A pattern such as runs/* finds it, the second time."""
  out = tmp_path / "compared"
  monkeypatch.setattr(sys, "argv", ["compare.py", *map(str, runs), str(out), f"--out={out}"])
  command.main()
  once = capsys.readouterr().out
  command.main()
  assert capsys.readouterr().out == once and (out / "compare.html").exists()


def add_completions(folder, *pairs):
  """Greedy completions of one problem, as (iteration, text, whether it is correct)."""
  for iteration, text, correct in pairs:
    strips.add(folder, iteration, [("2+2=", "4", text, correct)])


def test_a_run_that_goes_on_has_each_completion_once(runs):
  add_completions(runs[0], (0, "a", False), (1, "b", False), (2, "c", False), (1, "d", True))
  with open(runs[0] / strips.FILE, "a") as file:
    file.write('{"iteration": 2, "pro')  # torn by a crash
  add_completions(runs[0], (2, "e", True))
  (strip,) = strips.read(read_run(runs[0]))
  assert [text for _, text, _ in strip.completions] == ["a", "d", "e"]


@pytest.fixture
def trained(tmp_path, monkeypatch):
  """Starts the command with its trainings replaced: from arguments to the flags of each run."""
  def start(*arguments):
    commands = []

    def train(words, check):
      commands.append(words[2:])
      write(Path(words[3].partition("=")[2]), [0.1, 0.5], estimator=f"e{len(commands)}")
      return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(command.subprocess, "run", train)
    monkeypatch.setattr(sys, "argv", ["compare.py", f"--out={tmp_path}", *arguments])
    command.main()
    return commands

  return start


def test_the_command_trains_each_preset_and_labels_it(trained, capsys):
  commands = trained("--train=cispo,gspo", "--config.iterations=1")
  assert [words[0] for words in commands] == [
      f"--config=configs/offpolicy.py:{name}" for name in ("cispo", "gspo")]
  assert all(words[2:] == ["--config.iterations=1"] for words in commands)
  printed = capsys.readouterr().out
  assert "| cispo" in printed and "- the runs differ in estimator.name." in printed
  with pytest.raises(SystemExit):
    trained("--config.iterations=1")


IDEA = """from jaxrl_llm import register


@register.estimator("fresh", anchor="behavior", power=1.0)
def fresh(log_probs, anchor_log_probs, advantages, mask, cfg):
  raise NotImplementedError
"""


def test_an_entry_is_a_method_of_a_file_or_has_values_of_its_own(trained, tmp_path, capsys):
  """Flags of all runs stand behind what the entry's name chooses, before the entry's own values."""
  idea, anchor = tmp_path / "fresh.py", "--config.updates.anchor=behavior"
  idea.write_text(IDEA)
  mine, none = trained(f"--train={idea}:fresh?power=0.5,plain@reinforce?advantage=grpo", anchor)
  assert mine == ["--config=configs/offpolicy.py:grpo", f"--workdir={tmp_path}/fresh_power=0.5",
                  "--config.estimator.name=fresh", anchor, f"--config.plugins={idea}",
                  "--config.estimator.power=0.5"]
  assert none == ["--config=configs/offpolicy.py:reinforce", f"--workdir={tmp_path}/plain", anchor,
                  "--config.advantage.name=grpo"]
  printed = capsys.readouterr().out
  assert "| fresh?power=0.5" in printed and "| plain" in printed
  ((*_, plugins, _), _) = trained(f"--train={idea}:fresh?power=2,fresh", f"--config.plugins={idea}")
  assert plugins == f"--config.plugins={idea},{idea}"


@pytest.mark.parametrize("text, message", [
    ("cispo,gspoo", "Did you mean 'gspo'"),
    ("cispo,nowhere.py:mine", "no such file"),
    ("cispo,cispo", "<label>@cispo"),
    ("cispo?clip_high", "key=value was expected"),
])
def test_a_wrong_entry_is_refused_before_anything_is_trained(trained, text, message):
  with pytest.raises(SystemExit, match="error: ") as error:
    trained(f"--train={text}")
  assert message in str(error.value)
