"""Demonstrations of a warm start from a file: which rows are imitated, and what is refused."""

import dataclasses
import json

import pytest

from jaxrl_llm.config import Config, ConfigError, DataConfig, TaskConfig, WarmStartConfig
from jaxrl_llm.tasks.demonstrations import demonstrating
from jaxrl_llm.wiring.warm_start import demonstrations


def write(path, rows):
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return str(path)


@pytest.fixture
def cfg(tmp_path):
  problems = write(tmp_path / "problems.jsonl",
                   [{"problem": f"{i}+1=", "answer": str(i + 1)} for i in range(8)])
  shown = write(tmp_path / "shown.jsonl",
                [{"problem": f"{i}+1=", "completion": str(i + 1)} for i in range(8)]
                + [{"problem": "long", "completion": "x" * 100}])
  default = Config()
  rollout = dataclasses.replace(default.rollout, max_prompt_tokens=8, max_new_tokens=8)
  task = TaskConfig("dataset", heldout_problems=2,
                    data=DataConfig(path=problems, verifier="numeric"))
  return dataclasses.replace(default, task=task, rollout=rollout,
                             warm_start=WarmStartConfig(steps=3, path=shown, batch_size=4))


def test_rows_of_the_file_are_imitated_but_no_held_out_or_long_one(cfg):
  task = demonstrating(cfg.warm_start, cfg.task, cfg.rollout, 5, None)
  seen = {problem.prompt: problem.demonstration for i in range(6) for problem in task.batch(i)}
  assert seen == {f"{i}+1=": str(i + 1) for i in range(6)}
  weights = demonstrations(task, 0, cfg.rollout.row_length).loss_weights
  assert weights.sum() == 4 * 2, "digit and end"


def test_a_mapping_with_demonstrations(cfg, tmp_path):
  shown = write(tmp_path / "gsm.jsonl", [{"question": "1+1?", "answer": "so\n#### 2"}])
  warm = dataclasses.replace(cfg.warm_start, path=shown, mapping="gsm8k")
  task = demonstrating(warm, cfg.task, cfg.rollout, 0, None)
  assert task.batch(0)[0].demonstration == "so\n#### 2"


@pytest.mark.parametrize("rows, change, message", [
    ([{"problem": "p"}], {}, "no column 'completion'.*warm_start"),
    ([{"problem": "p", "completion": "x" * 99}], {}, "no row fits; the longest has 101 tokens"),
    ([{"problem": "p", "answer": "1"}], {"mapping": "deepscaler"}, "has no demonstration"),
])
def test_a_file_that_does_not_fit_is_refused(cfg, tmp_path, rows, change, message):
  warm = dataclasses.replace(cfg.warm_start, path=write(tmp_path / "bad.jsonl", rows), **change)
  with pytest.raises(ConfigError, match=message):
    demonstrating(warm, cfg.task, cfg.rollout, 0, None)
