"""A run with the head that predicts two tokens ahead: what it refuses, what it scores, and that it
goes on from a checkpoint with the coefficient that it had.
"""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
import tiny

from jaxrl_llm import parallel
from jaxrl_llm.config import ConfigError, from_dict
from jaxrl_llm.models import Model
from jaxrl_llm.runs import run_state, trainer
from jaxrl_llm.types import CarryingState
from jaxrl_llm.wiring import scoring, setup


def config(name="occ", iterations=4, **sections):
  values = tiny.get_config("grpo")
  values.iterations = iterations
  values.term.name = name
  values.rollout.update(prompts=8, group_size=4)
  values.warm_start.steps = 20
  values.evaluation.every = 4
  for section, keys in sections.items():
    values[section].update(keys)
  return from_dict(values)


@pytest.mark.parametrize(("name", "sections", "said"), [
    ("occ", {"updates": {"optimizer_batches": 1}}, "updates.optimizer_batches of 2 or more"),
    ("occ", {"updates": {"anchor": "behavior"}}, "updates.anchor=recomputed"),
    ("mtp_policy", {"estimator": {"name": "m2po", "clip_low": None, "clip_high": None},
                "updates": {"anchor": "recomputed"}},
     "Fix: another estimator, or term.name=mtp_ce"),
    ("mtp_ce", {"updates": {"token_budget": 64, "shared_prompts": True}}, "shared_prompts=False"),
    ("mtp_detach", {"vocabulary": {"min_p": 0.1}}, "vocabulary.min_p set"),
    ("mtp_ce", {"transform": {"name": "pipo"}}, "Fix: transform.name=none"),
    ("none", {"warm_start": {"mtp_coef": 0.1}}, "warm_start.mtp_coef = 0.1"),
])
def test_what_does_not_fit_is_refused(name, sections, said):
  with pytest.raises(ConfigError, match=said):
    setup.resolve(config(name, **sections))


def scored_stats(cfg) -> frozenset[str]:
  """Statistics that the anchor's pass of a run finds."""
  cfg = setup.resolve(cfg)
  mesh = parallel.make_mesh(cfg.mesh, jax.devices()[:1])
  return scoring.make_scoring(cfg, Model(cfg.model), mesh, ()).stats


def test_the_head_s_anchor_is_scored_only_where_a_loss_reads_it():
  wanted = {name: "mtp_log_probs" in scored_stats(config(name))
            for name in ("none", "mtp_detach", "mtp_ce", "mtp_policy", "occ")}
  assert wanted == {"none": False, "mtp_detach": False, "mtp_ce": False, "mtp_policy": True,
                    "occ": True}
  alone = config("mtp_policy", updates={"optimizer_batches": 1})
  assert not scored_stats(alone), "the policy is its own anchor"


def lines(folder) -> list[dict]:
  return [{k: v for k, v in json.loads(line).items() if not k.startswith("time/")}
          for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """Folder of a run that nothing interrupted, with stale rollouts."""
  folder = tmp_path_factory.mktemp("mtp") / "whole"
  trainer.run(config(updates={"staleness": 1}), folder)
  return folder


def went_on(whole, folder):
  """The folder of a run that lost its newest checkpoint and the lines after the one before."""
  shutil.copytree(whole, folder)
  shutil.rmtree(folder / "checkpoints" / "4")
  kept = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)[:3]
  (folder / "metrics.jsonl").write_text("".join(kept))
  trainer.run(config(updates={"staleness": 1}), folder)
  return lines(folder)


@pytest.mark.nightly
def test_it_goes_on_with_the_coefficient_that_it_had(whole, tmp_path, monkeypatch):
  found = lines(whole)
  assert len({line.get("mtp/coefficient") for line in found}) > 3
  assert went_on(whole, tmp_path / "again") == found

  right = run_state.restored_state

  def forgetful(tree, start):
    state = right(tree, start)
    assert isinstance(state.state, CarryingState)
    empty = jax.device_put(np.float32(0), state.state.carried["occ"].sharding)
    return dataclasses.replace(state, state=state.state.replace(carried={"occ": empty}))

  monkeypatch.setattr(trainer, "restored_state", forgetful)
  assert went_on(whole, tmp_path / "forgetful") != found
