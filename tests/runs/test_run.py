"""A run's folder holds everything that the run was, and each program was compiled once."""

import collections
import json
import math
import platform

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
def run(tmp_path_factory):
  """Folder of a complete run; what it compiled is in `compiled.jsonl` beside it."""
  workdir = tmp_path_factory.mktemp("runs") / "whole"
  command.succeed(command.start(workdir, compile_log=workdir.with_name("compiled.jsonl"),
                                interpreter=True))
  return workdir


def lines_of(path) -> list[dict]:
  return [json.loads(line) for line in path.read_text().splitlines()]


# --- the folder


def test_the_config_the_environment_and_two_checkpoints_are_there(run):
  expected = setup.resolve(from_dict(tiny.get_config()))
  assert from_dict(json.loads((run / "config.json").read_text())) == expected
  environment = json.loads((run / "environment.json").read_text())
  assert environment["packages"]["jax"] == jax.__version__
  assert environment["backend"] == "cpu" and len(environment["devices"]) == 1
  assert {"python", "git_commit"} <= environment.keys() and environment["processor"]
  assert command.checkpoint_iterations(run) == [4, 6]


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
  for path, line in zip(files, command.metrics_lines(run)[1:], strict=True):
    rows = read_rollouts(str(path))
    assert len(rows) == 16 * 4
    assert line["reward/mean"] == pytest.approx(np.mean([row["reward"] for row in rows]))
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


def test_plot_and_report_are_written(run):
  assert (run / "curves.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
  report = (run / "report.html").read_text()
  assert report.rstrip().endswith("</html>") and "ctpo" in report


def test_warm_start_that_diverges_leaves_nothing_to_go_on_from(tmp_path):
  assert "error: warm start" in command.refuse(
      command.start(tmp_path, "warm_start.learning_rate=1e30"))
  assert not (tmp_path / "warm_start").exists()
  assert not (tmp_path / "checkpoints").exists()


# --- compilation


def test_each_program_is_compiled_once(run):
  """Twice only where there are two: supervised and policy updates, rollouts and held-out problems.
  """
  compiled = lines_of(run.with_name("compiled.jsonl"))
  programs = collections.Counter(line["program"] for line in compiled)
  expected = {"train_step": 2, "generate": 2, "score": 2, "optimizer_batches": 1,
              "merge_metrics": 1}
  assert {name: programs[f"jit({name})"] for name in expected} == expected
  # What the report compiles comes after the last rollouts are written.
  written = [path.stat().st_mtime for path in command.rollout_files(run)]
  late = [line for line in compiled if written[1] < line["time"] < written[-1]]
  assert late == [], "compiled after the second iteration"


# --- runs that cannot go on keep the iterations that they finished


REDRAWN = ("dynamic_sampling.enabled=True", "evaluation.every=100")


def test_finished_iterations_are_written_and_saved(tmp_path):
  """Nothing is due after iteration 3, whose line is pending when iteration 4 finds no group."""
  error = command.refuse(command.start(
      tmp_path, *REDRAWN, "dynamic_sampling.max_draws=2", "checkpoint.every=100",
      "reward.name=drying", "plugins=tests/runs/drying_reward.py"))
  assert "0 of 32 groups in 2 draws" in error
  assert [line["iteration"] for line in command.metrics_lines(tmp_path)] == [0, 1, 2, 3]
  assert command.checkpoint_iterations(tmp_path)[-1] == 3


def test_an_update_that_is_not_finite_is_told_before_what_follows_from_it(tmp_path):
  """A policy of NaN answers nothing right, so that its groups dry up; and it is not saved."""
  error = command.refuse(command.start(tmp_path, *REDRAWN, "dynamic_sampling.max_draws=100",
                                       "checkpoint.every=1", "optimizer.learning_rate=1e30"))
  assert "iteration 1, optimizer step 2: loss = " in error and "gradient norm = nan" in error
  assert "checkpoint is that of iteration 0." in error
  lines = command.metrics_lines(tmp_path)
  assert [line["iteration"] for line in lines] == [0, 1]
  assert lines[1]["optimizer/grad_norm"] == "nan"
  assert command.checkpoint_iterations(tmp_path) == [0]
  _, state = command.last_state(tmp_path)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
