"""Rows as people have them: repeated indices, and errors that name file, line and column."""

import functools
import json
import logging

import pytest
import test_dataset

from jaxrl_llm.config import ConfigError
from jaxrl_llm.tasks import mappings
from jaxrl_llm.tasks.mappings import Fields

make = functools.partial(test_dataset.make, heldout=0)


def problems(task):
  by_id = {p.id: p for i in range(3 * task.counts["kept"]) for p in task.batch(i)}
  assert len(by_id) == task.counts["kept"], "ids are unique"
  return by_id


def verl(prompt, answer, index, system=None):
  before = [] if system is None else [{"role": "system", "content": system}]
  return {"prompt": [*before, {"role": "user", "content": prompt}],
          "reward_model": {"ground_truth": answer}, "extra_info": {"index": index}}


def test_an_index_that_restarts_drops_nothing(tmp_path):
  rows = [verl(f"{source} {i}", str(i), i) for source in ("short", "long") for i in range(4)]
  task = make(test_dataset.write(tmp_path / "x.jsonl", rows), mapping="dapo")
  assert task.counts["kept"] == 8 and task.counts["duplicates"] == 0
  assert sorted(p.prompt for p in problems(task).values()) == sorted(
      f"{source} {i}" for source in ("short", "long") for i in range(4))
  # What is rejected: the index as the name of a problem.
  assert len({row["extra_info"]["index"] for row in rows}) == 4


def test_a_repeated_text_is_dropped_whatever_its_index(tmp_path, caplog):
  rows = [verl("p", "1", 0), verl("p", "1", 7), verl("p", "2", 8), verl("q", "1", 0)]
  with caplog.at_level(logging.WARNING):
    task = make(test_dataset.write(tmp_path / "x.jsonl", rows), mapping="dapo", verifier="auto")
  assert task.counts["kept"] == 2 and task.counts["duplicates"] == 2
  assert task.verifier == "numeric"
  assert "x.jsonl, line 3: the text of" in caplog.text and "'2' instead of '1'" in caplog.text
  assert caplog.text.count("with another answer") == 1


@pytest.mark.parametrize("index", [True, False])
def test_the_turns_before_a_prompt_are_part_of_its_text(tmp_path, index):
  rows = [verl("And then?", "1", 0), verl("And then?", "2", 1)]
  for row, first in zip(rows, ("One.", "Two."), strict=True):
    row["prompt"] = [{"role": "user", "content": first}, {"role": "assistant", "content": "Yes."},
                     *row["prompt"]]
    if not index:
      del row["extra_info"]
  path = test_dataset.write(tmp_path / "x.jsonl", rows)
  assert make(path, mapping="dapo").counts["kept"] == 2
  held = make(path, heldout=1, mapping="dapo")
  assert held.counts["kept"] == 1, "the other turn asks another question"


def test_a_system_message_does_not_hide_a_held_out_text(tmp_path):
  rows = [verl("p", "1", 0, "Be brief."), verl("q", "1", 1), verl(" p\n", "1", 2)]
  task = make(test_dataset.write(tmp_path / "x.jsonl", rows), heldout=1, mapping="dapo")
  assert task.counts["kept"] == 1 and task.batch(0)[0].prompt == "q"


def test_ids_of_a_mapping_may_restart_and_those_of_a_column_may_not(tmp_path):
  rows = [{"problem": f"p{i}", "answer": "1", "unique_id": f"u{i % 2}"} for i in range(4)]
  path = test_dataset.write(tmp_path / "x.jsonl", rows)
  assert sorted(problems(make(path, mapping="math"))) == ["u0", "u0-2", "u1", "u1-2"]
  message = r"line 3: id 'u0' occurs for the second time, first at .*x.jsonl, line 1.* an empty one"
  with pytest.raises(ConfigError, match=message):
    make(path, id_column="unique_id")
  assert make(path, id_column="").counts["kept"] == 4
  twice = test_dataset.write(tmp_path / "y.jsonl", [rows[0], rows[0]])
  with pytest.raises(ConfigError, match=r"line 2: .* the id 'u0' and the text of an earlier one"):
    make(twice, mapping="math")


GOOD = [{"problem": f"{i}+1?", "answer": str(i + 1)} for i in range(3)]


