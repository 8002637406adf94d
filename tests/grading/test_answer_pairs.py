"""1,300 judged answers in the style of competition problems: tests/grading/answer_pairs.jsonl.

Golds, answers and judgements were written by hand for this file. `missed` marks the right answers
that the verifier is known to refuse.
"""

import collections
import json
from pathlib import Path

import pytest
from suites import quick_for

from jaxrl_llm.grading import grading, verifiers

PAIRS = [json.loads(line)
         for line in Path(__file__).with_name("answer_pairs.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("kind", quick_for({"numeric", "choice"}, ["math", "numeric", "choice"]))
def test_judged_pairs(kind):
  pairs = [pair for pair in PAIRS if pair["kind"] == kind]
  texts = [rf"so \boxed{{{pair['said']}}}." if kind == "math" else pair["said"] for pair in pairs]
  found = verifiers.grade_many(kind, texts, [pair["gold"] for pair in pairs], timeout=60.0)
  wrong = [(pair["gold"], pair["said"], verdict) for pair, verdict in zip(pairs, found, strict=True)
           if verdict.correct != (pair["correct"] and not pair.get("missed"))
           or verdict.unscored_reason]
  assert wrong == []


def test_the_pairs_reject_simpler_verifiers():
  """Equality of strings misses most; the last number of a text is wrong in a third."""
  judged = collections.Counter()
  for pair in PAIRS:
    if pair["kind"] == "math":
      judged["strings"] += (pair["gold"] == pair["said"]) != pair["correct"]
    elif pair["kind"] == "numeric":
      said = grading.last_number(pair["said"])
      judged["numbers"] += (said == grading.last_number(pair["gold"])) != pair["correct"]
  assert judged["strings"] > 300 and judged["numbers"] > 15
