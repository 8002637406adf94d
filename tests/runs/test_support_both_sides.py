"""Sampler, scorer and loss speak of one distribution: their log-probs are equal, rule by rule."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_model import network, params_of, prompts
from suites import quick_of

from jaxrl_llm.config import EstimatorConfig, LossConfig, SamplerConfig, StepConfig
from jaxrl_llm.objective.loss import policy_loss, policy_stats, stop_rule
from jaxrl_llm.rollouts import engine, generate
from jaxrl_llm.rollouts.environment import Continue, Stop
from jaxrl_llm.training.score import score
from jaxrl_llm.types import STOP_TOKEN, Rollout, Sampling, TrainBatch

MODEL = network()
PARAMS = params_of(MODEL)
EOS, NEW, KEY, TEMPERATURE, TOLERANCE = 3, 10, jax.random.key(7), 1.3, 1e-5
RULES = {"none": {}, "top_k": {"top_k": 4}, "top_p": {"top_p": 0.8}, "min_p": {"min_p": 0.1},
         "all": {"top_k": 6, "top_p": 0.95, "min_p": 0.02}}
LEAST = 4  # min_new_tokens, where it is on


@functools.cache
def sampler(least):
  cfg = SamplerConfig(4, NEW, NEW, (EOS,), 0, least)
  return jax.jit(functools.partial(generate, model=MODEL, cfg=cfg))


@functools.cache
def sampled(how, rules, least) -> Rollout:
  sampling = Sampling.of(TEMPERATURE, **RULES[rules])
  if how == "generate":
    return jax.device_get(sampler(least)(PARAMS, prompts(), KEY, sampling))
  cfg = engine.EngineConfig(4, NEW, 2 * NEW, (EOS,), 0, least, slots=8, chunk=4, compact=0)
  return jax.device_get(engine.run(PARAMS, prompts(), KEY, sampling, model=MODEL, cfg=cfg)[0])


@functools.cache
def scorer(least):
  cfg = StepConfig(LossConfig(min_new_tokens=least, stop_ids=(EOS,)), 2)
  return jax.jit(functools.partial(score, model=MODEL, cfg=cfg, stats=frozenset({"in_support"})))


def loss_config(rules, least) -> LossConfig:
  return LossConfig(EstimatorConfig("reinforce"), temperature=TEMPERATURE, min_new_tokens=least,
                    stop_ids=(EOS,), pruning=tuple(RULES[rules].items()))


@functools.cache
def loss_stats(cfg: LossConfig):
  return jax.jit(functools.partial(policy_stats, model=MODEL, cfg=cfg))


def batch_of(rollout: Rollout) -> TrainBatch:
  ones = jnp.ones(rollout.mask.shape, jnp.float32)
  return TrainBatch(rollout, ones, jnp.asarray(rollout.mask, jnp.float32), None, ones)


def gap(log_probs, rollout) -> float:
  """Largest |log ratio| to the behavior over the policy's tokens."""
  return float(
      np.max(np.abs(np.where(rollout.mask,
                             np.asarray(log_probs) - rollout.behavior_log_probs, 0))))


CASES = {f"{how}-{rules}-{least}": (how, rules, least)
         for how in ("generate", "engine") for least in (0, LEAST) for rules in RULES}
# The engine samples what `generate` does under every rule: test_engine.py.
SLOW = {name for name in CASES if name.startswith("generate")} | {"engine-all-4", "engine-all-0"}


@pytest.mark.parametrize("how, rules, least", quick_of(
    {"generate-all-4", "engine-none-0"}, CASES, SLOW))
def test_sampler_scorer_and_loss_agree(how, rules, least):
  rollout = sampled(how, rules, least)
  scored = scorer(least)(PARAMS, rollout, Sampling.of(TEMPERATURE, **RULES[rules]))
  ours = loss_stats(loss_config(rules, least))(PARAMS, batch_of(rollout))
  assert gap(scored.log_probs, rollout) < TOLERANCE and gap(ours.log_probs, rollout) < TOLERANCE
  assert np.all(scored.in_support[rollout.mask])
  assert (ours.in_support is None) == (rules == "none" and
                                       not least), "a program without a rule pays for none"


