"""Runs of several processes compute what one process computes: losses, rows and decisions."""

import json

import formats
import numpy as np
import process_group as group
import pytest
import small_runs
from server_process import Server

from experiments.report.run_folder import RunFolder, read_run
from jaxrl_llm.rollouts.server import ServerSampler

LIMIT = 1e-6


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  """Overrides that name a checkpoint and GSM8K lines."""
  folder = tmp_path_factory.mktemp("files")
  return (f"pretrained={formats.write_checkpoint(folder / 'qwen3')}",
          f"task.data.path={formats.write_lines(folder / 'gsm8k.jsonl')}")


@pytest.fixture(scope="module")
def alone(files, tmp_path_factory):
  """Makes the run of a kind in one process of eight devices, once."""
  folders = {}

  def run(kind: str) -> RunFolder:
    if kind not in folders:
      workdir = tmp_path_factory.mktemp("alone") / kind
      # One process overlaps only with devices of its own, which changes no result.
      group.train(1, 8, workdir, kind, *overrides(kind, files),
                  "updates.overlap=False").succeed()
      folders[kind] = read_run(workdir)
    return folders[kind]

  return run


def overrides(kind: str, files: tuple[str, ...]) -> tuple[str, ...]:
  return files if kind == "dataset" else ()


def losses(run: RunFolder) -> np.ndarray:
  """[3, iterations]; entropies, which are larger, to a tenth."""
  names = {"loss/total": 1.0, "reward/mean": 1.0, "policy/entropy": 0.1}
  return np.array([scale * run.series(name)[1] for name, scale in names.items()])


def differences(run: RunFolder, other: RunFolder) -> list[str]:
  """What two runs do not share: names of metrics, numbers, rows."""
  parts = []
  if len(run.metrics) != len(other.metrics):
    return ["lines of metrics"]
  for mine, theirs in zip(run.metrics, other.metrics, strict=True):
    names = {name for name in mine.keys() | theirs.keys() if not name.startswith("time/")}
    parts += sorted(name for name in names if (name in mine) != (name in theirs))
  if np.abs(losses(run) - losses(other)).max() > LIMIT:
    parts.append("losses")
  for iteration in other.rollout_iterations():
    ids, theirs = ([row["row_id"] for row in one.rollouts(iteration)] for one in (run, other))
    if ids != theirs or len(set(ids)) != len(ids):
      parts.append(f"row ids of iteration {iteration}")
  return parts


SLOW = {(2, 4): ("plain",), (4, 2): ()}  # the others: on request


@pytest.mark.parametrize("count, devices, kind", [
    pytest.param(*place, kind,
                 marks=pytest.mark.slow if kind in SLOW[place] else pytest.mark.processes)
    for place in SLOW for kind in small_runs.KINDS])
def test_processes_compute_what_one_computes(kind, count, devices, alone, files, tmp_path):
  group.train(count, devices, tmp_path, kind, *overrides(kind, files)).succeed()
  run = read_run(tmp_path)
  assert run.rollout_iterations() == list(range(1, small_runs.ITERATIONS + 1))
  assert len(list((tmp_path / "rollouts").glob("*.jsonl"))) == count * small_runs.ITERATIONS
  assert differences(run, alone(kind)) == []
  assert np.ptp(losses(run)[0]) > 100 * LIMIT, "the losses hardly differ from each other"


@pytest.mark.slow
def test_a_row_that_two_processes_have_is_told(alone):
  """A wrong division: the second process has the rows of the first."""
  run = alone("plain")
  wrong = RunFolder(run.workdir, run.config, run.environment, run.metrics)
  rows = run.rollouts(1)
  half = rows[:len(rows) // 2]
  object.__setattr__(wrong, "rollouts", lambda iteration: half + half)
  assert "row ids of iteration 1" in differences(wrong, run)
  shifted = json.loads(json.dumps(run.metrics))
  shifted[1]["loss/total"] += 2 * LIMIT
  assert differences(RunFolder(run.workdir, run.config, run.environment, shifted), run) == [
      "losses"]


# --- rows of one server, which the first process asks


class Dealing(ServerSampler):
  """A sampler whose rows are their own prompts."""

  def __init__(self):
    pass

  def _sample(self, params, rows, row_ids, noise, sampling):
    return list(zip(rows, row_ids, strict=True)), {"server/failed_groups": 3.0}


def share(begin: int, size: int = 4):
  ids = np.arange(begin, begin + size)
  return [np.array([row, row]) for row in ids], ids


def wrongly(dealt, index: int):
  """A wrong share: every process has the rows of the first."""
  return dealt[0][0]


def test_each_process_has_its_rows():
  shares = [share(0), share(4), share(8)]
  dealt = Dealing()._dealt(None, shares, [1], None)
  for index, (prompts, ids) in enumerate(shares):
    right = lambda rows, ids=ids: [int(row) for _, row in rows] == ids.tolist()
    assert right(dealt[index][0]) and len(dealt[index][0]) == len(prompts)
    assert index == 0 or not right(wrongly(dealt, index))
  assert [metrics["server/failed_groups"] for _, metrics in dealt] == [3.0, 0.0, 0.0]


@pytest.mark.processes
def test_two_processes_train_on_what_one_would(tmp_path):
  with Server() as server:
    for count, devices in ((1, 8), (2, 4)):
      group.train(count, devices, tmp_path / str(count), "plain", f"server.url={server.url}",
                  f"server.folder={tmp_path / 'weights'}").succeed()
  one, two = (read_run(tmp_path / str(count)) for count in (1, 2))
  assert differences(two, one) == []
  assert two.rollout_iterations() == list(range(1, small_runs.ITERATIONS + 1))
  assert max(line["mismatch/absolute"] for line in two.metrics[1:]) < 1e-5
