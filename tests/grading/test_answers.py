"""Verdicts on answers that were judged by hand, in three files, and on texts of people and a model.

  answer_pairs.jsonl          1,364 answers in the style of competition problems; math: of a box
  answer_forms.jsonl          479 whole texts: hedges, sentences, boxes, letters, marks
  answer_kinds.jsonl          rare kinds of answers: what looks close to the gold, and what equals
                              it
  smollm2_completions.jsonl   200 of SmolLM2-135M-Instruct's completions: sums and GSM8K, sampled
                              at temperature 0.7 up to 32 and 160 tokens. `stated` is the number
                              that it gives as its answer, where a reader finds one.

`missed` marks right answers that the verifier is known to refuse.
"""

import json
import re
from pathlib import Path

import pytest
from suites import quick_for

from jaxrl_llm.grading import verifiers
from jaxrl_llm.tasks.mappings import MAPPINGS

HERE = Path(__file__).parent
GSM8K = HERE.parents[2] / "shared" / "data" / "gsm8k" / "test.jsonl"


def rows(name: str) -> list[dict]:
  return [json.loads(line) for line in (HERE / f"{name}.jsonl").read_text().splitlines()]


def judged(name: str) -> list[tuple[dict, verifiers.Verdict]]:
  """Rows of a file with the verdicts on them."""
  pairs = []
  for kind in ("exact", "numeric", "math", "choice"):
    asked = [row for row in rows(name) if row["kind"] == kind]
    is_box = kind == "math" and name != "answer_forms"
    texts = [rf"so \boxed{{{row['said']}}}." if is_box else row["said"] for row in asked]
    golds = [row["gold"] for row in asked]
    pairs += zip(asked, verifiers.grade_many(kind, texts, golds, timeout=60.0), strict=True)
  return pairs


# At least this share is decided as judged.
FILES = {"answer_pairs": 0.95, "answer_forms": 0.80, "answer_kinds": 1.0}


@pytest.mark.parametrize("name", quick_for({"answer_forms", "answer_kinds"}, [*FILES]))
def test_judged_answers(name):
  verdicts = judged(name)
  wrong = [(row, verdict) for row, verdict in verdicts
           if verdict.correct != (row["correct"] and not row.get("missed"))
           or verdict.unscored_reason not in (None, "timeout: the right answer")]  # 2^{2^{2004}}
  assert wrong == []
  agree = sum(verdict.correct == row["correct"] for row, verdict in verdicts)
  assert agree >= FILES[name] * len(verdicts)


def test_the_files_reject_simpler_verifiers():
  """Equality of strings misses most pairs; the first or last number of a form is often wrong."""
  assert sum((row["gold"] == row["said"]) != row["correct"]
             for row in rows("answer_pairs") if row["kind"] == "math") > 300
  forms = [row for row in rows("answer_forms") if row["kind"] == "numeric"]
  for position in (0, -1):
    numbers = [(re.findall(r"-?\d[\d,]*(?:\.\d+)?", row["said"]) or ["none"])[position]
               for row in forms]
    wrong = sum((number.replace(",", "") == row["gold"]) != row["correct"]
                for number, row in zip(numbers, forms, strict=True))
    assert wrong > len(forms) / 5


def completions() -> list[dict]:
  return [row for row in rows("smollm2_completions") if not row.get("missed")]


@pytest.mark.parametrize("kind", ["math", "numeric"])
def test_completions_of_a_model(kind):
  texts = [row["completion"] for row in completions()]
  verdicts = verifiers.grade_many(kind, texts, [row["gold"] for row in completions()])
  assert [verdict.correct for verdict in verdicts] == [row["correct"] for row in completions()]


def test_what_a_model_states_is_read():
  """Each completion with an answer is right if that answer were the gold."""
  stated = [row for row in completions() if row["stated"] is not None]
  verdicts = verifiers.grade_many("math", [row["completion"] for row in stated],
                                  [row["stated"] for row in stated])
  assert len(stated) > 90
  assert [row for row, verdict in zip(stated, verdicts, strict=True) if not verdict.correct] == []


def test_the_first_and_the_last_number_are_other_answers():
  stated = [row for row in completions() if row["stated"] is not None]
  numbers = [re.findall(r"\d+(?:\.\d+)?", row["completion"]) for row in stated]
  answers = [row["stated"] for row in stated]
  first, last = (sum(values[position] != answer for values, answer in zip(numbers, answers,
                                                                          strict=True))
                 for position in (0, -1))
  assert first > len(stated) / 3 and last >= 3


def test_strict_wants_a_mark_or_a_box():
  texts = [row["completion"] for row in completions()]
  answers = [row["stated"] or row["gold"] for row in completions()]
  by_mark = [bool(re.search(r"####|(?i:answer(?: is|:))|\\boxed", text)) for text in texts]
  lenient, strict = (verifiers.grade_many(kind, texts, answers) for kind in ("math", "strict"))
  expected = [a.correct and b for a, b in zip(lenient, by_mark, strict=True)]
  assert [verdict.correct for verdict in strict] == expected
  assert 10 < sum(expected) < sum(verdict.correct for verdict in lenient)


@pytest.mark.skipif(not GSM8K.is_file(), reason=f"no copy of GSM8K at {GSM8K}")
def test_published_solutions_of_gsm8k():
  """As published, and without the mark: then the last sentence is read."""
  table = [json.loads(line) for line in GSM8K.read_text().splitlines()]
  golds = [MAPPINGS["gsm8k"].convert(row).answer for row in table]
  texts = [row["answer"] for row in table]
  assert all(verdict.correct for verdict in verifiers.grade_many("math", texts, golds))
  assert all(verdict.correct for verdict in verifiers.grade_many("strict", texts, golds))
  shifted = [str(int(gold) + 1) for gold in golds]
  assert not any(verdict.correct for verdict in verifiers.grade_many("math", texts, shifted))
  solutions = [text.rpartition("####")[0].strip() for text in texts]
  verdicts = [verdict.correct for verdict in verifiers.grade_many("math", solutions, golds)]
  assert sum(verdicts) >= 0.95 * len(verdicts)
