"""Completions are read as they were written, in both forms of arrays and in the old one; what was
damaged, or torn between facts and arrays, is never read as good.
"""

import functools
import json
import os
import re

import numpy as np
import pytest

from experiments.report import rollout_rows
from experiments.report.run_folder import RunFolder
from experiments.tables_lib.replay import frozen
from jaxrl_llm.config import RolloutConfig
from jaxrl_llm.reporting import token_columns, writers
from jaxrl_llm.reporting.reader import RunError
from jaxrl_llm.reporting.writers import write_rollouts

ARRAYS = ("tokens", "mask", "behavior_log_probs")


@pytest.fixture(params=(token_columns.PARQUET, token_columns.NPZ))
def form(request, monkeypatch):
  """The form of the arrays that are written."""
  if request.param == token_columns.PARQUET:
    pytest.importorskip("pyarrow")
  monkeypatch.setattr(token_columns, "extension", lambda: request.param)
  return request.param


def rows(lengths=(3, 2, 5, 2), seed=0):
  rng = np.random.default_rng(seed)
  return [{"row_id": i, "completion": f"a\nb{seed}", "anchor_log_probs": None,
           "tokens": rng.integers(0, 151_000, n).astype(np.int32), "mask": rng.random(n) < 0.5,
           "behavior_log_probs": -rng.random(n).astype(np.float32)}
          for i, n in enumerate(lengths)]


def folder(path):
  return RunFolder(str(path), {}, {}, [])


def names(path):
  return sorted(os.listdir(path / "rollouts"))


def contents(path):
  return {name: (path / "rollouts" / name).read_bytes() for name in names(path)}


def equal(rows_read, expected) -> bool:
  """Whether rows are equal to the bit, with equal dtypes."""
  return len(rows_read) == len(expected) and all(
      a.keys() == b.keys() and all(
          np.array_equal(a[name], b[name], equal_nan=name not in ("completion", "anchor_log_probs"))
          and np.asarray(a[name]).dtype == np.asarray(b[name]).dtype for name in a)
      for a, b in zip(rows_read, expected, strict=True))


def test_rows_come_back_to_the_bit(tmp_path, form):
  written = rows()
  written[0]["behavior_log_probs"][:2] = np.nan, -np.inf
  write_rollouts(tmp_path, 7, written)
  assert names(tmp_path) == ["iteration_00007.jsonl", f"iteration_00007{form}"]
  assert equal(folder(tmp_path).rollouts(7), written)
  assert not equal(folder(tmp_path).rollouts(7), rows()), "the comparison sees nothing"
  facts = [json.loads(line) for line in contents(tmp_path)["iteration_00007.jsonl"].splitlines()]
  assert not {*ARRAYS} & facts[0].keys()


def test_lists_of_an_earlier_version_are_read_as_arrays(tmp_path):
  lists = [row | {name: row[name].tolist() for name in ARRAYS} for row in rows()]
  lists[0]["behavior_log_probs"][0] = "-inf"
  write_rollouts(tmp_path, 1, lists)
  assert names(tmp_path) == ["iteration_00001.jsonl"]
  expected = rows()
  expected[0]["behavior_log_probs"][0] = -np.inf
  assert equal(folder(tmp_path).rollouts(1), expected)
  write_rollouts(tmp_path, 1, [{"tokens": [1, "two"]}])
  with pytest.raises(RunError, match="line 1: not numbers by token"):
    folder(tmp_path).rollouts(1)


def test_files_of_another_start_are_removed(tmp_path, form, monkeypatch):
  other = {".parquet", ".npz"} - {form}
  write_rollouts(tmp_path, 1, rows(), (0, 2))
  write_rollouts(tmp_path, 1, rows(), (1, 2))
  (tmp_path / "rollouts" / f"iteration_00001{other.pop()}").write_bytes(b"")
  write_rollouts(tmp_path, 1, rows((2, 2)))
  assert names(tmp_path) == ["iteration_00001.jsonl", f"iteration_00001{form}"]
  write_rollouts(tmp_path, 2, rows(), (0, 2))
  write_rollouts(tmp_path, 2, rows(seed=1), (1, 2))
  assert equal(folder(tmp_path).rollouts(2), rows() + rows(seed=1))


