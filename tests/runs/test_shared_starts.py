"""A warm start is taken from another run only if training it would give the same bytes."""

import contextlib
import dataclasses
import json
import os
import shutil
import threading

import command
import config_reads
import jax
import pytest
import tiny

from jaxrl_llm.build import setup, shared_starts
from jaxrl_llm.build import warm_start as warm_start_lib
from jaxrl_llm.config import TeacherConfig, from_dict
from jaxrl_llm.store import cache


def learner_for(**sections):
  """(config, learner) of the smallest run, with values replaced."""
  config = tiny.get_config("grpo")
  for name, value in sections.items():
    if isinstance(value, dict):
      config[name].update(value)
    else:
      config[name] = value
  cfg, _, learner = setup.build_learner(setup.resolve(from_dict(config)), jax.devices()[:1])
  return cfg, learner


@pytest.fixture
def shared(monkeypatch, tmp_path):
  monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "shared"))
  return tmp_path / "shared" / cache.STARTS


# --- the name of an entry

READ = {
    "seed": {"seed": 1},
    "steps": {"warm_start": {"steps": 61}},
    "rate": {"warm_start": {"learning_rate": 2e-3}},
    "shape": {"model": {"width": 32}},
    "problems": {"task": {"worked_share": 0.5}},
    "optimizer": {"optimizer": {"b1": 0.8}},
    "row": {"rollout": {"max_new_tokens": 12}},
    "parameters": {"parameters": {"train": "lora"}},
    "value head": {"advantage": {"name": "gae"}},
}
UNREAD = {
    "method": {"estimator": {"name": "ctpo"}},
    "length": {"iterations": 9},
    "control": {"task": {"shuffle_rewards": True}},
    "regulariser": {"kl": {"coef": 0.1}},
    "step": {"optimizer": {"learning_rate": 5e-3, "warmup_steps": 3}},
    "sampler": {"rollout": {"dtype": "bfloat16", "logit_noise": 1.0, "temperature": 0.7}},
}


def mistakes(key) -> list[str]:
  """Changes that a key should see and does not, and the reverse."""
  first = key(*learner_for())
  found = [name for name, change in READ.items() if key(*learner_for(**change)) == first]
  return found + [name for name, change in UNREAD.items() if key(*learner_for(**change)) != first]


def without_the_seed(cfg, learner):
  """Wrong: runs of all seeds would start from the same parameters."""
  return shared_starts.key(dataclasses.replace(cfg, seed=0), learner)


def test_the_key_holds_what_is_read_and_nothing_else(shared):
  assert mistakes(shared_starts.key) == []


def test_a_teacher_is_not_of_the_key(shared, tmp_path):
  cfg, learner = learner_for()
  (tmp_path / "config.json").write_text("{}")
  taught = dataclasses.replace(cfg, teacher=TeacherConfig(str(tmp_path)))
  assert shared_starts.key(taught, learner) == shared_starts.key(cfg, learner)


def test_a_key_without_the_seed_is_rejected(shared):
  assert mistakes(without_the_seed) == ["seed"]


def test_the_key_holds_plugins_data_sources_and_machine(shared, tmp_path, monkeypatch):
  plugin, rows = tmp_path / "plugin.py", tmp_path / "rows.jsonl"
  plugin.write_text("x = 1\n")
  rows.write_text("".join(json.dumps({"problem": str(n), "answer": str(n), "work": "w"}) + "\n"
                          for n in range(20)))
  task = {"name": "dataset", "num_terms": None, "worked_share": None, "data": {
      "path": str(rows), "demonstration_column": "work", "verifier": "exact"}}
  cfg, learner = learner_for(plugins=(str(plugin),), task=task, model={"vocab_size": 300})
  first, seen = shared_starts.key(cfg, learner), set()
  assert first == shared_starts.key(cfg, learner)
  plugin.write_text("x = 2\n")
  seen.add(shared_starts.key(cfg, learner))
  rows.write_text(rows.read_text() + "\n")
  seen.add(shared_starts.key(cfg, learner))
  for name in ("JAX_PLATFORMS", "JAX_LOG_COMPILES", "XLA_PYTHON_CLIENT_PREALLOCATE"):
    monkeypatch.setenv(name, "cpu" if name == "JAX_PLATFORMS" else "0")
  seen.add(shared_starts.key(cfg, learner))  # these change no number
  monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_max_isa=AVX2")
  seen.add(shared_starts.key(cfg, learner))
  monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4}, raising=False)
  seen.add(shared_starts.key(cfg, learner))  # rounding differs with the number of threads
  monkeypatch.setattr(shared_starts, "PACKAGE", shared_starts.PACKAGE / "runs")
  seen.add(shared_starts.key(cfg, learner))
  assert len(seen | {first}) == 6
  rows.unlink()  # a hub name, whose rows may change
  assert shared_starts.key(cfg, learner) is None
  monkeypatch.setenv(cache.VARIABLE, "")
  assert shared_starts.key(*learner_for()) is None


# --- entries


def start(path, text="weights"):
  (path / "inner").mkdir(parents=True)
  (path / "inner" / "array").write_text(text)
  return path


def test_a_start_comes_back_and_a_torn_one_does_not(shared, tmp_path):
  assert not shared_starts.fetch("k", tmp_path / "none")
  shared_starts.store("k", start(tmp_path / "a"))
  assert shared_starts.fetch("k", tmp_path / "b")
  assert shared_starts.hashes(tmp_path / "b") == shared_starts.hashes(tmp_path / "a")
  (shared / "k" / "files" / "inner" / "array").write_text("weight")
  assert not shared_starts.fetch("k", tmp_path / "c")
  assert not (shared / "k").exists(), "nobody would write it again"
  assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "shared"}


