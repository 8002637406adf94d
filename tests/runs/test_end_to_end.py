"""From a public checkpoint and data format through the commands and back into transformers."""

import dataclasses
import json
import math
import re
import shutil

import chat
import command
import formats
import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from transformers import AutoTokenizer

from experiments.commands import saved
from experiments.families import checkpoints as hf_checkpoints
from experiments.report.rollout_rows import read_rollouts
from jaxrl_llm.config import ConfigError, from_dict
from jaxrl_llm.models import Model, load_pretrained
from jaxrl_llm.wiring import setup

pytestmark = pytest.mark.slow

RELATIVE = 2e-4
EVALUATION = ("--samples=4", "--temperature=1.0", "--batch=32")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  folder = tmp_path_factory.mktemp("files")
  return formats.write_checkpoint(folder / "qwen3"), formats.write_lines(folder / "gsm8k.jsonl")


@pytest.fixture(scope="module")
def commands(files, tmp_path_factory):
  """Folder with `run`, `evaluation`, `exported`, its evaluation `again`, and `refused.txt`."""
  folder = tmp_path_factory.mktemp("commands")
  checkpoint, lines = files
  command.succeed(
      command.start(folder / "run", f"pretrained={checkpoint}", f"task.data.path={lines}",
                    config="tests/runs/chat.py"))
  workdir = f"--workdir={folder / 'run'}"
  evaluation = command.launch("evaluate", workdir, f"--out={folder / 'evaluation'}", *EVALUATION,
                              interpreter=True)
  damaged = shutil.copytree(checkpoint, folder / "damaged")
  (damaged / "model.safetensors").write_bytes(
      (checkpoint / "model.safetensors").read_bytes()[:-100])
  export = command.launch("export", workdir, f"--out={folder / 'exported'}", interpreter=True)
  command.succeed(export)
  refused = command.start(folder / "refused", f"pretrained={damaged}", f"task.data.path={lines}",
                          config="tests/runs/chat.py")
  command.succeed(evaluation)
  command.succeed(
      command.launch("evaluate", f"--pretrained={folder / 'exported'}", f"--out={folder / 'again'}",
                     "--config=tests/runs/chat.py", f"--config.task.data.path={lines}",
                     *EVALUATION))
  (folder / "refused.txt").write_text(command.refuse(refused))
  return folder


@pytest.fixture(scope="module")
def trained(commands):
  cfg, _, learner = saved.build_learner(commands / "run", jax.devices()[:1])
  return learner.model, saved.restore_trained(cfg, learner, commands / "run")[1]


def ids_of_prompts(tokenizer) -> np.ndarray:
  """[4, S] ids of four problems behind the chat template, and of what follows them in a chat."""
  chats = [[{"role": "user", "content": row["question"]},
            {"role": "assistant", "content": row["answer"]}] for row in formats.problems()[:4]]
  rows = [tokenizer.apply_chat_template(messages, return_dict=False) for messages in chats]
  return np.array([row[:min(map(len, rows))] for row in rows])


def our_logits(model: Model, params, ids: np.ndarray) -> np.ndarray:
  positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
  hidden, _ = model.hidden(params, jnp.asarray(ids), positions, jnp.ones_like(positions))
  return np.asarray(hidden @ model.head(params))


def far(a: np.ndarray, b: np.ndarray) -> float:
  """Largest difference, relative to the largest entry."""
  return float(np.max(np.abs(a - b)) / np.max(np.abs(b)))


def test_the_metrics_of_all_iterations_are_finite_and_rewards_differ(commands):
  start, *lines = command.metrics_lines(commands / "run")
  assert start["iteration"] == 0 and [line["iteration"] for line in lines] == list(
      range(1, chat.ITERATIONS + 1))
  assert all(math.isfinite(value) for line in [start, *lines] for value in line.values())
  assert 0 < max(line["reward/mean"] for line in lines) < 1
  assert max(line["kl/current_anchor"]
             for line in lines) > 1e-6, "no update moved the policy within an iteration"
  assert max(abs(line["kl/anchor_behavior"]) for line in lines) < 1e-6


