"""A warm start is taken from another run only if training it would give the same bytes."""

import contextlib
import dataclasses
import os
import threading

import command
import config_reads
import jax
import pytest
import tiny

from jaxrl_llm.config import from_dict
from jaxrl_llm.store import cache, checksums, shared_starts
from jaxrl_llm.wiring import setup
from jaxrl_llm.wiring import warm_start as warm_start_lib


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
  return cache.folder(cache.STARTS)


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
    "regulariser": {"kl": {"coef": 0.1}},
    "step": {"optimizer": {"learning_rate": 5e-3, "warmup_steps": 3}},
    "sampler": {"rollout": {"dtype": "bfloat16", "logit_noise": 1.0, "temperature": 0.7}},
}


def mistakes(entry_of) -> list[str]:
  """Changes that a name should see and does not, and the reverse."""
  first = entry_of(*learner_for())
  unseen = [name for name, change in READ.items() if entry_of(*learner_for(**change)) == first]
  return unseen + [name for name, change in UNREAD.items()
                   if entry_of(*learner_for(**change)) != first]


def without_the_seed(cfg, learner):
  """Wrong: runs of all seeds would start from the same parameters."""
  return warm_start_lib.shared_entry(dataclasses.replace(cfg, seed=0), learner)


def test_the_name_holds_what_is_read_and_nothing_else(shared):
  assert mistakes(warm_start_lib.shared_entry) == []
  assert mistakes(without_the_seed) == ["seed"]


def test_files_sources_and_devices_count(monkeypatch, shared, tmp_path):
  file = tmp_path / "rows.jsonl"
  file.write_text('{"problem": "1", "completion": "1"}\n')
  cfg, learner = learner_for(warm_start={"path": str(file)})
  entries = {warm_start_lib.shared_entry(cfg, learner)}
  file.write_text('{"problem": "1", "completion": "2"}\n')
  entries.add(warm_start_lib.shared_entry(cfg, learner))
  monkeypatch.setattr(warm_start_lib, "usable_cores", lambda: 99)  # rounding differs with threads
  entries.add(warm_start_lib.shared_entry(cfg, learner))
  monkeypatch.setattr(warm_start_lib, "PACKAGE", warm_start_lib.PACKAGE / "runs")
  entries.add(warm_start_lib.shared_entry(cfg, learner))
  assert len(entries) == 4 and None not in entries


def test_what_may_change_unseen_is_not_shared(monkeypatch, shared):
  cfg, learner = learner_for()
  for change in ({"plugins": ("mine.py",)},
                 {"warm_start": dataclasses.replace(cfg.warm_start, path="owner/set")},
                 {"warm_start": dataclasses.replace(cfg.warm_start, steps=0)}):
    assert warm_start_lib.shared_entry(dataclasses.replace(cfg, **change), learner) is None
  monkeypatch.setenv(cache.VARIABLE, "")
  assert warm_start_lib.shared_entry(cfg, learner) is None


@pytest.mark.slow
def test_the_warm_start_reads_no_section_outside_of_its_name(tmp_path):
  cfg, learner = learner_for(warm_start={"steps": 1})
  with config_reads.recorded() as read:
    warm_start_lib.warm_start(cfg, learner, None, tmp_path)
  named = {*warm_start_lib.SECTIONS, "optimizer", "model", "mesh"}
  outside = {key for key in read if "." in key and key.split(".")[0] not in named}
  # Supervised steps make the first two for themselves.
  assert outside <= {"aggregation.name", "updates.micro_batches", *(
      f"rollout.{name}" for name in warm_start_lib.LENGTHS)}


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
  assert sum(path.is_dir() for path in (tmp_path / "shared" / cache.STARTS).iterdir()) == 1
  stamps = [(tmp_path / name / "warm_start/_CHECKPOINT_METADATA").read_bytes()
            for name in ("other", "taken", "alone")]
  assert stamps[0] == stamps[1] != stamps[2], "it was trained twice"


# --- what is copied

def start(path, text="x"):
  (path / "d").mkdir(parents=True)
  (path / "d" / "array").write_text(text)
  checksums.write(path)
  return path


def test_a_start_is_copied_whole(shared, tmp_path):
  entry = shared / "k"
  assert not shared_starts.fetch(entry, tmp_path / "none")
  shared_starts.store(entry, start(tmp_path / "a"))
  assert shared_starts.fetch(entry, tmp_path / "b")
  assert (tmp_path / "b/d/array").read_text() == "x" and not (tmp_path / "b.copy").exists()
  assert not shared_starts.fetch(None, tmp_path / "c")


@pytest.mark.parametrize("damage", [lambda file: file.write_text("y"), os.remove])
def test_a_damaged_entry_is_trained_again(shared, tmp_path, caplog, damage):
  entry = shared / "k"
  shared_starts.store(entry, start(tmp_path / "a"))
  damage(entry / "d" / "array")
  assert not shared_starts.fetch(entry, tmp_path / "b") and "damaged" in caplog.text
  assert not (tmp_path / "b").exists() and not entry.exists()
  shared_starts.store(entry, tmp_path / "a")
  assert shared_starts.fetch(entry, tmp_path / "b")


def test_the_folder_stays_bounded(shared, tmp_path, monkeypatch):
  monkeypatch.setattr(shared_starts, "LIMIT_BYTES", 3000)
  for index, name in enumerate("abcd"):
    source = start(tmp_path / name, name * 1000)
    os.utime(source / "d" / "array", (1e9 + index, 1e9 + index))
    os.utime(source / checksums.NAME, (1e9 + index, 1e9 + index))
    shared_starts.store(shared / name, source)
  shared_starts.store(shared / "large", start(tmp_path / "large", "x" * 3001))
  assert {path.name for path in shared.iterdir()} == {"c", "d"}


# --- several runs that want one start at the same time

def ends(reserved, entry, seconds: float) -> list[str]:
  """Who finishes with a start first: the run that reserved it, or one that wants it, too, for which
  the first one waits.
  """
  order = []

  def second():
    with reserved(entry):
      order.append("second")

  with reserved(entry):
    thread = threading.Thread(target=second)
    thread.start()
    with reserved(entry.with_name("another") if entry else None):
      thread.join(seconds)
    order.append("first")
  thread.join(300)
  return order


def test_one_run_trains_a_start_and_others_wait(shared):
  assert ends(shared_starts.reserved, shared / "k", 0.5) == ["first", "second"]
  assert ends(contextlib.nullcontext, shared / "k", 300.0) == ["second", "first"], "nobody waits"


def test_no_folder_no_lock(tmp_path):
  with shared_starts.reserved(tmp_path / "none" / "k"), shared_starts.reserved(None):
    pass