def full(*_, **__):
  raise OSError("No space left on device")


def test_an_unfinished_copy_is_no_entry(shared, tmp_path, monkeypatch):
  monkeypatch.setattr(shutil, "copytree", full)
  shared_starts.store("k", start(tmp_path / "a"))
  assert list(shared.iterdir()) == []


def test_a_full_disk_costs_the_run_and_not_the_entry(shared, tmp_path, monkeypatch):
  shared_starts.store("k", start(tmp_path / "a"))
  with monkeypatch.context() as patch:
    patch.setattr(shutil, "copytree", full)
    with pytest.raises(OSError, match="No space left"):
      shared_starts.fetch("k", tmp_path / "b")
  assert shared_starts.fetch("k", tmp_path / "b")


def test_what_a_killed_removal_left_is_written_again(shared, tmp_path):
  shared_starts.store("k", start(tmp_path / "a"))
  (shared / "k" / shared_starts.MANIFEST).unlink()
  assert not shared_starts.fetch("k", tmp_path / "b")
  shared_starts.store("k", tmp_path / "a")
  assert shared_starts.fetch("k", tmp_path / "b")


def test_a_copy_that_a_killed_run_left_is_removed(shared, tmp_path):
  start(tmp_path / "b.copy")
  assert not shared_starts.fetch(None, tmp_path / "b") and not (tmp_path / "b.copy").exists()


def test_the_folder_is_bounded(shared, tmp_path, monkeypatch):
  monkeypatch.setattr(shared_starts, "LIMIT_BYTES", 3000)
  for time, name in enumerate("abc", 10**9):
    shared_starts.store(name, start(tmp_path / name, name * 1000))
    for path in (shared / name).rglob("*"):
      os.utime(path, (time, time))  # the clock of files may not tell them apart
  shared_starts.store("large", start(tmp_path / "large", "x" * 3001))
  assert sorted(path.name for path in shared.iterdir()) == ["b", "c"]


def test_runs_at_once_leave_one_whole_entry(shared, tmp_path):
  start(tmp_path / "a")
  threads = [threading.Thread(target=shared_starts.store, args=("k", tmp_path / "a"))
             for _ in range(8)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert [path.name for path in shared.iterdir()] == ["k"]
  assert shared_starts.fetch("k", tmp_path / "b")


# --- whole runs


@pytest.mark.slow
def test_the_warm_start_reads_no_section_outside_of_its_key(tmp_path):
  cfg, learner = learner_for(warm_start={"steps": 1})
  with config_reads.recorded() as read:
    warm_start_lib.warm_start(cfg, learner, None, tmp_path)
  assert "warm_start.steps" in read
  unread = {*shared_starts.UNREAD, *(f"rollout.{key}" for key in shared_starts.UNREAD_ROLLOUT)}
  outside = {key for key in read if {key, key.split(".")[0]} & unread}
  # Supervised steps make these for themselves.
  assert outside <= {"aggregation.name", "updates.micro_batches"}


@pytest.mark.slow
def test_runs_do_not_depend_on_what_is_shared(tmp_path):
  """Alone, with an empty folder, with one that another method has filled, and with a full one."""
  results, programs = {}, {}
  for name, preset, folder in (("alone", "ctpo", ""), ("other", "grpo", "shared"),
                               ("taken", "ctpo", "shared"), ("again", "ctpo", "shared")):
    environment = {cache.VARIABLE: str(tmp_path / folder) if folder else ""}
    command.succeed(command.start(tmp_path / name, config=f"{command.TINY}:{preset}",
                                  environment=environment, interpreter=name == "again"))
    lines = [{key: value for key, value in line.items() if not key.startswith("time/")}
             for line in command.metrics_lines(tmp_path / name)]
    results[name] = lines, command.rollout_contents(tmp_path / name)
    programs[name] = {file.name for file in (tmp_path / "shared/xla").glob("*-cache")}
  assert results["taken"] == results["again"] == results["alone"] != results["other"]
  assert programs["other"] < programs["taken"] == programs["again"], "it compiled something again"
  assert len(list((tmp_path / "shared" / cache.STARTS).iterdir())) == 1
  stamps = [(tmp_path / name / "warm_start/_CHECKPOINT_METADATA").read_bytes()
            for name in ("other", "taken", "alone")]
  assert stamps[0] == stamps[1] != stamps[2], "it was trained twice"


# --- several runs that want one start at the same time

def ends(reserved, seconds: float) -> list[str]:
  """Who finishes with a start first: the run that reserved it, or one that wants it, too, for which
  the first one waits.
  """
  order = []

  def second():
    with reserved("start"):
      order.append("second")

  with reserved("start"):
    thread = threading.Thread(target=second)
    thread.start()
    with reserved("another start"):
      thread.join(seconds)
    order.append("first")
  thread.join(300)
  return order


def test_one_run_trains_a_start_and_others_wait(shared):
  assert ends(shared_starts.reserved, 0.5) == ["first", "second"]
  assert ends(contextlib.nullcontext, 300.0) == ["second", "first"], "without a lock nobody waits"


def test_no_shared_folder_no_lock(monkeypatch, tmp_path):
  (tmp_path / "file").write_text("")
  monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file"))
  with shared_starts.reserved("start"), shared_starts.reserved(None):
    pass
