"""One row of every schema, and the ways in which a row can be wrong."""

import pytest

from jaxrl_llm.config import DataConfig
from jaxrl_llm.grading import verifiers
from jaxrl_llm.registry import VERIFIERS
from jaxrl_llm.tasks import mappings
from jaxrl_llm.tasks.mappings import Fields, RowError, make_mapping

VERL = {
    "data_source": "own", "ability": "MATH",
    "prompt": [{"role": "user", "content": "Six times seven?"}],
    "reward_model": {"ground_truth": "42", "style": "rule"}, "extra_info": {"index": "a7"},
}
BEADS = "Mia buys 3 bags of 400 beads. How many?"
HALF, SPEED = r"So \boxed{\frac{1}{2}}.", r"First \boxed{1}, at last \boxed{3 \text{ m}}."
ROWS = {
    "gsm8k": ({"question": BEADS, "answer": "She has 3*400=<<3*400=1200>>1200 beads.\n#### 1,200"},
              Fields(BEADS, "1200", "She has 3*400=1200 beads.\n#### 1200")),
    "math": ({"problem": "Halve one.", "solution": HALF, "answer": r"\frac{1}{2}",
              "unique_id": "own/1.json", "level": 1},
             Fields("Halve one.", r"\frac{1}{2}", HALF, "own/1.json")),
    "deepscaler": ({"problem": "One plus one?", "answer": "2", "solution": ""},
                   Fields("One plus one?", "2")),
    "dapo": (VERL, Fields("Six times seven?", "42", id="a7")),
    "aime": ({"problem_idx": 1, "problem": "Seventy-three?", "answer": "073"},
             Fields("Seventy-three?", "73")),
    "amc23": ({"question": "Twenty-seven?", "answer": "27.0"}, Fields("Twenty-seven?", "27")),
    "minerva": ({"problem": "How fast?", "solution": SPEED, "idx": 4},
                Fields("How fast?", r"3 \text{ m}", SPEED)),
    "olympiadbench": ({"question": "Which x?", "final_answer": ["$x=2$", "$3$"],
                       "is_multiple_answer": False}, Fields("Which x?", "x=2")),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows(name):
  row, expected = ROWS[name]
  assert make_mapping(DataConfig(mapping=name)).convert(row) == expected


def test_every_mapping_is_tested_and_can_be_asked_for():
  shown = DataConfig.__dataclass_fields__["mapping"].metadata["doc"]
  assert set(ROWS) == set(mappings.MAPPINGS) and all(name in shown for name in ROWS)
  used = {mappings.MAPPINGS[name].verifier for name in mappings.MAPPINGS}
  assert used <= set(VERIFIERS) == set(verifiers.KINDS)


@pytest.mark.parametrize("name", [n for n, (_, fields) in ROWS.items() if fields.demonstration])
def test_demonstrations_earn_the_reward(name):
  _, fields = ROWS[name]
  assert verifiers.verify(mappings.MAPPINGS[name].verifier, fields.demonstration,
                          fields.answer).value == 1.0


@pytest.mark.parametrize("name,completion", [("aime", "It is 73."), ("amc23", r"\boxed{27}"),
                                             ("dapo", "Answer: 42"), ("deepscaler", r"\boxed{2}"),
                                             ("olympiadbench", r"\boxed{x=2}")])
def test_usual_answers_earn_the_reward(name, completion):
  assert verifiers.verify(mappings.MAPPINGS[name].verifier, completion,
                          ROWS[name][1].answer).value == 1.0


@pytest.mark.parametrize("name, change, message", [
    ("gsm8k", {"answer": "no mark 5"}, "no ####"),
    ("gsm8k", {"answer": "why ####  "}, "no ####"),
    ("gsm8k", {"question": "  "}, "'question' is empty"),
    ("gsm8k", {"question": 3}, "3, a int; a text"),
    ("math", {"answer": ["1"]}, "a list; a text or a number"),
    ("math", {"answer": True}, "a bool"),
    ("aime", {"answer": "1000"}, "from 0 to 999"),
    ("aime", {"answer": "-3"}, "from 0 to 999"),
    ("amc23", {"answer": "x"}, "a number was expected"),
    ("minerva", {"solution": "none"}, "no .boxed"),
    ("minerva", {"solution": r"\boxed{ }"}, "no .boxed"),
    ("olympiadbench", {"final_answer": []}, "a list of texts"),
    ("olympiadbench", {"final_answer": ["$$"]}, "empty"),
    ("dapo", {"reward_model": "42"}, "an object was expected"),
    ("deepscaler", {"answer": ""}, "'answer' is empty"),
])
def test_bad_rows(name, change, message):
  with pytest.raises(RowError, match=message):
    mappings.MAPPINGS[name].convert(ROWS[name][0] | change)


@pytest.mark.parametrize("name, row, expected", [
    ("aime", {"Problem": "p", "Answer": 336}, Fields("p", "336")),
    ("aime", {"question": "p", "answer": r"336^\circ"}, Fields("p", "336")),
    ("aime", {"problem": "p", "solution": r"so \boxed{073}"}, Fields("p", "73")),
    ("math", {"problem": "p", "answer": None, "solution": r"so $\boxed 5$."},
     Fields("p", "5", r"so $\boxed 5$.")),
    ("minerva", {"question": "q", "answer": "3"}, Fields("q", "3")),
    ("olympiadbench", {"question": "q", "final_answer": ["$1$", "$2$"], "error": None},
     Fields("q", "1, 2")),
    ("olympiadbench", {"question": "q", "final_answer": ["1.5"], "unit": "cm"},
     Fields("q", r"1.5\text{ cm}")),
    ("dapo", VERL | {"prompt": [{"role": "system", "content": "s"},
                                {"role": "user", "content": "u"}]},
     Fields("u", "42", id="a7", context=(("system", "s"),))),
])
def test_published_variants(name, row, expected):
  assert mappings.MAPPINGS[name].convert(row) == expected


def test_dapo_without_an_index_is_told_apart_by_its_prompt():
  convert = mappings.MAPPINGS["dapo"].convert
  first, again, other = (convert({"prompt": p, "solution": "34"}) for p in ("q", "q", "r"))
  assert first.id == again.id != other.id and first.answer == "34"


def test_a_tolerance_is_kept_with_the_answer():
  row = {"question": "q", "final_answer": ["2.31"], "error": "1e-2"}
  answer = mappings.MAPPINGS["olympiadbench"].convert(row).answer
  answers = ("2.30", "2.33", r"\frac{231}{100}")
  verdicts = [verifiers.verify("math", rf"\boxed{{{one}}}", answer).correct for one in answers]
  assert verdicts == [True, False, True]
