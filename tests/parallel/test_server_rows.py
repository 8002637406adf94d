"""Two processes train on the rows of one server: the first asks, and each has its share."""

import numpy as np
import process_group as group
import pytest
import small_runs
from server_process import Server
from test_runs import differences

from experiments.report.run_folder import read_run
from jaxrl_llm.rollouts.server import ServerSampler


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


@pytest.mark.slow
def test_two_processes_train_on_what_one_would(tmp_path):
  with Server() as server:
    for count, devices in ((1, 8), (2, 4)):
      group.train(count, devices, tmp_path / str(count), "plain", f"server.url={server.url}",
                  f"server.folder={tmp_path / 'weights'}").succeed()
  one, two = (read_run(tmp_path / str(count)) for count in (1, 2))
  assert differences(two, one) == []
  assert two.rollout_iterations() == list(range(1, small_runs.ITERATIONS + 1))
  assert max(line["mismatch/absolute"] for line in two.metrics[1:]) < 1e-5
