"""A run's inputs are contents: another file under the same path is refused, in one line."""

import json
import os

import pytest

from experiments.commands import saved
from jaxrl_llm.config import ConfigError, from_dict, to_dict
from jaxrl_llm.runs import trainer
from jaxrl_llm.wiring import inputs, setup


def rows(path, *texts):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text("".join(json.dumps({"problem": text, "answer": "1"}) + "\n" for text in texts))
  return str(path)


@pytest.fixture
def run(tmp_path):
  """(folder of a run that has begun, its config): every kind of input is a file here."""
  base = tmp_path / "base"
  base.mkdir()
  for name in ("config.json", "tokenizer.json", "model.safetensors", "README.md"):
    (base / name).write_text(name)
  values = {
      "pretrained": str(base),
      "parameters": {"train": "lora"},
      "task": {"name": "dataset", "heldout_problems": 1, "prompt": {
          "examples": rows(tmp_path / "shown.jsonl", "e")}, "data": {
              "path": f"{rows(tmp_path / 'a.jsonl', 'a')},{tmp_path / 'folder'}",
              "heldout_path": rows(tmp_path / "heldout.jsonl", "h")}},
      "warm_start": {"steps": 1, "path": rows(tmp_path / "warm.jsonl", "w")},
      "evaluation": {"sets": {"aime": {"path": rows(tmp_path / "aime.jsonl", "x")}}},
  }
  rows(tmp_path / "folder" / "train" / "0.jsonl", "f")
  rows(tmp_path / "folder" / "test" / "0.jsonl", "g")
  return begun(tmp_path / "run", values)


def begun(folder, values):
  cfg = from_dict(values)
  folder.mkdir()
  (folder / "config.json").write_text(json.dumps(to_dict(cfg)))
  inputs.record(folder, inputs.notes(cfg))
  return folder, cfg


KEYS = {
    "a.jsonl": "task.data.path", "folder/train/0.jsonl": "task.data.path",
    "heldout.jsonl": "task.data.heldout_path", "warm.jsonl": "warm_start.path",
    "shown.jsonl": "task.prompt.examples", "aime.jsonl": "evaluation.sets.aime.path",
    "base/model.safetensors": "pretrained", "base/tokenizer.json": "pretrained",
}


@pytest.mark.parametrize("name", KEYS)
def test_another_file_under_the_same_path_is_refused(run, name):
  folder, cfg = run
  inputs.check(folder, cfg)
  file = folder.parent / name
  before, stat = file.read_text(), file.stat()
  file.write_text(before[::-1])
  os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
  with pytest.raises(ConfigError, match=rf"contents of {KEYS[name]} have changed since the run "
                     rf"began: .*{file.name} \(SHA-256 .* then, .* now\)\. Fix: ") as error:
    inputs.check(folder, cfg)
  assert "\n" not in str(error.value)
  # What is rejected: a comparison of sizes and times, which a first version made.
  assert (file.stat().st_size, file.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
  file.write_text(before)
  inputs.check(folder, cfg)


def test_files_that_are_not_read_do_not_count(run):
  folder, cfg = run
  for name in ("folder/test/0.jsonl", "base/README.md", "base/notes.json"):
    (folder.parent / name).write_text("{}")
  inputs.check(folder, cfg)


@pytest.mark.parametrize("name, text", [("folder/train/1.jsonl", "1.jsonl is new"),
                                        ("base/model-2.safetensors", "model-2.safetensors is new"),
                                        ("base/generation_config.json", "config.json is new")])
def test_a_further_file_of_a_folder_counts(run, name, text):
  folder, cfg = run
  rows(folder.parent / name, "new")
  with pytest.raises(ConfigError, match=text):
    inputs.check(folder, cfg)


def test_a_file_that_is_gone_counts_unless_the_run_has_its_weights(run):
  folder, cfg = run
  (folder.parent / "base" / "model.safetensors").rename(folder.parent / "elsewhere")
  with pytest.raises(ConfigError, match=r"of pretrained have changed .* model.safetensors is gone"):
    inputs.check(folder, cfg)
  inputs.check(folder, from_dict(to_dict(cfg) | {"parameters": {"train": "all"}}))


def test_the_base_of_an_adapter_counts(tmp_path):
  for name, content in (("base/config.json", "{}"), ("base/model.safetensors", "w"),
                        ("adapter/adapter_model.safetensors", "a"),
                        ("adapter/adapter_config.json",
                         json.dumps({"base_model_name_or_path": str(tmp_path / "base")}))):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)
  folder, cfg = begun(tmp_path / "run", {"pretrained": str(tmp_path / "adapter")})
  (tmp_path / "base" / "model.safetensors").write_text("v")
  with pytest.raises(ConfigError, match=r"pretrained have changed .*: base/model.safetensors"):
    inputs.check(folder, cfg)


