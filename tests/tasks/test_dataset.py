"""Files to problems: formats, counts, splits, resumption, and bad inputs with file and line."""

import csv
import gzip
import json
import logging
import unicodedata
from unittest import mock

import pytest

from jaxrl_llm import config as config_lib
from jaxrl_llm.config import ConfigError, DataConfig, PromptConfig, TaskConfig, from_dict
from jaxrl_llm.grading import verifiers
from jaxrl_llm.tasks import dataset, make_task
from jaxrl_llm.types import Reward

ROWS = [{"problem": f"What is {i} plus {i}?", "answer": str(2 * i), "how": f"{i}+{i}={2 * i}",
         "key": f"k{i}"} for i in range(10)]


def write(path, rows):
  path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
  return str(path)


def make(source, *, limit=None, heldout=2, prompt=PromptConfig(), **data):
  data = DataConfig(**({"verifier": "numeric", "path": str(source)} | data))
  cfg = TaskConfig("dataset", heldout_problems=heldout, prompt=prompt, data=data)
  limits = None if limit is None else config_lib.RolloutConfig(max_prompt_tokens=limit)
  task = make_task(cfg, 0, 4, limits=limits)
  if task.unmet is not None:  # as the start of a run does
    raise task.unmet
  return task


@pytest.fixture
def file(tmp_path):
  return write(tmp_path / "rows.jsonl", ROWS)


def parquet(tmp_path, rows):
  pa = pytest.importorskip("pyarrow")
  from pyarrow import parquet as pq

  pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
  return tmp_path / "rows.parquet"


def folder(tmp_path, rows):
  datasets = pytest.importorskip("datasets")
  split = {"train": datasets.Dataset.from_list(rows)}
  datasets.DatasetDict(split).save_to_disk(str(tmp_path / "folder"))
  return tmp_path / "folder"


def json_array(tmp_path, rows):
  (tmp_path / "rows.json").write_text(json.dumps(rows, indent=1))
  return tmp_path / "rows.json"


def gzipped(tmp_path, rows):
  with gzip.open(tmp_path / "rows.jsonl.gz", "wt") as file:
    file.writelines(json.dumps(row) + "\n" for row in rows)
  return tmp_path / "rows.jsonl.gz"


def comma_separated(tmp_path, rows):
  with open(tmp_path / "rows.csv", "w", newline="") as file:
    table = csv.DictWriter(file, list(rows[0]))
    table.writeheader()
    table.writerows(rows)
  return tmp_path / "rows.csv"


def shards(tmp_path, rows):
  place = tmp_path / "shards" / "data"
  place.mkdir(parents=True)
  write(place / "train-00000-of-00002.jsonl", rows[:4])
  write(place / "train-00001-of-00002.jsonl", rows[4:])
  write(place / "test-00000-of-00001.jsonl", [{"problem": "another", "answer": "1"}])
  (tmp_path / "shards" / "dataset_infos.json").write_text("{}")
  return tmp_path / "shards"


@pytest.mark.parametrize("make_file", [
    parquet, folder, json_array, gzipped, comma_separated, shards])
def test_formats_hold_the_same_problems(tmp_path, file, make_file):
  expected, other = make(file), make(make_file(tmp_path, ROWS))
  assert other.batch(0) == expected.batch(0) and other.heldout(2) == expected.heldout(2)
  assert other.counts == expected.counts


def test_each_row_comes_once_per_epoch(file):
  task = make(file)
  epoch = [problem.prompt for index in (2, 3) for problem in task.batch(index)]
  assert sorted(epoch) == sorted(row["problem"] for row in ROWS[:8])


def counts(**changes) -> dict[str, int]:
  return {"read": 0, "kept": 0, "bad": 0, "too_long": 0, "duplicates": 0, "heldout": 0,
          "heldout_too_long": 0} | changes


