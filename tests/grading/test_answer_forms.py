"""Answers as models write them, whole texts: tests/grading/answer_forms.jsonl, judged by hand.

The first 292 were written before the grader was changed for them, those with `probe` were found
wrong afterwards. `about` is the kind: 1 hedges and sentences, 2 boxes, 3 letters, 4 marks around a
number, 5 exact numbers, 6 parts that a checker might not read.
"""

import collections
import json
import re
from pathlib import Path

import pytest

from jaxrl_llm.grading import verifiers

FORMS = [json.loads(line)
         for line in Path(__file__).with_name("answer_forms.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("about", range(1, 7))
def test_judged_forms(about):
  wrong = []
  for kind in ("exact", "numeric", "math", "choice"):
    forms = [form for form in FORMS if form["about"] == about and form["kind"] == kind]
    verdicts = verifiers.grade_many(kind, [form["said"] for form in forms],
                                    [form["gold"] for form in forms], timeout=60.0)
    wrong += [(form, verdict) for form, verdict in zip(forms, verdicts, strict=True)
              if verdict.correct != form["correct"] or verdict.unscored_reason]
  assert wrong == []


def test_half_of_the_forms_are_right_answers():
  first = [form for form in FORMS if not form.get("probe")]
  counts = collections.Counter(form["correct"] for form in first)
  assert len(first) >= 150 and abs(counts[True] - counts[False]) < 0.1 * len(first)


def test_the_forms_reject_the_first_and_the_last_number():
  """Each is wrong for a fifth of the statements of numbers without a box."""
  forms = [form for form in FORMS if form["kind"] == "numeric" and "box" not in form["said"]]
  for position in (0, -1):
    wrong = 0
    for form in forms:
      digits = re.findall(r"-?\d[\d,]*(?:\.\d+)?", form["said"]) or ["none"]
      wrong += (digits[position].replace(",", "") == form["gold"]) != form["correct"]
    assert wrong > len(forms) / 5