def damages():
  """Changes of (facts, arrays), and what is said of them."""
  half = lambda content: content[:len(content) // 2]
  flip = lambda content: content[:50] + bytes([content[50] ^ 4]) + content[51:]
  no_line = lambda facts: b"".join(facts.splitlines(True)[:-1])
  return {
      "half of the arrays": (lambda f, a: (f, half(a)), "the checksum is not"),
      "a flipped bit": (lambda f, a: (f, flip(a)), "the checksum is not"),
      "no arrays": (lambda f, a: (f, None), "No such file or directory, but .* names it"),
      "arrays of another start": (lambda f, a: (f, token_columns.encode(
          {name: [row[name] for row in rows(seed=1)] for name in ARRAYS}, token_columns.NPZ)),
                                  "the checksum is not"),
      "a torn line": (lambda f, a: (f[:-5], a), "the last line is torn"),
      "no facts": (lambda f, a: (b"", a), "the file is empty"),
      "a line less": (lambda f, a: (no_line(f), a), "3 lines, of which column tokens .* has 4"),
      "facts of two starts": (lambda f, a: (f.replace(b'"arrays": "', b'"arrays": "x', 1), a),
                              "name no file of arrays, or several"),
      "a column twice": (lambda f, a: (f.replace(b'"row_id"', b'"tokens": [1], "row_id"', 1), a),
                         "line 1: tokens stands here and in the file of arrays"),
      "no text": (lambda f, a: (re.sub(rb'"arrays": "[^"]*"', b'"arrays": [1]', f), a),
                  "name no file of arrays"),
      "another name": (lambda f, a: (f.replace(b"iteration", b"it"), a), "name no file of arrays"),
  }


@pytest.mark.parametrize("damage", damages())
def test_damage_is_one_line(tmp_path, form, damage):
  change, message = damages()[damage]
  path = write_rollouts(tmp_path, 1, rows())
  beside = path.replace(".jsonl", form)
  with open(path, "rb") as facts, open(beside, "rb") as arrays:
    before = facts.read(), arrays.read()
  for name, content in zip((path, beside), change(*before), strict=True):
    if content is None:
      os.remove(name)
    else:
      with open(name, "wb") as file:
        file.write(content)
  with pytest.raises(RunError, match=message) as error:
    folder(tmp_path).rollouts(1)
  assert "\n" not in str(error.value) and "Fix: " in str(error.value)


@pytest.mark.parametrize("content", [b"", b"x" * 80, b"PK\x03\x04" + bytes(80), b"PAR1" * 9])
def test_bytes_that_are_no_arrays_are_a_value_error(form, content):
  with pytest.raises(ValueError):
    rollout_rows.decode(content, form)


class KilledError(BaseException):
  """In place of SIGKILL."""


def killed_at(step: int, monkeypatch, write) -> bool:
  """Runs `write` until its file operation `step`, which is not done; returns whether it came."""
  count = iter(range(100))

  def counted(operation):
    def run(*arguments):
      if next(count) == step:
        raise KilledError
      return operation(*arguments)
    return run

  with monkeypatch.context() as patch:
    for name in ("replace", "unlink"):
      patch.setattr(os, name, counted(getattr(os, name)))
    try:
      write()
    except KilledError:
      return True
  return False


def mixtures(path, form, monkeypatch) -> int:
  """Kills a second write over a first one of other rows, at each step; returns how often what was
  left is read as rows that are neither.
  """
  expected, count = path / "whole", 0
  write_rollouts(expected, 1, rows(seed=1))
  for step in range(9):
    torn = path / str(step)
    write_rollouts(torn, 1, rows(seed=0))
    if not killed_at(step, monkeypatch, functools.partial(write_rollouts, torn, 1, rows(seed=1))):
      break
    try:
      rows_read = folder(torn).rollouts(1)
    except RunError:
      rows_read = rows()
    count += not any(equal(rows_read, rows(seed=seed)) for seed in (0, 1))
    write_rollouts(torn, 1, rows(seed=1))  # as the run does when it goes on
    assert contents(torn) == contents(expected), f"step {step}"
  assert torn.name == "2", "a step for each of two files"
  return count


def test_a_run_killed_between_the_files_leaves_none_that_looks_good(tmp_path, form, monkeypatch):
  assert mixtures(tmp_path / "right", form, monkeypatch) == 0
  # The wrong implementation that the test rejects: without checksums, a mixture looks good.
  monkeypatch.setattr(token_columns, "mark", lambda path, content: f"{os.path.basename(path)} 0")
  assert mixtures(tmp_path / "wrong", form, monkeypatch) == 1


# --- a replay of them


FACTS = {"group_id": 0, "policy_step": 0, "prompt_length": 2, "truncated": False, "stop_reason": 0,
         "trained_reward": 1.0, "keep": True}


@pytest.mark.parametrize("change, message", [
    (lambda rows: rows, None),
    (lambda rows: rows[:3], "3 completions are not in groups of rollout.group_size = 2"),
    (lambda rows: [row | {"mask": row["mask"][:2]} for row in rows],
     "line 1: columns of 2 to 3 tokens; all of one length from 2"),
    (lambda rows: [row | {"prompt_length": 4} for row in rows], "columns of 3 to 3 tokens"),
    (lambda rows: [*rows[:3], rows[3] | {"tokens": None}], "line 4: columns behavior_log_probs"),
    (lambda rows: [*rows[:3], rows[3] | {"trained_reward": "high"}],
     "trained_reward is not a number"),
    (lambda rows: [{k: row[k] for k in row if k != "keep"} for row in rows], "line 1: no keep"),
])
def test_a_replay_refuses_rows_that_do_not_fit(tmp_path, change, message):
  """As lists, of which the file says nothing more than there is."""
  lists = [row | FACTS | {name: row[name].tolist() for name in ARRAYS} for row in rows()]
  writers.write_rollouts(tmp_path, 1, change(lists))
  cfg = RolloutConfig(group_size=2, max_prompt_tokens=2, max_new_tokens=3)
  if message is None:
    assert frozen.load(folder(tmp_path), 1, cfg, 0).rollout.tokens.shape == (4, 5)
  else:
    with pytest.raises(RunError, match=message):
      frozen.load(folder(tmp_path), 1, cfg, 0)