@pytest.mark.parametrize("row, message", [
    (r'{"problem": "What is \ud835 + 1?", "answer": "3"}', "column 'problem' holds '.ud835' as"),
    (r'{"problem": "p", "answer": "3 \udfff"}', "column 'answer' holds '.udfff' as character 3"),
    ('{"problem": "p", "answer": "3", "x": ' + "[" * 10**5 + "]" * 10**5 + "}", "nested too deep"),
    ('{"problem": "p", "answer": ' + "1" * 5000 + "}", "malformed JSON: Exceeds the limit"),
    ('{"problem": "p" "answer": "3"}', r"malformed JSON: Expecting ',' delimiter \(column 17\)"),
    ('{"problem": "[{\\"role\\": \\"user\\", \\"content\\": \\"p\\"}]", "answer": "1"}',
     "column 'problem' holds a list of messages as text"),
    ("{\"problem\": \"[{'content': 'p', 'role': 'user'}]\", \"answer\": \"1\"}",
     "column 'problem' holds a list of messages as text"),
    (r'{"prob\ud835lem": "p", "answer": "3"}', r"no column 'problem'.*prob.ud835lem, answer"),
    ('{"problem": "p", "answer": "cat"}', r"answer 'cat' for task.data.verifier"),
])
@pytest.mark.parametrize("array", [False, True])
def test_a_bad_row_names_its_line_and_column_and_can_be_dropped(tmp_path, row, message, array):
  if array and ("malformed" in message or "nested" in message):
    return  # nothing tells where such an item ends: test_an_array_that_is_no_array_names_the_line
  texts = [json.dumps(GOOD[0]), json.dumps(GOOD[1]), row, json.dumps(GOOD[2])]
  path = tmp_path / "x.json"
  path.write_text("[" + ",\n".join(texts) + "]" if array else "\n".join(texts))
  place = "item" if array else "line"
  with pytest.raises(ConfigError, match=rf"x.json, {place} 3.*{message}(.|\n)*Fix: "):
    make(path)
  task = make(path, bad_rows="drop")
  assert task.counts["kept"] == 3 and task.counts["bad"] == 1


@pytest.mark.parametrize("text, line", [
    ('[{"problem": "p", "answer": "1"}\n {"problem": "q", "answer": "2"}]', 2),
    ('[{"problem": "p", "answer": "1"},\n {"problem": "q", "answer": "2"', 2),
    ('[{"problem": "p", "answer": "1"}]\n[1]', 2),
])
def test_an_array_that_is_no_array_names_the_line(tmp_path, text, line):
  (tmp_path / "x.json").write_text(text)
  with pytest.raises(ConfigError, match=f"x.json, line {line}.*malformed JSON"):
    make(tmp_path / "x.json")


@pytest.mark.parametrize("row, message", [
    (b'"3+1=" x,4', "line 3: malformed: ',' expected after '\"'"),
    (b"3+1=", "line 3: 1 columns, but 2 columns were expected"),
    (b"3+1=,4,5", "line 3: 3 columns, but 2 columns were expected"),
    (b"3\xff1=,4", "line 3: not UTF-8"),
    (b"3+1=,", "line 3: column 'answer' is empty"),
])
def test_a_bad_line_of_a_table_costs_no_other(tmp_path, row, message):
  (tmp_path / "x.csv").write_bytes(b"problem,answer\n1+1=,2\n" + row + b"\n\n2+1=,3\n\"a\nb\",5\n")
  with pytest.raises(ConfigError, match=f"x.csv, {message}"):
    make(tmp_path / "x.csv")
  task = make(tmp_path / "x.csv", bad_rows="drop")
  assert {p.prompt for p in problems(task).values()} == {"1+1=", "2+1=", "a\nb"}
  assert task.counts["bad"] == 1


@pytest.mark.parametrize("bad_rows", ["error", "drop"])
def test_a_quote_that_never_closes_ends_the_file(tmp_path, bad_rows):
  """All rows behind it would be one text."""
  (tmp_path / "x.csv").write_text('problem,answer\n1+1=,2\n"3+1=,4\n2+1=,3\n')
  with pytest.raises(ConfigError, match=r"x.csv, line 3: a quote that never closes"):
    make(tmp_path / "x.csv", bad_rows=bad_rows)


@pytest.mark.parametrize("fields, message", [
    (lambda row: Fields(7, "1"), "Fields.prompt = 7; a text was expected"),
    (lambda row: Fields(" ", "1"), "Fields.prompt = ' '; a text was expected"),
    (lambda row: Fields("p", 1), "Fields.answer = 1; a text was expected"),
    (lambda row: Fields("p", "1", "\ud800"), "Fields.demonstration holds '.ud800'"),
])
def test_what_a_plugin_returns_is_checked(tmp_path, monkeypatch, fields, message):
  entry = mappings.Mapping(fields, verifier="numeric")
  monkeypatch.setattr("jaxrl_llm.tasks.dataset.make_mapping", lambda cfg: entry)
  with pytest.raises(ConfigError, match=rf"x.jsonl, line 1: {message}"):
    make(test_dataset.write(tmp_path / "x.jsonl", GOOD))
