"""A run's folder holds everything that the run was, and each program was compiled once."""

import collections
import json
import math
import platform
import re

import command
import jax
import numpy as np
import pytest
import tiny
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoTokenizer

from experiments.report.rollout_rows import read_rollouts
from jaxrl_llm.config import from_dict
from jaxrl_llm.store import workdir
from jaxrl_llm.wiring import setup

pytestmark = pytest.mark.slow

EVERY_ITERATION = ("reward/mean", "policy/entropy", "optimizer/grad_norm", "log_ratio/p50",
                   "clip/dropped", "kl/current_anchor", "kl/anchor_behavior", "kl/current_behavior",
                   "loss/total", "time/iteration")
ITERATIONS = range(1, tiny.ITERATIONS + 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def compile_log(folder):
  return folder / "compiled.jsonl"


@pytest.fixture(scope="module")
def run(folder, compile_log):
  """Folder of a complete run."""
  command.succeed(command.start(folder / "whole", compile_log=compile_log,
                                interpreter=True))
  return folder / "whole"


@pytest.fixture(scope="module")
def later(run, folder):
  """Commands after the complete run: the same one again, and two that meet a loss that is not
  finite.
  """
  metrics = (run / "metrics.jsonl").read_bytes()
  again = command.start(run)
  diverged = command.start(folder / "diverged", "plugins=tests/runs/failing_estimator.py",
                           "estimator.name=failing", "updates.optimizer_batches=4")
  again_result = command.finish(again)
  start_diverged = command.start(folder / "start_diverged", "warm_start.learning_rate=1e30")
  return {"again": again_result, "metrics": metrics, "diverged": command.finish(diverged),
          "start_diverged": command.finish(start_diverged)}


def lines_of(path) -> list[dict]:
  return [json.loads(line) for line in path.read_text().splitlines()]


# --- the folder


def test_config_json_is_the_resolved_config(run):
  expected = setup.resolve(from_dict(tiny.get_config()))
  assert from_dict(json.loads((run / "config.json").read_text())) == expected


def test_environment_names_versions_devices_and_commit(run):
  environment = json.loads((run / "environment.json").read_text())
  assert environment["packages"]["jax"] == jax.__version__
  assert environment["backend"] == "cpu" and len(environment["devices"]) == 1
  assert {"python", "git_commit"} <= environment.keys() and environment["processor"]


def test_the_processor_is_its_model_and_widest_instructions(tmp_path):
  """A run rounds otherwise without the widest ones, even where the model has one name."""
  path = tmp_path / "cpuinfo"
  path.write_text("processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu avx avx2 fma\n")
  assert workdir._processor(path) == "AMD EPYC, avx2"
  path.write_text("processor\t: 0\nBogoMIPS\t: 48.00\n")  # an ARM
  assert workdir._processor(path) == platform.machine()
  absent = workdir._processor(tmp_path / "absent")  # not Linux
  assert absent == (platform.processor() or platform.machine())


def test_metrics_have_a_finite_line_per_iteration(run):
  first, *lines = command.metrics_lines(run)
  assert first["iteration"] == 0 and 0 <= first["eval/accuracy"] <= 1
  assert [line["iteration"] for line in lines] == list(ITERATIONS)
  for line in lines:
    assert set(EVERY_ITERATION) <= line.keys()
    assert all(
        isinstance(value, int | float) and math.isfinite(value) for value in line.values()), line
  assert [line["iteration"] for line in lines if "eval/accuracy" in line] == [3, 6]
  assert any(line["reward/mean"] > 0 for line in lines)


def test_metrics_tell_current_policy_anchor_and_behavior_apart(run):
  """The sampler's own log-probs are those of the scorer; the policy moves between optimizer steps.
  """
  for line in command.metrics_lines(run)[1:]:
    assert abs(line["kl/anchor_behavior"]) < 1e-6
    assert line["kl/current_anchor"] > 1e-4
    assert line["kl/current_behavior"] == pytest.approx(line["kl/current_anchor"], rel=1e-3)


def test_tensorboard_repeats_the_metrics(run):
  events = EventAccumulator(str(run / "tensorboard")).Reload()
  for name in EVERY_ITERATION:
    assert [event.step for event in events.Tensors(name)] == list(ITERATIONS)
    values = [np.asarray(event.tensor_proto.float_val).item() for event in events.Tensors(name)]
    np.testing.assert_allclose(values, [line[name] for line in command.metrics_lines(run)[1:]],
                               rtol=1e-6)


def test_rollouts_hold_both_log_probs_of_every_sampled_token(run):
  files = command.rollout_files(run)
  assert [path.name for path in files] == [f"iteration_{i:05d}.jsonl" for i in ITERATIONS]
  tokenizer = AutoTokenizer.from_pretrained(run / "tokenizer")
  seen = set()
  for path in files:
    rows = read_rollouts(str(path))
    assert len(rows) == 16 * 4
    seen |= {row["row_id"] for row in rows}
    for row in rows:
      per_token = [row[key] for key in ("tokens", "mask", "behavior_log_probs", "anchor_log_probs")]
      tokens, mask, behavior, anchor = map(np.asarray, per_token)
      assert len(tokens) == len(mask) == len(behavior) == len(anchor)
      assert mask.tolist() == [0] * row["prompt_length"] + [1] * (len(mask) - row["prompt_length"])
      sampled = mask == 1
      np.testing.assert_allclose(behavior[sampled], anchor[sampled], atol=1e-4)
      assert np.all(behavior[sampled] < 0) and np.all(behavior[~sampled] == 0)
      assert (tokens[-1] == tokenizer.eos_token_id) == (not row["truncated"])
      end = len(tokens) if row["truncated"] else -1
      assert tokenizer.decode(tokens[:end]) == row["prompt"] + row["completion"]
  assert len(seen) == 16 * 4 * tiny.ITERATIONS, "a row id came twice: two rows shared their noise"


def test_rewards_of_metrics_are_those_of_the_rollouts(run):
  for path, line in zip(command.rollout_files(run), command.metrics_lines(run)[1:], strict=True):
    assert line["reward/mean"] == pytest.approx(np.mean([row["reward"] for row in lines_of(path)]))


def test_the_last_two_checkpoints_are_kept(run):
  assert command.checkpoint_iterations(run) == [4, 6]


def test_plot_and_report_are_written(run):
  assert (run / "curves.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
  report = (run / "report.html").read_text()
  assert report.rstrip().endswith("</html>") and "ctpo" in report
  assert not re.search(r"""(src|href)=["'](?!data:|#)""",
                       report), "the report needs a file beside itself"


# --- started again, and stopped


def test_finished_run_started_again_changes_no_metrics(later, run):
  assert later["again"].returncode == 0, later["again"].stderr
  assert (run / "metrics.jsonl").read_bytes() == later["metrics"]


def test_loss_that_is_not_finite_stops_the_run_and_names_the_step(later, folder):
  """Step 10 is the second of iteration 3; checkpoints are those of even iterations."""
  result, workdir = later["diverged"], folder / "diverged"
  assert result.returncode not in (0, None) and "Traceback" not in result.stderr
  assert "error: iteration 3, optimizer step 10: loss = nan" in result.stderr
  assert "checkpoint is that of iteration 2." in result.stderr
  lines = command.metrics_lines(workdir)
  assert [line["iteration"] for line in lines] == [0, 1, 2, 3]
  assert lines[3]["loss/total"] == "nan" and math.isfinite(lines[2]["loss/total"])
  assert command.checkpoint_iterations(workdir)[-1] == 2


def test_last_good_checkpoint_is_finite(later, folder, monkeypatch):
  monkeypatch.chdir(command.ROOT)  # the run's config names its plugin from there
  iteration, state = command.last_state(folder / "diverged")
  assert iteration == 2 and state.step == 8
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))


def test_warm_start_that_diverges_leaves_nothing_to_go_on_from(later, folder):
  result, workdir = later["start_diverged"], folder / "start_diverged"
  assert result.returncode not in (0, None) and "Traceback" not in result.stderr
  assert "error: warm start" in result.stderr
  assert not (workdir / "warm_start").exists()
  assert not (workdir / "checkpoints").exists()


# --- compilation


def test_each_program_is_compiled_once(run, compile_log):
  """Twice only where there are two: supervised and policy updates, rollouts and held-out problems.
  """
  programs = collections.Counter(line["program"] for line in lines_of(compile_log))
  expected = {
      "train_step": 2,
      "generate": 2,
      "score": 2,
      "optimizer_batches": 1,
      "merge_metrics": 1
  }
  assert {name: programs[f"jit({name})"] for name in expected} == expected


def test_nothing_is_compiled_after_the_second_iteration(run, compile_log):
  """What the report compiles comes after the last rollouts are written."""
  written = [path.stat().st_mtime for path in command.rollout_files(run)]
  late = [line for line in lines_of(compile_log) if written[1] < line["time"] < written[-1]]
  assert late == []
