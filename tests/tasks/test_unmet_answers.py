"""Answers of a file that no completion can meet: refused at the start, with the keys that fit."""

import json

import pytest

from jaxrl_llm import register
from jaxrl_llm.config import base_config, from_dict
from jaxrl_llm.fields import Problems
from jaxrl_llm.grading import grading
from jaxrl_llm.tasks import problem_table
from jaxrl_llm.wiring.task import TaskSections, checked_task

RATIONALE = "Ann has 5+5=<<5+5=10>>10 pens.\n#### 10"


def errors(tmp_path, row: dict, verifier: str, reward: str = "task", **data) -> str:
  """Returns what the start says of a file with this row."""
  good = {"numeric": "2", "choice": "B"}.get(verifier, "x")
  rows = [{"question": "1+1?", "problem": "1+1?", "answer": good} | data.pop("first", {}), row]
  (tmp_path / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
  config = base_config()
  config.task.update(name="dataset", heldout_problems=0)
  config.task.data.update(path=str(tmp_path / "rows.jsonl"), verifier=verifier, **data)
  config.rollout.update(prompts=2, max_prompt_tokens=64)
  config.reward.name, config.model.vocab_size = reward, 258
  problems = Problems()
  checked_task(TaskSections.of(from_dict(config)), None, problems)
  return "\n".join(map(str, problems.errors))


UNMET = [
    ({"question": "q", "answer": RATIONALE}, "math", "task.data.mapping=gsm8k"),
    ({"question": "q", "answer": RATIONALE}, "numeric", "task.data.mapping=gsm8k"),
    ({"question": "q", "answer": RATIONALE}, "exact", "task.data.mapping=gsm8k"),
    ({"question": "q", "answer": "Ann has 5 and 5 pens.\nSo she has 10 pens."}, "math", "the row"),
    ({"question": "q", "answer": "<answer>5</answer>"}, "math", "the row"),
    ({"question": "q", "answer": r"\frac{1}{2"}, "math", "task.data.verifier=exact"),
    ({"question": "q", "answer": "x^2"}, "numeric", "task.data.verifier=math"),
    ({"question": "q", "answer": "3"}, "choice", "task.data.verifier=numeric"),
]


@pytest.mark.parametrize("row, verifier, fix", UNMET)
def test_an_answer_that_none_can_meet_is_refused_with_the_key_that_fits(tmp_path, row, verifier,
                                                                        fix):
  text = errors(tmp_path, row, verifier, prompt_column="question")
  assert "rows.jsonl, line 2" in text and f"Fix: {fix}" in text
  assert errors(tmp_path, row, verifier, prompt_column="question", bad_rows="drop") == ""


def test_a_solution_that_a_mapping_reads_is_named(tmp_path):
  row = {"problem": "p", "solution": r"So we get \boxed{\sqrt{5}}."}
  text = errors(tmp_path, row, "exact", answer_column="solution", first={"solution": "2"})
  assert "Fix: task.data.mapping=math" in text


@pytest.mark.parametrize("verifier, answer", [
    ("math", "10"), ("math", r"\frac{1}{2}"), ("math", "$x^2+1$"), ("math", r"(0,1)\cup(2,3)"),
    ("math", "\\begin{pmatrix} 1 \\\\\n 2 \\end{pmatrix}"), ("math", "5 or 6"), ("math", "x=5"),
    ("math", r"We get \boxed{5}."), ("math", r"\text{Montréal}"), ("math", "The answer is 42."),
    ("math", "true"), ("numeric", "1,234"), ("numeric", "$18"), ("numeric", "12 apples"),
    ("numeric", r"50\%"), ("choice", "(B)"), ("exact", "The answer is Paris"), ("strict", "10"),
    ("exact", "def f(x):\n  return x + 1")])
def test_answers_that_can_be_met_pass(verifier, answer):
  assert grading.unmet(verifier, answer) is None


def test_an_own_reward_reads_the_answers_as_it_likes(tmp_path):
  register.reward("reads_rationales", replace=True)(lambda problem, completion, cfg: 1.0)
  for reward, refused in (("reads_rationales", False), ("task,reads_rationales", True)):
    text = errors(tmp_path, UNMET[0][0], "math", reward, prompt_column="question")
    assert bool(text) == refused


def test_a_gold_that_is_tried_as_it_stands_would_pass(tmp_path, monkeypatch):
  """What the tests above reject: no model writes a rationale to the letter."""
  def as_it_stands(kind, gold):
    return None if grading.judge(kind, gold, gold).correct else "wrong"

  monkeypatch.setattr(problem_table, "unmet", as_it_stands)
  assert errors(tmp_path, UNMET[0][0], "exact", prompt_column="question") == ""
