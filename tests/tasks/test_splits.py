"""Which files of a folder are read: a split is a word of the path, and nothing is mixed in silence.
"""

import json
import logging

import pytest

from jaxrl_llm.config import ConfigError, DataConfig, TaskConfig
from jaxrl_llm.tasks import make_task, splits
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
    ("default/train/0000.jsonl", "default/test/0000.jsonl"),
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


@pytest.mark.parametrize("names, split", [
    (["val/0.jsonl"], "validation"), (["dev.jsonl"], "validation"), (["valid-0.jsonl"], "dev"),
    (["train_sft-0.jsonl"], "train_sft"), (["test_hard/a.jsonl"], "test_hard"),
])
def test_other_words_for_a_split(tmp_path, names, split):
  assert read(written(tmp_path, *names, "train_gen-0.jsonl"), split) == names


@pytest.mark.parametrize("names, message", [
    (["main/train-0.jsonl", "socratic/train-0.jsonl"], "files of 2 sets: main, socratic, which"),
    (["main/train/0.jsonl", "socratic/train/0.jsonl"], "files of 2 sets: main, socratic, which"),
    (["train/main/0.jsonl", "train/socratic/0.jsonl"], "sets: train/main, train/socratic, which"),
    (["main_train.jsonl", "socratic_train.jsonl"], "sets: main_train.jsonl, socratic_train.jsonl"),
    (["main/0.jsonl", "socratic/0.jsonl"], "files of 2 sets: main, socratic, which"),
    (["train.jsonl", "train_socratic.jsonl"], "2 sets: train.jsonl, train_socratic.jsonl, which"),
    (["aime24/train.jsonl", "aime25/train.jsonl"], "files of 2 sets: aime24, aime25, which"),
    (["aime_train_2024.jsonl", "aime_train_2025.jsonl"], "2 sets: aime_train_2024.jsonl, aime_tr"),
    (["train-v1.jsonl", "train-v2.jsonl"], "files of 2 sets: train-v1.jsonl, train-v2.jsonl, wh"),
    (["train.csv", "train.jsonl"], "train.csv, train.jsonl have the same name in two formats"),
    (["a.jsonl", "a.jsonl.gz"], "a.jsonl, a.jsonl.gz have the same name in two formats"),
    (["train_test.jsonl", "other.jsonl"], "train_test.jsonl names the splits test and train"),
    (["train/test-0.jsonl"], "test-0.jsonl names the splits test and train"),
    (["test.jsonl", "other.jsonl"], "no file of the split 'train'; there are test"),
])
def test_what_is_ambiguous_is_refused_and_the_fix_is_accepted(tmp_path, names, message):
  folder = written(tmp_path, *names)
  with pytest.raises(ConfigError, match=message) as error:
    read(folder)
  assert "\n" not in str(error.value)
  fixed = str(error.value).split("task.data.path=")[1].split(", or another")[0].rstrip(".")
  if "<" not in fixed and "train_test" not in fixed and ".csv" not in fixed and ".gz" not in fixed:
    assert len(read(fixed)) == 1, fixed


@pytest.mark.parametrize("names, taken, message", [
    (["a.jsonl", "b.jsonl"], 2, "no path there names a split, so that all of its 2 files are read"),
    (["algebra.jsonl"], 1, "its only file is read, whose path names no split: algebra.jsonl"),
    (["train.jsonl", "more.jsonl"], 1, "not read are more.jsonl, whose paths name no split"),
    (["data/train-0.jsonl", "train-1.jsonl"], 2, "files of several folders are read as one set"),
])
def test_what_is_taken_is_said(tmp_path, caplog, names, taken, message):
  with caplog.at_level(logging.WARNING, splits.__name__):
    assert len(read(written(tmp_path, *names))) == taken
  assert message in caplog.text


@pytest.mark.parametrize("name, split, warned", [
    ("math_test.jsonl", "train", True), ("test/0.jsonl", "train", True), ("test", "train", True),
    ("val.jsonl", "train", True), ("train.jsonl", "test", True), ("train.jsonl", "train", False),
    ("val.jsonl", "test", False), ("latest.jsonl", "train", False), ("test/0.jsonl", "test", False),
])
def test_a_file_that_is_named_itself_is_read_and_said(tmp_path, caplog, name, split, warned):
  written(tmp_path, name if "." in name else f"{name}/0.jsonl")
  with caplog.at_level(logging.WARNING, splits.__name__):
    assert len(read(tmp_path / name, split)) == 1
  assert ("because it is named itself" in caplog.text) == warned


@pytest.mark.parametrize("name", [
    "data/train-{0:05d}-of-00003.jsonl", "train{0}.jsonl", "train/{0}.jsonl", "train/200{0}.jsonl",
    "train/part-{0:05d}-3f2a1b4c-1d3{0}-4a5b-9c8d-abcdef01234{0}-c000.snappy.jsonl",
    "math500_train_{0}.jsonl", "train-0{0}a1b2c3.jsonl", "train/shard_{0}.jsonl",
])
def test_shards_of_a_split_say_nothing(tmp_path, caplog, name):
  names = [name.format(i) for i in range(3)]
  with caplog.at_level(logging.WARNING, splits.__name__):
    assert read(written(tmp_path, *names, "data/test-00000-of-00001.jsonl")) == names
  assert not caplog.text


def test_hidden_files_and_descriptions_hold_no_rows(tmp_path):
  written(tmp_path, "train.jsonl", ".cache/train-1.jsonl", "__MACOSX/train-2.jsonl")
  (tmp_path / "dataset_infos.json").write_text("{}")
  (tmp_path / ".ipynb_checkpoints").mkdir()
  written(tmp_path, ".ipynb_checkpoints/train-checkpoint.jsonl")
  assert read(tmp_path) == ["train.jsonl"]


def test_one_folder_serves_training_and_held_out_problems(tmp_path):
  folder = written(tmp_path, "train/0.jsonl", "test/0.jsonl")
  data = DataConfig(path=str(folder), heldout_path=str(folder), verifier="numeric")
  task = make_task(TaskConfig("dataset", heldout_problems=-1, data=data), 0, 1)
  assert [p.prompt for p in task.heldout(-1)] == ["test/0.jsonl"]
  assert task.batch(0)[0].prompt == "train/0.jsonl"
