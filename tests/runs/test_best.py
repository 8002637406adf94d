"""The best parameters so far: which they are, what stays on disk, and when a run ends early."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.commands import saved
from jaxrl_llm.config import CheckpointConfig, Config, ConfigError, from_dict
from jaxrl_llm.runs.best import Best
from jaxrl_llm.runs.verdicts import Verdicts
from jaxrl_llm.store import checkpoints
from jaxrl_llm.store.checkpoints import BEST, iterations, restore_part
from jaxrl_llm.types import Reward
from jaxrl_llm.wiring import setup


def config(best="eval/accuracy", patience=0) -> Config:
  return from_dict({"checkpoint": {"best": best}, "evaluation": {"patience": patience}})


def configured(**keys) -> tuple[str, int]:
  cfg = config(**keys)
  return cfg.checkpoint, cfg.evaluation.patience


def run(kept: Best, values, *, name="eval/accuracy", every=2, begin=1, end=None):
  """Evaluates after each iteration, with a checkpoint every so often; returns the last one.

  Args:
    end: the run is killed after this iteration; None: it ends, and its last checkpoint is complete.
  """
  for iteration in range(begin, (end or len(values)) + 1):
    kept.update(iteration, {name: values[iteration - 1]}, {"x": jnp.float32(iteration)})
    if kept.stop or iteration % every == 0:
      kept.prune()
    if kept.stop:
      break
  if end is None:
    kept.prune()
  return iteration


def lines(values, name="eval/accuracy"):
  return [{"iteration": i, name: value} for i, value in enumerate(values, 1)]


def test_strictly_better_parameters_replace_the_best(tmp_path):
  kept = Best(*configured(), tmp_path)
  run(kept, [0.2, 0.5, 0.5, float("nan"), 0.4, 0.3])
  assert kept.iteration == 2 and iterations(tmp_path, BEST) == [2]
  tree = restore_part(tmp_path / BEST / "2", {"train": {"params": {"x": like()}}}, "none")
  assert float(tree["train"]["params"]["x"]) == 2


def like():
  return jax.ShapeDtypeStruct((), np.float32,
                              sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))


def test_a_minus_says_that_less_is_better_and_none_keeps_nothing(tmp_path):
  values = [9.0, 7.0, 8.0, 9.0]
  shortest = Best(*configured(best="-eval/length"), tmp_path / "a")
  run(shortest, values, name="eval/length")
  assert shortest.iteration == 2
  off = Best(*configured(best="none"), tmp_path / "b")
  run(off, values)
  assert not (tmp_path / "b").exists() and not off.stop


def folder_only(path, params):
  del params
  path.mkdir(parents=True, exist_ok=True)


@pytest.mark.parametrize("unfinished", [0, 1])
@pytest.mark.parametrize("values", [[0.2, 0.6, 0.4, 0.8, 0.7, 0.7], [0.1, 0.2, 0.3, 0.3, 0.3, 0.3],
                                    [0.2, 0.6, 0.7, 0.8, 0.9, 0.1]])
def test_a_run_killed_anywhere_ends_with_the_same_best(values, unfinished, tmp_path, monkeypatch):
  """It goes on from the last checkpoint, or from the one before, if that was being written."""
  monkeypatch.setattr(checkpoints, "save_params", folder_only)
  reference = Best(*configured(patience=2), tmp_path / "whole")
  last = run(reference, values)
  expected = iterations(tmp_path / "whole", BEST)
  for at in range(1, last + 1):
    folder = tmp_path / str(at)
    run(Best(*configured(patience=2), folder), values, end=at)
    begun = [0, *(i for i in range(1, at + 1) if i % 2 == 0 or i == last)]
    checkpoint = begun[max(0, len(begun) - 1 - unfinished)]
    again = Best(*configured(patience=2), folder)
    again.resume(lines(values[:checkpoint]), checkpoint)
    assert all(number <= checkpoint for number in iterations(folder, BEST))
    stopped = again.stop
    assert stopped == (reference.stop and checkpoint == last)
    assert again.iteration is None or again.iteration in iterations(folder, BEST)
    if checkpoint != last:
      assert run(again, values, begin=checkpoint + 1) == last
    assert (again.iteration, iterations(folder, BEST)) == (reference.iteration, expected)


def test_a_best_without_a_record_would_end_otherwise(tmp_path):
  """What the test above rejects: going on with an empty record."""
  values = [0.2, 0.6, 0.4, 0.5]
  forgetful = Best(*configured(), tmp_path)
  run(forgetful, values, begin=3)
  assert forgetful.iteration == 4


def test_patience_ends_the_run_after_as_many_evaluations(tmp_path):
  values = [0.1, 0.3, 0.3, 0.2, 0.9]
  assert run(Best(*configured(patience=2), tmp_path / "a"), values) == 4
  assert run(Best(*configured(patience=3), tmp_path / "b"), values) == 5
  assert run(Best(*configured(), tmp_path / "c"), values) == 5


def test_a_metric_that_no_evaluation_logs_is_refused(tmp_path):
  with pytest.raises(ConfigError, match=r"eval/acc'.*eval/accuracy, .*eval/unscored\. Fix: one of"):
    setup.resolve(config("eval/acc"))
  with pytest.raises(ConfigError, match="eval/pass@4"):
    setup.resolve(config("eval/pass@4"))
  sampled = {"checkpoint": {"best": "eval/pass@4"}, "evaluation": {"samples": 4}}
  assert setup.resolve(from_dict(sampled)).checkpoint.best == "eval/pass@4"
  with pytest.raises(ConfigError, match=r"evaluation\.patience = 2.*checkpoint\.best"):
    setup.resolve(config("none", patience=2))


def dense(value: float) -> dict[str, float]:
  """An evaluation of a reward that does not say what is correct."""
  completions = [Reward(value, None), Reward(value / 2, None)]
  verdicts = Verdicts(np.array([value, value / 2]), np.ones(2, bool), np.ones(2, bool), [],
                      completions)
  assert not verdicts.graded
  return {"eval/reward": float(verdicts.rewards.mean())}


def test_without_accuracies_the_mean_reward_is_the_best(tmp_path, monkeypatch):
  """Also if nothing was scored at the start, where 0 is the accuracy, above all such rewards."""
  monkeypatch.setattr(checkpoints, "save_params", folder_only)
  history = [{"eval/accuracy": 0.0, "eval/unscored": 1.0}, dense(-3.0), dense(-1.0), dense(-2.0)]
  for begin, name in ((0, "eval/accuracy"), (1, "eval/accuracy"), (1, "eval/avg@4")):
    best = Best(CheckpointConfig(best=name), 1, tmp_path / f"{begin}{name[-2:]}")
    for iteration, metrics in enumerate(history[begin:], begin):
      assert not best.stop
      best.update(iteration, metrics, {})
    assert best.iteration == 2 and best.stop
    again = Best(CheckpointConfig(best=name), 1, tmp_path / "again")
    again.resume([{"iteration": i, **line} for i, line in enumerate(history)][begin:], 3)
    assert again.iteration == 2 and again.stop


def test_positive_rewards_as_accuracies_would_keep_the_first(tmp_path, monkeypatch):
  """What the test above rejects."""
  monkeypatch.setattr(checkpoints, "save_params", folder_only)
  best = Best(CheckpointConfig(), 1, tmp_path)
  for iteration, value in enumerate((0.1, 0.9)):
    best.update(iteration, dense(value) | {"eval/accuracy": float(value > 0)}, {})
  assert best.iteration == 0 and best.stop


def test_best_is_chosen_by_name(tmp_path):
  for folder in ("checkpoints/4", "checkpoints/6", "best/3"):
    (tmp_path / folder).mkdir(parents=True)
  assert saved.choose(tmp_path, "best") == 3 and saved.choose(tmp_path) == 6
  assert saved.choose(tmp_path, "3") == 3
  with pytest.raises(ConfigError, match=r"4, 6, and of the best evaluation, 3\. Fix: .*or best"):
    saved.choose(tmp_path, "5")
  (tmp_path / "best" / "3").rmdir()
  with pytest.raises(ConfigError, match=r"none of a best evaluation\. Fix: one of them, or latest"):
    saved.choose(tmp_path, "best")
