"""A run with the head that predicts two tokens ahead: what it refuses, and what it scores."""

import jax
import pytest
import tiny

from jaxrl_llm import parallel
from jaxrl_llm.config import ConfigError, from_dict
from jaxrl_llm.models import Model
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


@pytest.mark.parametrize(("name", "sections", "message"), [
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
def test_what_does_not_fit_is_refused(name, sections, message):
  with pytest.raises(ConfigError, match=message):
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
