"""Which files of a folder are read: a split is a word of the path, and no two sets are mixed."""

import json
import logging
import time

import pytest

from jaxrl_llm.config import ConfigError, DataConfig, TaskConfig
from jaxrl_llm.tasks import make_task, readers
from jaxrl_llm.tasks.readers import files_of


def written(folder, *names):
  """Writes one problem into each file, whose text is the file's name."""
  for name in names:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps({"problem": name, "answer": "1"}) + "\n")
  return folder


def read(folder, split="train"):
  task = make_task(TaskConfig("dataset", heldout_problems=0,
                              data=DataConfig(path=str(folder), split=split, verifier="numeric")),
                   0, 1)
  return sorted({task.batch(i)[0].prompt for i in range(2 * task.counts["kept"])})


@pytest.mark.parametrize("train, test", [
    ("train/0000.jsonl", "test/0000.jsonl"),
    ("data/train/0000.jsonl", "data/test/0000.jsonl"),
    ("train-00000-of-00001-0a1b2c3d4e5f6071.jsonl", "test-00000-of-00001-ffeeddccbbaa9988.jsonl"),
    ("math_train.jsonl", "math_test.jsonl"),
    ("math.train.v2.jsonl", "math.test.v2.jsonl"),
    ("MathTrain.jsonl", "MathTest.jsonl"),
    ("TRAIN.jsonl", "TEST.jsonl"),
    ("Training/part-0.jsonl", "Evaluation/part-0.jsonl"),
    ("train_test_split/train.jsonl", "train_test_split/test.jsonl"),
    ("train 1.jsonl", "eval 1.jsonl"),
    ("train1.jsonl", "heldout1.jsonl"),
])
def test_a_split_is_a_word_of_the_path(tmp_path, train, test):
  folder = written(tmp_path, train, test)
  assert read(folder) == [train] and read(folder, "test") == [test]


def test_a_part_of_a_word_is_no_split(tmp_path):
  """A search for the letters, which a first version made, takes these for training rows."""
  names = ["constrained/latest.jsonl"]
  assert "train" in names[0] and read(written(tmp_path, *names)) == names
  assert files_of("task.data.path", str(tmp_path), "test") == [tmp_path / names[0]]


@pytest.mark.parametrize("names, message", [
    (["main/train-0.jsonl", "socratic/train-0.jsonl"], "files of 2 sets .* main, socratic. Fix"),
    (["main/train/0.jsonl", "socratic/train/0.jsonl"], "files of 2 sets .* main, socratic. Fix"),
    (["train/main/0.jsonl", "train/socratic/0.jsonl"], "files of 2 sets .* main, socratic. Fix"),
    (["main/0.jsonl", "socratic/0.jsonl"], "files of 2 sets would be mixed: main, socratic. Fix"),
    (["test.jsonl", "other.jsonl"], "no file of the split 'train'; there are test .*Fix: "),
    (["readme.txt"], "no file of the split 'train'; there are none .*Fix: "),
])
def test_what_is_ambiguous_is_refused(tmp_path, names, message):
  with pytest.raises(ConfigError, match=message) as error:
    read(written(tmp_path, *names))
  assert "\n" not in str(error.value)


def test_files_whose_paths_name_no_split_are_all_read_and_said(tmp_path, caplog):
  with caplog.at_level(logging.WARNING, readers.__name__):
    assert len(read(written(tmp_path, "a.jsonl", "b.jsonl"))) == 2
  assert "no path there names a split, so that all of its 2 files are read" in caplog.text


def test_one_folder_serves_training_and_held_out_problems(tmp_path):
  folder = written(tmp_path, "train/0.jsonl", "test/0.jsonl")
  data = DataConfig(path=str(folder), heldout_path=str(folder), verifier="numeric")
  task = make_task(TaskConfig("dataset", heldout_problems=-1, data=data), 0, 1)
  assert [p.prompt for p in task.heldout(-1)] == ["test/0.jsonl"]
  assert task.batch(0)[0].prompt == "train/0.jsonl"


@pytest.mark.parametrize("address", ["https://host/a.jsonl", "hf://datasets/owner/set",
                                     "s3://bucket/a.jsonl", "gs://bucket/a.jsonl"])
def test_an_address_ends_at_once_with_the_fix(address):
  begin = time.monotonic()
  with pytest.raises(ConfigError, match=f"task.data.path = '{address}': addresses are not read. "
                     "Fix: a file or folder"):
    read(address)
  assert time.monotonic() - begin < 10
