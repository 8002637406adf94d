"""A file of the user's own: what does not fit is named with its key, then the run begins."""

import dataclasses
import json
from pathlib import Path

import command
import formats
import jax
import pytest
from absl import flags
from ml_collections import config_flags

from experiments.commands import command_flags
from experiments.report.run_folder import read_run
from jaxrl_llm.config import ConfigError, OptimizerConfig, convert
from jaxrl_llm.runs import trainer
from jaxrl_llm.wiring import automatic, setup

ROOT = Path(__file__).parents[2]


def write_rows(path, column="problem"):
  rows = [{column: f"What is {i} plus {i}?", "answer": str(2 * i)} for i in range(60)]
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def parsed(monkeypatch, *arguments):
  flag_values = flags.FlagValues()
  words = ["main", *arguments]
  holder = config_flags.DEFINE_config_file("config", flag_values=flag_values, lock_config=False,
                                           accept_new_attributes=True, sys_argv=words)
  monkeypatch.setattr(command_flags.flags, "FLAGS", flag_values)
  command_flags.parse(words)
  return lambda: command_flags.config_of(holder, trainer.check)


def test_another_task_drops_what_the_file_s_task_reads(tmp_path, monkeypatch):
  write_rows(tmp_path / "a.jsonl", "question")
  base = [f"--config={ROOT}/configs/quickstart.py", "--config.task.name=dataset",
          f"--config.task.data.path={tmp_path}/a.jsonl"]
  cfg = parsed(monkeypatch, *base)()
  assert cfg.task.name == "dataset" and dict(cfg.task.given).keys() == {"data"}
  with pytest.raises(ConfigError, match=r"a.jsonl, line 1: no column 'problem'; columns present: "
                     "question, answer; task.data.prompt_column asks for it. Fix: "):
    setup.build_learner(setup.resolve(cfg), jax.devices()[:1])
  with pytest.raises(ConfigError, match=r"task\.steps = 3: 'dataset' does not read it"):
    parsed(monkeypatch, *base, "--config.task.steps=3")()


def test_wrong_keys_and_a_wrong_file_are_in_one_message(tmp_path, monkeypatch):
  write_rows(tmp_path / "a.jsonl", "question")
  with pytest.raises(ConfigError) as error:
    parsed(monkeypatch, f"--config={ROOT}/configs/own_data.py", "--config.iteration=3",
           "--config.rollout.prompts=none", f"--config.task.data.path={tmp_path}/a.jsonl")()
  text = str(error.value)
  assert text.startswith("3 problems\n1. ") and "iterations" in text
  assert "rollout.prompts = 'none'" in text and "task.data.prompt_column asks for it" in text


@pytest.mark.parametrize("key", ["parameters.lora.rank", "lora.rank"])
def test_an_unknown_section_names_the_one_that_has_it(monkeypatch, key):
  with pytest.raises(ConfigError, match="unknown key: 'lora'") as error:
    parsed(monkeypatch, f"--config={ROOT}/configs/quickstart.py", f"--config.{key}=8")
  assert "section 'parameters' has" in str(error.value)
  assert "--config.parameters.lora_rank=..." in str(error.value)


def test_a_part_of_a_key_names_the_key_of_its_section():
  with pytest.raises(ConfigError, match=r"nearest known key: parameters\.lora_rank\."):
    convert.from_dict({"parameters": {"rank": 8}})


def automatic_start(monkeypatch, folder, *more):
  """(resolved config, its line, warning of its rate) of own_data.py with these flags."""
  write_rows(folder / "mine.jsonl")
  before = parsed(monkeypatch, f"--config={ROOT}/configs/own_data.py",
                  f"--config.task.data.path={folder}/mine.jsonl", *more)()
  after = setup.resolve(before)
  setup.build_learner(after, jax.devices()[:1])
  return after, automatic.line(before, after), automatic.fast_rate(after)


def test_a_checkpoint_takes_one_flag(tmp_path, monkeypatch):
  checkpoint = formats.write_checkpoint(tmp_path / "checkpoint")
  flag = f"--config.pretrained={checkpoint}"
  cfg, line, warning = automatic_start(monkeypatch, tmp_path, flag)
  assert cfg.optimizer.learning_rate == 1e-6 and cfg.warm_start.steps == 0 and warning == ""
  assert cfg.updates.token_budget >= cfg.bin_tokens and cfg.updates.shared_prompts
  longest = setup.build_learner(cfg, jax.devices()[:1])[1].longest_prompt()
  assert longest <= cfg.rollout.max_prompt_tokens < longest + automatic.PROMPT_TILE
  assert "optimizer.learning_rate=1e-06" in line and "updates.shared_prompts=True" in line
  adapters, _, _ = automatic_start(monkeypatch, tmp_path, flag, "--config.parameters.train=lora")
  assert 1e-5 <= adapters.optimizer.learning_rate <= 1e-4
  assert automatic.chosen(cfg) == cfg, "values that were chosen stay"


def test_a_key_overrides_what_is_chosen_and_a_rate_far_above_is_named(tmp_path, monkeypatch):
  checkpoint = formats.write_checkpoint(tmp_path / "checkpoint")
  cfg, line, warning = automatic_start(
      monkeypatch, tmp_path, f"--config.pretrained={checkpoint}",
      "--config.optimizer.learning_rate=3e-4", "--config.updates.token_budget=0",
      "--config.updates.shared_prompts=False", "--config.rollout.max_prompt_tokens=128")
  assert (cfg.optimizer.learning_rate, cfg.updates.token_budget) == (3e-4, 0)
  assert cfg.rollout.max_prompt_tokens == 128 and not cfg.updates.shared_prompts
  assert "learning_rate" not in line and "token_budget" not in line
  assert "optimizer.learning_rate = 0.0003 for all parameters" in warning and "=1e-06" in warning
  mild = dataclasses.replace(cfg, optimizer=OptimizerConfig(learning_rate=1e-5))
  assert automatic.fast_rate(mild) == ""


def test_without_a_checkpoint_the_small_network_imitates_first(tmp_path, monkeypatch):
  cfg, _, warning = automatic_start(monkeypatch, tmp_path)
  assert cfg.warm_start.steps == 200 and cfg.updates.token_budget == 0 and warning == ""
  assert cfg.task.prompt.style == "plain" and cfg.optimizer.learning_rate == 3e-4
  cfg, _, _ = automatic_start(monkeypatch, tmp_path, "--config.warm_start.steps=0")
  assert cfg.warm_start.steps == 0, "one flag is enough"


@pytest.mark.slow
def test_adapters_of_a_checkpoint_are_trained_on_it(tmp_path):
  """configs/own_data_lora.py with a smaller checkpoint and smaller sizes, which fit on a CPU."""
  write_rows(tmp_path / "mine.jsonl")
  checkpoint = formats.write_checkpoint(tmp_path / "checkpoint")
  command.succeed(command.start(
      tmp_path / "run", f"pretrained={checkpoint}", f"task.data.path={tmp_path / 'mine.jsonl'}",
      "iterations=1", "task.heldout_problems=4", "rollout.prompts=2", "rollout.group_size=2",
      "rollout.max_prompt_tokens=128", "rollout.max_new_tokens=8", "rollout.window=8",
      "model.compute_dtype=float32",
      config="configs/own_data_lora.py"))
  run = read_run(tmp_path / "run")
  assert run.metrics[-1]["iteration"] == 1 and run.config["parameters"]["train"] == "lora"
  assert len(run.rollouts(1)) == 4 and list((tmp_path / "run" / "checkpoints").iterdir())