def test_resume_export_and_evaluation_refuse_before_anything_is_built(run, monkeypatch):
  folder, cfg = run
  (folder.parent / "base" / "model.safetensors").write_text("other weights")

  def reached(*_, **__):
    raise AssertionError("the inputs were not compared")

  monkeypatch.setattr(setup, "build", reached)
  monkeypatch.setattr(setup, "build_learner", reached)
  monkeypatch.setattr(setup, "resolve", lambda cfg: cfg)
  for call in (lambda: trainer.run(cfg, folder),
               lambda: saved.export(folder, folder.parent / "out"),
               lambda: saved.export_adapter(folder, folder.parent / "out"),
               lambda: saved.restore_start(cfg, None, folder)):
    with pytest.raises(ConfigError, match="contents of pretrained have changed"):
      call()
  # An evaluation brings its own problems; the base must be the run's.
  (folder.parent / "base" / "model.safetensors").write_text("model.safetensors")
  rows(folder.parent / "a.jsonl", "other")
  with pytest.raises(ConfigError, match="no checkpoint there"):
    saved.restore_start(cfg, None, folder)
  with pytest.raises(ConfigError, match=r"contents of task\.data\.path have changed"):
    saved.export(folder, folder.parent / "out")


def test_the_fix_is_accepted_and_a_folder_of_an_older_version_goes_on(run):
  folder, cfg = run
  rows(folder.parent / "a.jsonl", "other")
  with pytest.raises(ConfigError, match=r"to continue with the new contents, remove .*inputs.json"):
    inputs.check(folder, cfg)
  (folder / inputs.FILE).unlink()
  inputs.check(folder, cfg)
  inputs.record(folder, inputs.notes(cfg))
  inputs.check(folder, cfg)
  rows(folder.parent / "a.jsonl", "another")
  inputs.record(folder, inputs.notes(cfg))
  with pytest.raises(ConfigError, match="have changed"):
    inputs.check(folder, cfg)


def test_damaged_notes_are_named(run):
  folder, cfg = run
  (folder / inputs.FILE).write_text("[")
  with pytest.raises(ConfigError, match=r"inputs.json: not readable: .* Fix: .*remove it"):
    inputs.check(folder, cfg)


@pytest.mark.parametrize("values", [
    {}, {"task": {"name": "dataset", "data": {"path": "owner/set:main"}}}],
                         ids=["no file", "name of the hub"])
def test_a_run_without_files_has_an_empty_note(values, tmp_path):
  folder, cfg = begun(tmp_path / "run", values)
  assert json.loads((folder / inputs.FILE).read_text()) == {}
  inputs.check(folder, cfg)


def test_notes_of_an_older_version_are_read(run):
  """They had the SHA-256 alone."""
  folder, cfg = run
  notes = json.loads((folder / inputs.FILE).read_text())
  (folder / inputs.FILE).write_text(json.dumps(
      {key: {name: note[1] for name, note in files.items()} for key, files in notes.items()}))
  inputs.check(folder, cfg)
  rows(folder.parent / "a.jsonl", "other")
  with pytest.raises(ConfigError, match=r"contents of task\.data\.path have changed"):
    inputs.check(folder, cfg)


def test_a_changed_plugin_is_named_as_changed_data_are(tmp_path):
  plugin = tmp_path / "mine.py"
  plugin.write_text("RATE = 1\n")
  folder, cfg = begun(tmp_path / "run", {"plugins": [str(plugin)]})
  assert json.loads((folder / inputs.FILE).read_text())["plugins"][str(plugin)][0] == 9
  inputs.check(folder, cfg)
  plugin.write_text("RATE = 20\n")
  with pytest.raises(ConfigError, match=r"contents of plugins have changed since the run began: "
                     r".*mine\.py \(SHA-256 .* then, .* now, 9 bytes then, 10 now\)\. Fix: "):
    inputs.check(folder, cfg)