WRONG = {
    "min_p alone": lambda cfg: dataclasses.replace(cfg, pruning=cfg.pruning[-1:]),
    "no least length": lambda cfg: dataclasses.replace(cfg, min_new_tokens=0),
    "a place too far": lambda cfg: dataclasses.replace(cfg, min_new_tokens=cfg.min_new_tokens + 1),
    "another temperature": lambda cfg: dataclasses.replace(cfg, temperature=1.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
def test_a_loss_with_another_distribution_is_told_apart(wrong):
  rollout = sampled("generate", "all", LEAST)
  ours = loss_stats(WRONG[wrong](loss_config("all", LEAST)))(PARAMS, batch_of(rollout))
  assert gap(ours.log_probs, rollout) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("how", ["generate", "engine"])
def test_no_row_ends_before_the_least_length(how):
  """And rows are those of the other sampler; without the rule some are shorter."""
  rollout, free = sampled(how, "none", LEAST), sampled(how, "none", 0)
  new = lambda r: r.length - r.prompt_length
  assert new(rollout).min() > LEAST > new(free).min() and new(rollout).min() < NEW
  np.testing.assert_array_equal(rollout.tokens, sampled("generate", "none", LEAST).tokens)


@pytest.mark.slow
def test_a_stop_token_where_it_is_banned_is_no_token_of_the_policy():
  """Early stops of rows without the rule are outside, counted, finite, without gradient."""
  rollout, cfg = sampled("generate", "none", 0), loss_config("none", LEAST)
  early = rollout.mask & (rollout.tokens == EOS) & np.asarray(stop_rule(rollout, cfg)[1])
  scored = scorer(LEAST)(PARAMS, rollout, Sampling.of(TEMPERATURE))
  np.testing.assert_array_equal(~scored.in_support & rollout.mask, early)
  assert early.any() and np.isfinite(scored.log_probs).all()
  run = jax.jit(
      jax.value_and_grad(functools.partial(policy_loss, model=MODEL, cfg=cfg), has_aux=True))
  (value, metrics), gradient = run(PARAMS, batch_of(rollout))
  assert float(metrics["vocabulary/out_of_set"].total) == early.sum()
  without = batch_of(rollout).replace(loss_weights=jnp.asarray(rollout.mask & ~early, jnp.float32))
  (expected, _), expected_gradient = run(PARAMS, without)
  np.testing.assert_allclose(value, expected, rtol=1e-6)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), gradient,
               expected_gradient)


class Echo:
  """Ends a turn at token 5 and puts three tokens behind it."""

  def turn_end(self, turn_ids, seen=0):
    return next((i + 1 for i, token in enumerate(turn_ids) if token in (5, EOS)), None)

  def step(self, row_id, turn_ids, last=False):
    return Stop(STOP_TOKEN) if turn_ids[-1] == EOS or last else Continue((7, EOS, 9))

  def close(self):
    """Nothing is held."""


@pytest.mark.slow
def test_places_count_what_an_environment_inserts():
  cfg = engine.EngineConfig(4, NEW, 2 * NEW, (EOS,), 0, LEAST, slots=16, chunk=4, compact=0)
  rollout, _ = engine.run(PARAMS, prompts(), KEY, Sampling.of(TEMPERATURE), model=MODEL, cfg=cfg,
                          environment=Echo(), max_turns=3)
  rollout = jax.device_get(rollout)
  place = np.arange(rollout.tokens.shape[1]) - rollout.prompt_length[:, None]
  inserted = (place >= 0) & (place < (rollout.length - rollout.prompt_length)[:,
                                                                              None]) & ~rollout.mask
  assert (inserted & (place < LEAST)).any(), "what is inserted takes places of the rule"
  scored = scorer(LEAST)(PARAMS, rollout, Sampling.of(TEMPERATURE))
  assert gap(scored.log_probs, rollout) < TOLERANCE and np.all(scored.in_support[rollout.mask])
  # Wrong: places of the policy's tokens alone.
  behind = rollout.replace(prompt_length=rollout.prompt_length +
                           np.max(inserted, 1).astype(np.int32) * 3)
  assert gap(scorer(LEAST)(PARAMS, behind, Sampling.of(TEMPERATURE)).log_probs, rollout) > 1e-3


@pytest.mark.slow
def test_a_rule_without_stop_tokens_is_refused():
  with pytest.raises(ValueError, match="Fix: the task's stop_ids"):
    stop_rule(sampled("generate", "none", 0), LossConfig(min_new_tokens=2))
