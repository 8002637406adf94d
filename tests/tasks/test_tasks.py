"""Chains of digits: exact answers, disjoint splits, and a tokenizer that loses nothing."""

import pytest
from transformers import AutoTokenizer

from jaxrl_llm.config import TaskConfig
from jaxrl_llm.tasks import tokenizer
from jaxrl_llm.tasks.arithmetic import ModularChain
from jaxrl_llm.types import Problem

TASK = ModularChain(TaskConfig(num_terms=5, worked_share=0.5), seed=0, batch_size=64)


def evaluate(prompt):
  value, *rest = int(prompt[0]), *prompt[1:]
  for sign, digit in zip(rest[::2], rest[1::2], strict=True):
    value = {"+": value + int(digit), "-": value - int(digit), "*": value * int(digit)}[sign] % 10
  return str(value)


def test_answers_and_demonstrations_are_right():
  worked = 0
  for problem in TASK.batch(0) + TASK.heldout(64):
    assert problem.answer == evaluate(problem.prompt)
    assert TASK.reward(problem, problem.demonstration).value == 1.0
    wrong = problem.demonstration[:-1] + str((int(problem.answer) + 1) % 10)
    assert TASK.reward(problem, wrong).value == 0.0
    assert len(TASK.render(problem)) <= TASK.longest_prompt()
    worked += problem.demonstration.startswith(":")
  assert 40 < worked < 90


@pytest.mark.parametrize("completion", ["", "=", "=77", "7=", "= 7", "=7=", "<pad>7", "=<pad>7"])
def test_anything_else_is_wrong(completion):
  assert not TASK.reward(Problem("7+0", "7"), completion).correct


def test_train_and_heldout_are_disjoint():
  heldout = {p.prompt for p in TASK.heldout(256)}
  assert len(heldout) == 256
  trained = {p.prompt for index in range(100) for p in TASK.batch(index)}
  assert not heldout & trained and TASK.batch(5) != TASK.batch(6)


def test_tokenizer_round_trip(tmp_path):
  TASK.tokenizer.save_pretrained(tmp_path)
  loaded = AutoTokenizer.from_pretrained(tmp_path)
  for problem in TASK.batch(0):
    ids = TASK.render(problem) + TASK.demonstration(problem)
    assert loaded.decode(ids) == problem.prompt + problem.demonstration + tokenizer.EOS
    assert loaded.encode(problem.prompt, add_special_tokens=False) == TASK.render(problem)
  assert (loaded.pad_token_id, loaded.eos_token_id) == (0, 1)
  with pytest.raises(ValueError, match="does not survive"):
    tokenizer.encode(loaded, "7x7")