def test_prompts_are_those_of_the_chat_template(commands, files):
  tokenizer = AutoTokenizer.from_pretrained(files[0])
  stop = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
  asked = {row["question"]: row for row in formats.problems()}
  ended, judged = 0, []
  for path in command.rollout_files(commands / "run"):
    for row in read_rollouts(str(path)):
      messages = [{"role": "user", "content": row["prompt"] + " Think."}]
      prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True,
                                             enable_thinking=False, return_dict=False)
      assert row["tokens"][:row["prompt_length"]].tolist() == prompt
      gold = asked[row["prompt"]]["answer"].split("#### ")[1]
      if (stated := stated_number(row["completion"])) is not None:
        assert row["correct"] == (gold == stated)
        judged.append(row["correct"])
      ended += not row["truncated"]
      assert row["truncated"] or row["tokens"][-1] in stop
  assert ended > 0
  assert len(judged) > 20 and set(judged) == {True, False}


def stated_number(text: str) -> str | None:
  """The number behind the only ####; None for texts that the tests of grading/ are about."""
  parts = text.split("####")
  number = re.fullmatch(r" *0*(\d+) *", parts[1]) if len(parts) == 2 else None
  return number[1] if number else None


def test_transformers_and_the_importer_compute_what_the_run_does(commands, files, trained):
  model, params = trained
  tokenizer = AutoTokenizer.from_pretrained(commands / "exported")
  ids = ids_of_prompts(tokenizer)
  ours = our_logits(model, params, ids)
  assert far(hf_checkpoints.logits(hf_checkpoints.reload(commands / "exported"), ids),
             ours) < RELATIVE
  model, loaded, _ = load_pretrained(commands / "exported")
  jax.tree.map(np.testing.assert_array_equal, loaded, params)
  assert far(our_logits(model, loaded, ids), ours) < RELATIVE
  # An export of what the run began with would be caught.
  assert far(hf_checkpoints.logits(hf_checkpoints.reload(files[0]), ids), ours) > 100 * RELATIVE


def test_an_export_has_all_files_of_its_origin(commands, files):
  before, after = (
      AutoTokenizer.from_pretrained(path) for path in (files[0], commands / "exported"))
  assert after.chat_template == before.chat_template and after.get_vocab() == before.get_vocab()
  assert (after.eos_token_id, after.pad_token_id) == (before.eos_token_id, before.pad_token_id)
  stops = [json.loads((path / "generation_config.json").read_text())["eos_token_id"]
           for path in (files[0], commands / "exported")]
  assert stops[0] == stops[1] and len(stops[0]) == 2
  assert json.loads(
      (commands / "exported" / "config.json").read_text())["max_position_embeddings"] == 256


def test_an_exported_directory_is_evaluated_as_its_run(commands):
  outputs = {}
  for name in ("evaluation", "again"):
    metrics = json.loads((commands / name / "metrics.json").read_text())
    lines = (commands / name / "samples.jsonl").read_text().splitlines()
    assert len(lines) == chat.HELDOUT == metrics["problems"]["value"]
    assert all(len(json.loads(line)["samples"]) == 4 for line in lines)
    assert {"avg@4", "pass@1", "pass@2", "pass@4", "maj@4"} <= metrics.keys()
    assert metrics["pass@1"]["value"] <= metrics["pass@2"]["value"] <= metrics["pass@4"]["value"]
    outputs[name] = metrics, lines
  assert outputs["evaluation"] == outputs["again"]
  assert 0 < outputs["again"][0]["avg@4"][
      "value"] < 1, "equal because nothing, or everything, is right"


def test_damaged_weights_end_the_command_with_one_line(commands):
  message = (commands / "refused.txt").read_text()
  assert "damaged/model.safetensors" in message and "truncated" in message and "Fix:" in message


def test_a_hub_name_is_its_local_copy(commands, files, monkeypatch):
  """Without a network: the hub's client answers with the directory."""
  asked = []
  monkeypatch.setattr(huggingface_hub, "snapshot_download",
                      lambda name, **_: asked.append(name) or str(files[0]))
  config = chat.get_config()
  config.pretrained, config.task.data.path = "owner/qwen3", str(files[1])
  cfg = setup.resolve(from_dict(config))
  built = setup.build(cfg, jax.devices()[:1])
  assert set(asked) == {"owner/qwen3"}
  assert built.cfg.model.width == 32 and built.task.stop_ids == (2, 0)
  with pytest.raises(ConfigError, match="owner/other/name"):
    setup.build(dataclasses.replace(cfg, pretrained="owner/other/name"), jax.devices()[:1])
