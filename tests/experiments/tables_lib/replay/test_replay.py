"""Replay of a real, tiny run: its gradients, clip shares and curves against direct computations."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jax.flatten_util import ravel_pytree

from experiments.commands import saved
from experiments.report.run_folder import read_run
from experiments.tables_lib.replay import frozen, replay, replay_report, replay_run
from jaxrl_llm.config import EstimatorConfig, StepConfig, VocabularyConfig, from_dict
from jaxrl_llm.objective import estimators
from jaxrl_llm.objective.loss import policy_loss, policy_stats
from jaxrl_llm.reporting.reader import RunError
from jaxrl_llm.runs import trainer
from jaxrl_llm.training.score import Scores
from jaxrl_llm.training.train_step import gradients
from jaxrl_llm.wiring import setup

# Of most families; the report's test has every estimator.
NAMES = ("ctpo", "dppo_tv", "gspo", "m2po", "minpro", "ppo", "reinforce", "seq_is")


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
  """A run on the first of the devices."""
  config, folder = tiny.get_config("grpo"), tmp_path_factory.mktemp("runs") / "tiny"
  config.iterations, config.optimizer.learning_rate, config.mesh.data = 4, 5e-3, 1
  first = jax.devices()[:1]
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(jax, "devices", lambda *_: first)
    trainer.run(from_dict(config), folder)
  return folder


@pytest.fixture(scope="module")
def setting(workdir):
  """(parts, frozen rows of iteration 3, parameters after iteration 4, their replay)."""
  run = read_run(workdir)
  cfg, task, learner, _ = setup.build(setup.resolve(from_dict(run.config)), jax.devices()[:1])
  parts = types.SimpleNamespace(cfg=cfg, task=task, model=learner.model)
  rows = frozen.load(run, 3, cfg.rollout, 0)
  at, params = saved.restore_trained(cfg, learner, workdir)
  assert at == 4
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(estimators, "names", lambda: list(NAMES))
    result = replay.replay(rows, params, Scores(), model=parts.model, cfg=cfg.batch,
                           step=StepConfig(cfg.loss, 4))
  return parts, rows, params, result


def entry(result, name):
  return next(e for e in result.estimators if e.name == name)


def loss_gradient(name, parts, params, batch, rows, loss) -> np.ndarray:
  """The gradient of the estimator's own `policy_loss`, flat."""
  anchor = rows.rollout.behavior_log_probs if name == "minpro" else rows.anchor_log_probs
  cfg = StepConfig(dataclasses.replace(loss, estimator=EstimatorConfig(name)))
  compute = functools.partial(gradients, loss=policy_loss, model=parts.model, cfg=cfg)
  _, tree = jax.jit(compute)(params, batch.replace(anchor_log_probs=jnp.asarray(anchor)))
  return np.asarray(ravel_pytree(tree)[0])


@pytest.mark.slow
def test_the_policies_differ(setting):
  *_, result = setting
  assert [e.name for e in result.estimators] == list(NAMES)
  assert all(np.isfinite(e.gradient).all() for e in result.estimators)
  # its window is a few ten-thousandths
  assert {e.name for e in result.estimators if e.norm == 0} <= {"gspo"}
  np.testing.assert_allclose([x for x in np.diag(result.cosine) if np.isfinite(x)], 1.0, rtol=1e-6)
  assert np.nanmin(result.cosine) < 0.999
  assert entry(result, "reinforce").effective_share == pytest.approx(1.0, abs=1e-5)
  assert entry(result, "seq_is").effective_share < 0.99


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ctpo", "minpro"])
def test_gradient_through_coefficients_is_that_of_the_loss(setting, name):
  parts, rows, params, result = setting
  batch = replay._batch(rows, Scores(), parts.cfg.batch)
  flat = loss_gradient(name, parts, params, batch, rows, parts.cfg.loss)
  np.testing.assert_allclose(entry(result, name).gradient, flat, rtol=1e-4, atol=1e-6)
  other = entry(result, "reinforce").gradient
  assert not np.allclose(other, flat, rtol=1e-4, atol=1e-6), "another estimator would pass too"


