"""Turns in saved rollouts: written by a run, read back for a replay, shown apart in the report."""


import jax
import numpy as np
import pytest

from experiments.report import html, report
from experiments.report.run_folder import RunFolder
from experiments.tables_lib.replay import frozen
from jaxrl_llm.config import RolloutConfig
from jaxrl_llm.reporting import writers
from jaxrl_llm.reporting.reader import RunError
from jaxrl_llm.runs import evaluate
from jaxrl_llm.runs.records import rollout_rows
from jaxrl_llm.runs.verdicts import Verdicts
from jaxrl_llm.tasks.tokenizer import character_tokenizer
from jaxrl_llm.types import Problem, Reward, Rollout

TOKENIZER = character_tokenizer("0123456789*[];=")
TEXT = ["6*7[6*7]42;=42", "8*1[8*", "9*9=81"]
PROMPT, LENGTH = 3, 18
TOOL = slice(8, 11)  # of the first row


def rollout() -> Rollout:
  tokens = np.zeros((3, LENGTH), np.int32)
  for row, text in enumerate(TEXT):
    tokens[row, :len(text)] = TOKENIZER.encode(text)
  at, length = np.arange(LENGTH), np.array([len(text) for text in TEXT], np.int32)
  turn = ((at >= PROMPT) & (at < length[:, None])).astype(np.int32)
  turn[0, TOOL] = 0
  turn[0, TOOL.stop:length[0]] = 2
  number = np.arange(3, dtype=np.int32)
  return Rollout(tokens, turn > 0, length, np.full(3, PROMPT, np.int32),
                 np.where(turn > 0, -0.5, 0).astype(np.float32), number == 1, number, 0 * turn,
                 number, number, turn, number == 1)


ROWS = RolloutConfig(group_size=1, max_prompt_tokens=PROMPT, max_new_tokens=LENGTH - PROMPT)


def verdicts() -> Verdicts:
  rewards = np.array([1, 0, 1], np.float32)
  return Verdicts(rewards, rewards > 0, np.array([True, False, True]), TEXT,
                  [Reward(float(r), r > 0) for r in rewards])


def saved(tmp_path, rows):
  writers.write_rollouts(tmp_path, 1, rows)
  run = RunFolder(str(tmp_path), {}, {}, [])
  return frozen.load(run, 1, ROWS, 0)


def rows_of(given):
  problems = [Problem(text[:PROMPT], "") for text in TEXT]
  grades = verdicts()
  return rollout_rows(problems, grades, given, None, grades.rewards, grades.keep)


def test_turns_are_read_back(tmp_path):
  given, back = rollout(), saved(tmp_path, rows_of(rollout())).rollout
  for name in ("tokens", "mask", "turn_id", "void", "length", "behavior_log_probs", "stop_reason"):
    np.testing.assert_array_equal(getattr(back, name), getattr(given, name), err_msg=name)


def test_rows_of_one_turn_need_no_turns(tmp_path):
  rows = rows_of(rollout().replace(turn_id=None, void=None))
  assert not {"turn_id", "void"} & rows[0].keys()
  assert saved(tmp_path, rows).rollout.turn_id is None


def test_a_row_without_its_turns_is_refused(tmp_path):
  """Taken for one turn, its tool text would stand in no turn, or in the wrong one."""
  rows = rows_of(rollout())
  del rows[2]["turn_id"]
  with pytest.raises(RunError, match=r"iteration_00001.jsonl, line 3: no turn_id"):
    saved(tmp_path, rows)


def test_the_report_shows_tool_text_apart(monkeypatch):
  given = rollout()
  change = iter((np.full((3, LENGTH), 0.25), np.zeros((3, LENGTH))))
  monkeypatch.setattr(report, "_log_probs", lambda *_: next(change))
  problems = [Problem(text[:PROMPT], "42") for text in TEXT]
  evaluation = evaluate.Evaluation(problems,
                                   verdicts().correct, TEXT, jax.tree.map(np.asarray, given), {})
  shown = report.samples_of(None, TOKENIZER, {}, {}, evaluation, 3)
  assert shown[0]["pieces"] == list(TEXT[0][PROMPT:])
  inside = slice(TOOL.start - PROMPT, TOOL.stop - PROMPT)
  assert shown[0]["log_ratio"][inside] == [None] * 3 and shown[0]["log_ratio"].count(None) == 3
  assert set(shown[0]["log_ratio"]) == {None, 0.25} and set(shown[2]["log_ratio"]) == {0.25}
  page = html.render("completion.html", title="after", completion=html.completion(shown[0]))
  assert "".join(f'<span class="tool" title="tool">{c}</span>' for c in "42;") in page
  assert page.count('class="tool"') == 3 and page.count('title="+0.250"') == len(
      TEXT[0]) - PROMPT - 3