def test_the_last_rows_are_held_out_and_never_trained_on(tmp_path):
  rows = ROWS + [ROWS[9] | {"key": "again"}] + [ROWS[3] | {"key": "twin"}]
  task = make(write(tmp_path / "x.jsonl", rows))
  assert [p.prompt for p in task.heldout(2)] == [ROWS[9]["problem"], ROWS[3]["problem"]]
  trained = {p.prompt for index in range(10) for p in task.batch(index)}
  assert trained == {row["problem"] for i, row in enumerate(ROWS) if i not in (3, 9)}
  assert task.counts == counts(read=12, kept=8, duplicates=2, heldout=2)


def test_a_file_of_its_own_is_held_out(tmp_path, file):
  other = write(tmp_path / "test.jsonl", [{"problem": "One?", "answer": 1}, ROWS[0],
                                          {"problem": "x" * 30, "answer": 1}])
  task = make(file, heldout_path=other, limit=20)  # the long one is behind those that are asked
  assert [p.prompt for p in task.heldout(2)] == ["One?", ROWS[0]["problem"]]
  assert task.counts == counts(read=10, kept=9, duplicates=1)
  ids = [p.id for p in task.heldout(2) + task.batch(0) + task.batch(1)]
  assert len(set(ids)) == len(ids) == 10
  with pytest.raises(ConfigError,
                     match=r"task.heldout_problems = 3: .*test.jsonl' has 2. Fix: .* <= 2"):
    task.heldout(3)


def test_held_out_prompts_that_do_not_fit_are_refused_or_counted(tmp_path, file):
  rows = [{"problem": "x" * n, "answer": 1} for n in (3, 25, 4, 22, 5)]
  other = write(tmp_path / "test.jsonl", rows)
  with pytest.raises(ConfigError, match=r"rollout.max_prompt_tokens = 20: 2 prompts of "
                     r"task.data.heldout_path = .*; the longest has 25 tokens. Fix: .* >= 25, or "
                     r"task.data.heldout_too_long=drop"):
    make(file, heldout_path=other, heldout=-1, limit=20)
  task = make(file, heldout_path=other, heldout=-1, limit=20, heldout_too_long="drop")
  assert task.counts["heldout_too_long"] == 2 and task.counts["kept"] == 10
  assert [len(p.prompt) for p in task.heldout(-1)] == [3, 4, 5] == [
      len(p.prompt) for p in task.heldout(3)]
  assert len(make(file, heldout_path=other, heldout=-1, limit=25).heldout(-1)) == 5


def test_a_benchmark_needs_no_training_file(file):
  task = make("", heldout_path=file, heldout=-1)
  assert [p.prompt for p in task.heldout(-1)] == [row["problem"] for row in ROWS]
  assert task.longest_prompt() == len(ROWS[0]["problem"]) and task.counts["read"] == 0
  with pytest.raises(ConfigError, match=r"task.data.path is empty.*nothing to train on.*Fix: task"):
    task.batch(0)
  with pytest.raises(ConfigError, match=r"task.heldout_problems = -1: without task.data"):
    make(file, heldout=-1)


def test_long_prompts_are_dropped_counted_and_logged(tmp_path, caplog):
  rows = [{"problem": "x" * n, "answer": 1} for n in (3, 9, 4, 8, 5, 6)]
  task = make(write(tmp_path / "x.jsonl", rows), limit=6, heldout=1)
  assert task.counts["too_long"] == 2 and task.counts["kept"] == 3 and task.longest_prompt() == 6
  assert "2 of 6 prompts are longer than rollout.max_prompt_tokens = 6" in caplog.text
  assert max(len(task.render(p)) for i in range(6) for p in task.batch(i)) <= 6


def test_the_length_counts_what_is_around_the_question(tmp_path):
  path = write(tmp_path / "x.jsonl", [{"problem": text, "answer": 1} for text in ("xyz", "abc")])
  template = PromptConfig(style="completion", template="Q {problem} A")
  assert make(path, heldout=1, limit=7, prompt=template).longest_prompt() == 7
  with pytest.raises(ConfigError,
                     match=r"longest has 7 tokens. Fix: rollout.max_prompt_tokens >= 7"):
    make(path, heldout=1, limit=6, prompt=template)


