"""The benchmark of one device: its counts, and an engine that samples other rows."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments.planning import device_benchmark, device_cases, ring_reference
from jaxrl_llm.config import ModelConfig
from jaxrl_llm.models import Model, kv_cache

ROOT = Path(__file__).parents[3]
COMMAND = ROOT / "experiments" / "bench" / "device.py"
SMALL = ModelConfig(vocab_size=64, width=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8,
                    mlp_width=48, compute_dtype="bfloat16")


def counted_flops(config: ModelConfig, rows: int, length: int, *, head_times=1, passes=3):
  """Counts from the parameters themselves, token by token."""
  blocks = Model(config).shapes()["blocks"]
  matrices = sum(x.size for x in jax.tree.leaves(blocks) if x.ndim > 1)
  seen = sum(range(1, length + 1))
  attention = 4 * config.num_layers * config.num_heads * config.head_dim * seen
  head = head_times * config.width * config.vocab_size * (length - length // 8)
  return passes * rows * (2 * matrices * length + attention + 2 * head)


def test_flops_of_a_train_step_are_those_of_its_parameters():
  found = device_benchmark.train_flops(SMALL, 3, 16)
  assert found == counted_flops(SMALL, 3, 16)
  # The check rejects a forgotten head and a recomputation that is counted.
  assert found != counted_flops(SMALL, 3, 16, head_times=0)
  assert found != counted_flops(SMALL, 3, 16, passes=4)


def test_decoding_reads_the_weights_and_the_live_columns():
  rows, filled, steps = 3, 5, 4

  def empty(columns):
    cache = jax.eval_shape(lambda: kv_cache.empty(SMALL, rows, columns))
    return sum(x.size * x.dtype.itemsize for x in (*cache.keys, *cache.values))

  expected = sum(1000 + empty(filled + 1 + step) for step in range(steps))
  found = device_benchmark.decode_bytes(SMALL, 1000, rows, filled, steps)
  assert found == expected
  assert found < steps * (1000 + empty(filled + steps))  # what counting whole caches would give


def test_an_engine_that_samples_other_rows_fails_its_case(monkeypatch):
  """The record itself passes; with each row's tokens one column late, or rows in another order."""
  record = json.loads(ring_reference.RECORD.read_text())
  real = np.asarray(record["tokens"]), np.asarray(record["log_probs"], np.float32)
  cases = device_benchmark.cases({}, device_benchmark.Sizes(kernels=(), kinds=("windowed",)), None)
  for change, status in ((np.asarray, "measured"), (lambda x: np.roll(x, 1, 1), "failed"),
                         (lambda x: np.roll(x, 1, 0), "failed")):
    monkeypatch.setattr(ring_reference, "sample", lambda change=change, **_: tuple(
        change(x) for x in real))
    (row,) = device_cases.run_cases(cases, 60)
    assert row["status"] == status


@pytest.mark.slow
def test_the_tiny_command_runs_every_part(tmp_path):
  path = tmp_path / "out.json"
  done = subprocess.run([sys.executable, str(COMMAND), "--tiny", f"--json={path}"], text=True,
                        capture_output=True, check=True, cwd=ROOT)
  assert "no figure here is a measurement" in done.stdout
  (single, half, *engines, train, decode, window,
   gap) = rows = json.loads(path.read_text())["cases"]
  assert [row["status"] for row in rows] == ["measured"] * 8
  for row in engines:
    assert row["equal_rows"] == row["rows"] == 24 and row["log_prob_difference"] < 1e-5
  assert 0 < single["difference"] < 1e-5 < half["difference"] and single["interpreted"]
  assert (decode["attention"], window["attention"]) == ("kernel", "windowed")
  for row in (train, decode, window):
    assert row["seconds"] > 0 and len(row["all_seconds"]) == 2
    assert row["tokens_per_second"] * row["seconds"] == pytest.approx(row["tokens"])
  assert (train["tokens"], train["mfu"]) == (2 * 16, None)
  assert (decode["tokens"], decode["bandwidth_share"]) == (4 * 4, None)
  assert gap["tokens"] == 4 * 8
  for dtype in ("bfloat16", "float32"):
    mean, largest = gap[dtype]["mean"], gap[dtype]["max"]
    assert 0 < mean <= largest < 0.1 and 0 < gap[dtype]["k3"] < 0.01
