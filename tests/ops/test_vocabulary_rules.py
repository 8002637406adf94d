"""A plugin's rule of the vocabulary restricts sampler, scorer and loss alike."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.config import (
  Config,
  ConfigError,
  LossConfig,
  ModelConfig,
  SamplerConfig,
  StepConfig,
  VocabularyConfig,
  from_dict,
  keys,
  to_dict,
)
from jaxrl_llm.models import Model
from jaxrl_llm.objective.loss import policy_stats
from jaxrl_llm.ops import vocabulary
from jaxrl_llm.rollouts import engine, generate
from jaxrl_llm.rollouts.next_token import rules_on
from jaxrl_llm.rollouts.server import control
from jaxrl_llm.training.score import score
from jaxrl_llm.types import PromptBatch, Sampling, TrainBatch

MODEL = Model(ModelConfig(vocab_size=13, width=16, num_layers=1, num_heads=2, num_kv_heads=1,
                          head_dim=8, mlp_width=24))
PARAMS = jax.tree.map(lambda x: 8 * x if x.ndim > 1 else x, MODEL.init(jax.random.key(0)))
NEW, KEY, TEMPERATURE = 8, jax.random.key(7), 1.3
RULES = {"epsilon": 0.06, "top_p": 0.97}


def epsilon(logits, value):
  """Keeps p >= epsilon among what top_p has left."""
  return jax.nn.softmax(logits, -1) >= value


@pytest.fixture(autouse=True)
def registered():
  vocabulary.register("epsilon", 0.0, "keeps tokens of at least this probability", low=0.0,
                      high=1.0)(epsilon)


def prompts(rows=16, width=4) -> PromptBatch:
  tokens = np.random.default_rng(0).integers(4, 13, (rows, width)).astype(np.int32)
  index = np.arange(rows, dtype=np.int32)
  return PromptBatch(tokens, np.full(rows, width, np.int32), index, index)


def sampled(how: str, sampling: Sampling):
  if how == "generate":
    cfg = SamplerConfig(1, NEW, NEW, (3,), 0, 0)
    run = jax.jit(functools.partial(generate, model=MODEL, cfg=cfg))
    return jax.device_get(run(PARAMS, prompts(), KEY, sampling))
  cfg = engine.EngineConfig(1, NEW, 2 * NEW, (3,), 0, 0, slots=8, chunk=4, compact=0)
  return jax.device_get(engine.run(PARAMS, prompts(), KEY, sampling, model=MODEL, cfg=cfg)[0])


def gaps(rollout, rules: dict) -> list[float]:
  """Largest |log ratio| of scorer and of loss to the sampler's record, under rules of theirs."""
  scorer = jax.jit(functools.partial(score, model=MODEL, cfg=StepConfig(LossConfig())))
  loss = LossConfig(temperature=TEMPERATURE, pruning=tuple(rules.items()))
  ones = jnp.ones(rollout.mask.shape, jnp.float32)
  batch = TrainBatch(rollout, ones, ones, None, ones)
  stats = [scorer(PARAMS, rollout, Sampling.of(TEMPERATURE, **rules)),
           jax.jit(functools.partial(policy_stats, model=MODEL, cfg=loss))(PARAMS, batch)]
  return [float(np.abs(np.where(rollout.mask, x.log_probs - rollout.behavior_log_probs, 0)).max())
          for x in stats]


@pytest.mark.parametrize("how", ["generate", "engine"])
def test_sampler_scorer_and_loss_agree(how):
  rollout = sampled(how, Sampling.of(TEMPERATURE, **RULES))
  assert max(gaps(rollout, RULES)) < 1e-5
  # What the check rejects: a side without the rule, and one with another value.
  for wrong in ({"top_p": 0.97}, RULES | {"epsilon": 0.1}):
    assert min(gaps(rollout, wrong)) > 1e-2, wrong


def test_a_side_with_another_order_is_told_apart():
  """top_p after epsilon keeps other tokens than epsilon after top_p."""
  logits = jnp.asarray(np.random.default_rng(0).normal(size=(500, 13)) * 2, jnp.float32)
  ours = vocabulary.support(logits, **RULES)
  keep = epsilon(logits, RULES["epsilon"])
  swapped = keep & vocabulary.support(vocabulary.prune(logits, keep), top_p=0.97)
  assert (np.asarray(ours) != np.asarray(swapped)).any()
  np.testing.assert_array_equal(ours, vocabulary.support(logits, **dict(sorted(RULES.items()))))


def test_the_most_likely_token_is_always_kept():
  logits = jnp.asarray([[0.0, 1.0, 0.5], [2.0, 2.0, -1.0]])
  np.testing.assert_array_equal(vocabulary.support(logits, epsilon=1.0),
                                [[False, True, False], [True, True, False]])
  assert not epsilon(logits, 1.0).any()


def test_the_rule_is_a_key_of_the_config():
  assert "vocabulary.epsilon" in keys()
  cfg = from_dict({"vocabulary": {"epsilon": 0.06, "top_k": 5}})
  assert cfg.vocabulary.rules == {"epsilon": 0.06, "top_k": 5}
  assert dict(cfg.loss.pruning) == cfg.vocabulary.rules_of("trainer")
  assert from_dict(to_dict(cfg)) == cfg and hash(cfg.vocabulary) == hash(VocabularyConfig(
      epsilon=0.06, top_k=5))
  assert VocabularyConfig(epsilon=0.0).rules == {} == Config().vocabulary.rules
  with pytest.raises(ConfigError, match=r"vocabulary\.epsilon = 1\.5: out of range"):
    from_dict({"vocabulary": {"epsilon": 1.5}})
  with pytest.raises(ConfigError, match=r"unknown key vocabulary\.epsilo; nearest known key"):
    from_dict({"vocabulary": {"epsilo": 0.1}})
  with pytest.raises(ConfigError, match="'nucleus': registered are"):
    vocabulary.support(jnp.zeros(3), nucleus=0.5)


def test_a_rule_that_is_off_is_left_out_of_the_sampler_s_program():
  assert rules_on(Sampling.of(1.0)) == frozenset()
  assert rules_on(Sampling.of(1.0, epsilon=0.0, top_k=2)) == {"top_k"}
  assert rules_on(Sampling.of(1.0, epsilon=0.1, logit_noise=0.2)) == {"epsilon", "logit_noise"}


def test_a_server_is_not_asked_for_a_plugin_s_rule():
  cfg = from_dict({"vocabulary": {"epsilon": 0.06}, "server": {"url": "http://127.0.0.1:9"}})
  with pytest.raises(ConfigError, match=r"vocabulary\.epsilon = 0\.06 with server.*no rule of"):
    control.check(cfg.server, cfg.vocabulary)
  control.check(cfg.server, VocabularyConfig(top_p=0.9))