def test_demonstrations(file):
  task = make(file, demonstration_column="how")
  problem = task.batch(0)[0]
  assert task.has_demonstrations and task.tokenizer.decode(task.demonstration(problem)) == (
      problem.demonstration + task.tokenizer.eos_token)
  assert task.longest_demonstration() == len("7+7=14") + 1
  without = make(file)
  assert not without.has_demonstrations and without.longest_demonstration() == 0
  with pytest.raises(ValueError, match=r"has no demonstration; fix: warm_start.steps=0"):
    without.demonstration(problem.__class__("p", "a"))


def test_rewards_go_to_the_verifier_together(file, monkeypatch):
  task = make(file)
  problems = task.batch(0)
  texts = [f"It is {problem.answer}." for problem in problems[:3]] + ["It is 999."]
  assert [r.value for r in task.rewards(problems, texts)] == [1.0, 1.0, 1.0, 0.0]
  assert task.reward(problems[0], texts[0]) == Reward(1.0, True)
  verify_many = mock.Mock(return_value=[Reward(0.0, False)] * 4)
  monkeypatch.setattr(verifiers, "verify_many", verify_many)
  task.rewards(problems, texts)
  assert verify_many.call_args.kwargs == {
      "workers": task.cfg.verifier_workers, "timeout": task.cfg.verifier_timeout}


GOOD = b'{"problem": "p", "answer": 1}\n'


@pytest.mark.parametrize("content,message", [
    (GOOD + b"\n[1]\n", r"x.jsonl, line 3: a JSON list instead of an object"),
    (b"", "no rows"),
    (b"\n \n", "no rows"),
    (GOOD + b'{"problem": "\xff", "answer": 1}\n', r"x.jsonl, line 2: not UTF-8 \(character 14"),
    (GOOD + b'{"problem": "p", "answer": null}\n',
     "line 2: column 'answer' holds None, a NoneType"),
    (GOOD + b'{"problem": 7, "answer": 1}\n', "line 2: column 'problem' holds 7, a int"),
])
def test_bad_files(tmp_path, content, message):
  (tmp_path / "x.jsonl").write_bytes(content)
  with pytest.raises(ConfigError, match=message) as error:
    make(tmp_path / "x.jsonl", heldout=0)
  assert "x.jsonl" in str(error.value) and "Fix: " in str(error.value)


def test_a_byte_order_mark_is_no_error(tmp_path):
  (tmp_path / "x.jsonl").write_bytes(b"\xef\xbb\xbf" + GOOD + b'{"problem": "q", "answer": 1}\n')
  assert make(tmp_path / "x.jsonl", heldout=1).counts["kept"] == 1


@pytest.mark.parametrize("data, message", [
    ({"path": ""}, "task.data.path is empty"),
    ({"path": "nothing/here.jsonl"},
     "task.data.path = 'nothing/here.jsonl': no such file or folder"),
    ({"heldout_path": "./none"}, "task.data.heldout_path = './none': no such file"),
    ({"heldout": 10}, "leaves no training problem"),
])
def test_bad_values(file, data, message):
  with pytest.raises(ConfigError, match=message):
    make(file, **data)


def test_unknown_kinds_of_file_and_folder(tmp_path, file):
  (tmp_path / "x.xml").write_text("<a/>")
  with pytest.raises(ConfigError, match=r"files end in .jsonl"):
    make(tmp_path / "x.xml")
  (tmp_path / "x.parquet").write_text("no parquet")
  with pytest.raises(ConfigError, match=r"x.parquet: not readable: .*Parquet"):
    make(tmp_path / "x.parquet")
  (tmp_path / "empty").mkdir()
  with pytest.raises(ConfigError, match=r"no file of the split 'train'"):
    make(tmp_path / "empty")


def test_a_file_of_bad_rows_alone_is_an_error(tmp_path):
  file = write(tmp_path / "rows.jsonl", [{"question": "q"}] * 3)
  with pytest.raises(ConfigError, match="all of its 3 rows are bad"):
    make(file, bad_rows="drop")


