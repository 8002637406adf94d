"""The benchmark of one device: its counts, its time limit, and what it does without memory."""

import dataclasses
import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import experiment_files
import jax
import numpy as np
import pytest

from experiments.planning import device_benchmark, device_cases, ring_reference, targets
from jaxrl_llm.config import ModelConfig
from jaxrl_llm.models import Model, kv_cache

ROOT = Path(__file__).parents[3]
COMMAND = ROOT / "experiments" / "bench" / "device.py"
SMALL = ModelConfig(vocab_size=64, width=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8,
                    mlp_width=48, compute_dtype="bfloat16")


@pytest.fixture(scope="module")
def command():
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.95")  # which it sets, for itself alone
    return experiment_files.load(COMMAND)


def counted_flops(config: ModelConfig, rows: int, length: int, *, head_times=1, passes=3):
  """Counts from the parameters themselves, token by token."""
  blocks = Model(config).shapes()["blocks"]
  matrices = sum(x.size for x in jax.tree.leaves(blocks) if x.ndim > 1)
  seen = sum(range(1, length + 1))
  attention = 4 * config.num_layers * config.num_heads * config.head_dim * seen
  head = head_times * config.width * config.vocab_size * (length - length // 8)
  return passes * rows * (2 * matrices * length + attention + 2 * head)


def test_flops_of_a_train_step_are_those_of_its_parameters():
  count = device_benchmark.train_flops(SMALL, 3, 16)
  assert count == counted_flops(SMALL, 3, 16)
  # The check rejects a forgotten head and a recomputation that is counted.
  assert count != counted_flops(SMALL, 3, 16, head_times=0)
  assert count != counted_flops(SMALL, 3, 16, passes=4)


def test_decoding_reads_the_weights_and_the_live_columns():
  rows, filled, steps = 3, 5, 4

  def empty(columns):
    cache = jax.eval_shape(lambda: kv_cache.empty(SMALL, rows, columns))
    return sum(x.size * x.dtype.itemsize for x in (*cache.keys, *cache.values))

  expected = sum(1000 + empty(filled + 1 + step) for step in range(steps))
  traffic = device_benchmark.decode_bytes(SMALL, 1000, rows, filled, steps)
  assert traffic == expected
  assert traffic < steps * (1000 + empty(filled + steps))  # what counting whole caches would give


@pytest.mark.parametrize("tied", [True, False])
def test_an_embedding_that_is_no_head_is_not_read_whole(tied):
  config = ModelConfig(vocab_size=64, width=32, num_layers=1, tie_head=tied)
  params = Model(config).shapes()
  every = sum(x.size * 4 for x in jax.tree.leaves(params))
  size = device_benchmark._read_weights(params, config)
  assert size == every - (0 if tied else 64 * 32 * 4)


def test_the_gap_reads_sampled_tokens_alone():
  sampler = np.array([[0.0, -1.0, -2.0]], np.float32)
  trainer = np.array([[9.0, -1.5, -1.9]], np.float32)
  gap = device_benchmark.gap_numbers(trainer, sampler, np.array([[False, True, True]]))
  k3 = (math.exp(-0.5) - 1 + 0.5 + math.exp(0.1) - 1 - 0.1) / 2
  assert gap == pytest.approx({"mean": 0.3, "max": 0.5, "k3": k3}, rel=1e-5)


@pytest.mark.parametrize("kind, name", [
    ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H200", "h200"), ("TPU v5 lite", "v5e"),
    ("TPU v5p", "v5p"), ("cpu", None), ("NVIDIA H100 PCIe", None), ("NVIDIA GH200 480GB", None)])
def test_peaks_by_device(kind, name):
  assert targets.chip_of(kind) == targets.CHIPS.get(name)


def test_cases_without_time_are_listed(command):
  ran, clock = [], itertools.count(0, 10)  # each look at the clock takes 10 s

  def measure(rows):
    ran.append(rows)
    return {"seconds": 1.0}

  cases = [device_cases.Case(name, "train", 4, measure) for name in "abc"]
  entries = list(device_cases.run_cases(cases, 35, lambda: next(clock)))
  assert [row["status"] for row in entries] == ["measured", "skipped", "skipped"]
  assert ran == [4]  # of b, which would take as long as a did, nothing ran
  text = command.report({"jax": "0", "device": "cpu", "backend": "cpu", "peaks": None, "seconds": 1,
                         "cases": entries})
  assert text.count("skipped") == 2 and "no time left of 35 s" in text


@pytest.mark.slow
def test_a_case_that_does_not_fit_is_tried_with_fewer_rows(monkeypatch, command):
  held = 1

  def train(model, length, sizes, chip, rows):
    if rows > held:
      raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.")
    return {"seconds": 1.0}

  def wrong(*_):
    raise ValueError("no such kernel\nand more")

  monkeypatch.setattr(device_benchmark, "train", train)
  monkeypatch.setattr(device_benchmark, "decode", wrong)
  monkeypatch.setattr(device_benchmark, "gap", wrong)
  sizes = device_benchmark.Sizes(lengths=(4096,), step_tokens=8192, kernels=(),
                                 kinds=("windowed",))
  _, *cases = device_benchmark.cases({"x": SMALL}, sizes, None)
  fitted, failed, _, last = device_cases.run_cases(cases, 60)
  assert (fitted["status"], fitted["rows"], fitted["did_not_fit"]) == ("measured", 1, [2])
  assert (failed["status"], failed["note"]) == ("failed", "ValueError: no such kernel")
  assert last["case"] == "decode x 8192 windowed"  # the others ran
  held = 0
  (row,) = device_cases.run_cases(cases[:1], 60)
  assert (row["status"], row["did_not_fit"]) == ("did not fit", [2, 1])
  assert "too many rows: 2, 1" in " ".join(command._cells(row))


@pytest.mark.slow
def test_planned_seconds_stand_beside_measured_ones():
  """With peaks of a made-up device; ten times the peaks take a tenth."""
  model = Model(dataclasses.replace(SMALL, compute_dtype="float32"))
  sizes = device_benchmark.Sizes(chunk=4, repeats=1)

  def planned(peak):
    chip = targets.Chip("cpu", peak, 1e9, peak, 1e9, 1e9, "a made-up device")
    return device_benchmark.decode((model, "windowed"), 16, sizes, chip, 4)["planned_seconds"]

  assert planned(1e9) == pytest.approx(10 * planned(1e10)) and planned(1e9) > 4 * 4 * 1e-6


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


def test_a_kernel_that_differs_fails_its_case(monkeypatch):
  monkeypatch.setattr(device_benchmark.live_comparison, "difference", lambda *_: 0.1)
  sizes = device_benchmark.Sizes(kernels=((8, 8, 16),), blocks=(16,))
  (row,) = device_cases.run_cases(device_benchmark.cases({}, sizes, None)[:1], 60)
  assert row["status"] == "failed" and "differs from the reference by 0.1" in row["note"]


def test_timing_counts_neither_the_first_call_nor_slow_ones():
  calls = []
  times = device_cases.timed(lambda: calls.append(0), 5)
  assert len(calls) == 6 and len(times["all_seconds"]) == 5
  assert times["seconds"] == sorted(times["all_seconds"])[2]


@pytest.mark.nightly
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
