"""Signs that a run cannot learn: which histories each rule names, once, with its fix."""

import json
import math

import pytest
import tiny

from experiments.report import OBSERVERS, symptoms
from experiments.report.symptoms import RULES, Absent, Rule, Symptoms
from jaxrl_llm.config import from_dict
from jaxrl_llm.runs import trainer

VOCABULARY = 100
HEALTHY = {"lowest": 0.0, "highest": 1.0, "missing": 0.2, "stopped": 0.9, "rollout/truncated": 0.1,
           "rollout/length": 12.0, "reward/correct": 0.4, "policy/entropy": 0.7, "ratio/ess": 0.8}
ILL = {
    "constant reward": {"lowest": 0.0, "highest": 0.0},
    "no answer": {"missing": 1.0},
    "no stop": {"stopped": 0.0, "rollout/truncated": 1.0},
    "cut off": {"stopped": 0.3, "rollout/truncated": 0.7},
    "shrunk": {"rollout/length": 1.1, "reward/correct": 0.0},
    "certain": {"policy/entropy": 0.001, "reward/correct": 0.0},
    "random": {"policy/entropy": math.log(VOCABULARY)},
    "few": {"ratio/ess": 0.01},
}


def named(caplog, history, rules=RULES) -> list[str]:
  """Rules that a history of iterations makes `Symptoms` name, in order."""
  caplog.clear()
  looking = Symptoms(VOCABULARY, rules)
  for iteration, line in enumerate(history, 1):
    looking.look(iteration, line, "a text of the policy")
  for record in caplog.records:
    assert "such as 'a text of the policy'. Fix: " in record.getMessage()
  fixes = {rule.fix: name for name, rule in rules.items()}
  return [fixes[record.args[3]] for record in caplog.records]


def test_each_sign_is_named_once_and_a_healthy_run_is_not(caplog):
  assert ILL.keys() == RULES.keys()
  assert named(caplog, [HEALTHY] * 9) == []
  for name, change in ILL.items():
    assert named(caplog, [HEALTHY, *[HEALTHY | change] * 9]) == [name]
    short = RULES[name].steady - 1
    broken = [HEALTHY, *[HEALTHY | change] * short, HEALTHY, *[HEALTHY | change] * short]
    assert named(caplog, broken) == [], "iterations that are not in a row"


@pytest.mark.parametrize("wrong", [
    lambda f: f["highest"] == 0.0,  # misses a reward that is always 1
    lambda f: f["reward/mean"] in (0.0, 1.0),  # misses one that is always 0.5
])
def test_a_reward_that_never_differs_is_named_whatever_it_is(caplog, wrong):
  history = [[HEALTHY | {"lowest": x, "highest": x, "reward/mean": x}] * 4 for x in (0.0, 0.5, 1.0)]
  assert all(named(caplog, lines) == ["constant reward"] for lines in history)
  rules = {"constant reward": Rule(wrong, *RULES["constant reward"][1:])}
  assert any(named(caplog, lines, rules) == [] for lines in history)


def test_short_answers_that_are_right_are_no_collapse(caplog):
  """The wrong rule, by length alone, would name a policy that learnt to answer briefly."""
  brief = [HEALTHY, *[HEALTHY | {"rollout/length": 2.0, "reward/correct": 0.9}] * 4]
  assert named(caplog, brief) == []
  wrong = {"shrunk": Rule(lambda f: f["rollout/length"] <= 2.0, *RULES["shrunk"][1:])}
  assert named(caplog, brief, wrong) == ["shrunk"]


def test_what_was_not_measured_holds_for_no_rule():
  assert [name for name, rule in RULES.items() if rule.holds(Absent())] == []


@pytest.mark.slow
def test_files_are_the_same_to_the_byte_with_and_without(tmp_path, monkeypatch, caplog, capsys):
  def files(name: str, warnings: str) -> dict:
    config = tiny.get_config()
    config.iterations, config.warnings = 2, warnings
    trainer.run(from_dict(config), tmp_path / name, OBSERVERS)
    folder = tmp_path / name
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [{key: x for key, x in line.items() if not key.startswith("time/")} for line in lines]
    kept = [*(folder / "rollouts").iterdir(), *folder.glob("heldout.jsonl"),
            *folder.glob("samples.json")]
    return {"lines": lines} | {path.name: path.read_bytes() for path in kept}

  with_lines = files("all", "all")
  assert "16 sampled completions before training: " in capsys.readouterr().out
  assert len(with_lines) > 3 and files("none", "none") == with_lines
  assert "sampled completions before" not in capsys.readouterr().out
  monkeypatch.setattr(symptoms, "at_start", lambda heldout, sampler, params: (heldout.task.batch(0)
                      and heldout.problems.reverse()) or "")
  assert files("wrong", "all") != with_lines, "the test would not see what a start disturbs"