@pytest.mark.nightly
def test_tokens_outside_the_vocabulary_are_skipped_as_in_the_loss(setting, monkeypatch):
  """The rows were sampled without a rule; the replay prunes and forbids early stops."""
  parts, rows, params, _ = setting
  cfg = dataclasses.replace(parts.cfg, vocabulary=VocabularyConfig(top_p=0.8),
                            rollout=dataclasses.replace(parts.cfg.rollout, min_new_tokens=3))
  loss = dataclasses.replace(cfg.loss, stop_ids=parts.task.stop_ids)
  # Ratios of earlier tokens count in both, and neither clips all of the gradient away.
  monkeypatch.setattr(estimators, "names", lambda: ["seq_is", "minpro"])
  again = functools.partial(replay.replay, rows, params, Scores(), model=parts.model,
                            cfg=cfg.batch, step=StepConfig(loss, 4))
  result, batch = again(), replay._batch(rows, Scores(), cfg.batch)
  stats = jax.jit(functools.partial(policy_stats, model=parts.model, cfg=loss))(params, batch)
  inside, mask = stats.in_support, np.asarray(rows.rollout.mask)
  assert 0.02 < np.mean(~np.asarray(inside)[mask]) < 0.5
  assert result.count.sum() == (mask & np.asarray(inside)).sum()
  monkeypatch.setattr(replay, "_inside", lambda batch, stats: batch)
  wrong = again()
  for name in estimators.names():
    flat = loss_gradient(name, parts, params, batch, rows, loss)
    np.testing.assert_allclose(entry(result, name).gradient, flat, rtol=1e-4, atol=1e-6)
    other = entry(wrong, name).gradient
    assert not np.allclose(other, flat, rtol=1e-4, atol=1e-6), "all tokens would pass too"


@pytest.mark.slow
def test_drift_by_position_equals_a_loop(setting):
  parts, rows, params, result = setting
  batch = replay._batch(rows, Scores(), parts.cfg.batch)
  log_probs = np.asarray(
      policy_stats(params, batch, model=parts.model, cfg=parts.cfg.loss).log_probs)
  behavior, mask = np.asarray(rows.rollout.behavior_log_probs), np.asarray(rows.rollout.mask)
  at = {}
  for b in range(len(mask)):
    total = 0.0
    for k, t in enumerate(np.flatnonzero(mask[b]), 1):
      total += float(log_probs[b, t]) - float(behavior[b, t])
      at.setdefault(k, []).append(total)
  assert result.count.sum() == mask.sum()
  np.testing.assert_allclose(result.position, sorted(at))  # few positions: one bucket each
  np.testing.assert_allclose(result.mean, [np.mean(at[k]) for k in sorted(at)], rtol=1e-3,
                             atol=1e-5)
  np.testing.assert_allclose(result.std, [np.std(at[k]) for k in sorted(at)], rtol=1e-3, atol=1e-4)
  assert result.std.max() > 1e-3


@pytest.mark.nightly
def test_report_has_every_estimator_and_no_link_out(workdir):
  text = replay_run.run(workdir)
  page = (workdir / "replay.html").read_text()
  assert (workdir / "replay.md").read_text() == text
  assert "rollouts of iteration 3" in text and "policy of iteration 4" in text
  for name in estimators.names():
    assert f"| {name} " in text and f"<td>{name}</td>" in page
  assert f"{replay_report.family('gspo')}</th>" in page and 'class="heatmap"' in page
  assert all(column in text for column in replay_report.HEADER)
  assert "data:image/png" in page and "http" not in page.replace("http-equiv", "")


@pytest.mark.slow
def test_what_cannot_be_replayed(workdir):
  refused = {
      (9, None): "--iteration=9: the run keeps rollouts of iterations 1 to 4",
      (3, 2): "--checkpoint=2 is older than the rollouts of --iteration=3",
  }
  for arguments, message in refused.items():
    with pytest.raises(RunError, match=message):
      replay_run.run(workdir, *arguments)
  with pytest.raises(RunError, match=r"config\.json"):
    replay_run.run(workdir / "none")