def two_files(tmp_path, **data):
  a = write(tmp_path / "a.jsonl", [{"problem": f"a{i}", "answer": str(i)} for i in range(30)])
  b = write(tmp_path / "b.jsonl", [{"problem": f"b{i}", "answer": "B"} for i in range(10)])
  heldout = write(tmp_path / "h.jsonl", [{"problem": "h", "answer": "1"}, {"problem": "a3",
                                                                         "answer": "3"}])
  return make(f"{a},{b}", heldout_path=heldout, verifier="numeric,choice", **data)


@pytest.mark.parametrize("weights, share", [((), 0.25), ((1, 1), 0.5), ((1, 3), 0.75)])
def test_several_files_are_mixed_by_weight(tmp_path, weights, share):
  task = two_files(tmp_path, weights=weights)
  asked = [problem.prompt for index in range(500) for problem in task.batch(index)]
  assert sum(text[0] == "b" for text in asked) == pytest.approx(2000 * share, abs=4 * 10)
  once = [text for text in asked if text[0] == "a"][:29]
  assert len(set(once)) == 29 and "a3" not in asked, "each once per epoch, none that is held out"
  assert task.counts["read"] == 40 and task.counts["duplicates"] == 1
  again = two_files(tmp_path, weights=weights)
  assert again.batch(77) == task.batch(77), "the index alone decides"


@pytest.mark.parametrize("given", [(), (2, 1), (0.5, 1.5), [2, 1]])
def test_weights_survive_a_saved_config(given):
  read = from_dict({"task": {"name": "dataset", "data": {"path": "a,b", "weights": given}}})
  assert from_dict(json.loads(json.dumps(config_lib.to_dict(read)))) == read
  assert read.task.data.weights == tuple(given)


def test_each_file_has_its_own_verifier(tmp_path):
  task = two_files(tmp_path)
  problems = {problem.prompt[0]: problem for index in range(20) for problem in task.batch(index)}
  a, b = problems["a"], problems["b"]
  completions = [f"It is {a.answer}.", "(B)", "(C)", "no number"]
  assert [r.correct for r in task.rewards([a, b, b, a], completions)] == [True, True, False, False]


@pytest.mark.parametrize("data, message", [
    ({"weights": (1.0,)}, r"task.data.weights = \(1.0,\): 1 values for 2 files"),
    ({"weights": (1.0, 0.0)}, "positive numbers"),
    ({"mapping": "math,math,math"}, "task.data.mapping = 'math,math,math': 3 values for 2"),
])
def test_lists_that_do_not_fit_the_files_are_refused(tmp_path, data, message):
  with pytest.raises(ConfigError, match=message):
    two_files(tmp_path, **data)


ASKED = "Marie's café sells 3 cakes for $4 each.\nHow much?"
TWINS = (ASKED + " \n", ASKED.replace("\n", "\r\n"), ASKED.replace("3 c", "3  c"),
         unicodedata.normalize("NFD", ASKED), ASKED.replace("3 c", "3\u00a0c"),
         ASKED.replace("$4", "＄４"), "\t" + ASKED.replace("\n", "\n\n"))


def trained_on_twins(folder) -> list[str]:
  train = write(folder / "train.jsonl", [{"problem": text, "answer": "12"} for text in (
      *TWINS, ASKED.replace("café", "cafe"), ASKED.replace("4", "5"))])
  held = write(folder / "held.jsonl", [{"problem": ASKED, "answer": "12"}])
  return [p.prompt for p in make(train, heldout=1, heldout_path=held).training_problems]


def test_one_problem_in_two_spellings_is_not_trained_on_and_counted_in_a_line(
    tmp_path, caplog, monkeypatch):
  kept = trained_on_twins(tmp_path)
  assert kept == [ASKED.replace("café", "cafe"), ASKED.replace("4", "5")]
  (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
  assert "7 of 9 problems ask what is asked in task.data.heldout_path" in line
  # What the test rejects: texts as they are, but for white space at their ends.
  monkeypatch.setattr(dataset, "asked_text", lambda problem: problem.prompt.strip())
  assert len(trained_on_twins(tmp_path)) == 8
