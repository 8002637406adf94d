"""Group advantages and weightings against their formulas."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.config import AdvantageConfig, AggregationConfig, ConfigError
from jaxrl_llm.objective import advantages
from jaxrl_llm.objective.advantages import registry
from jaxrl_llm.objective.aggregation import loss_weights
from jaxrl_llm.types import AdvantageInputs

GROUPS = np.array([3, -1, 3, 8, -1, 3, 8, 5])  # unsorted; 5 has a single row
REWARDS = np.array([1.0, 0.0, 0.5, 1.0, 1.0, 0.0, 1.0, 1.0], np.float32)


def inputs(rewards=REWARDS, keep=None, groups=GROUPS, length=4):
  mask = np.arange(length) < np.arange(1, len(groups) + 1)[:, None] % (length + 1)
  return AdvantageInputs(jnp.asarray(rewards), jnp.asarray(mask), jnp.zeros(mask.shape, jnp.int32), jnp.asarray(groups),
                         None if keep is None else jnp.asarray(keep))


def loop(name, rewards, keep, cfg):
  out = np.zeros(len(rewards))
  for i, g in enumerate(GROUPS):
    others = [j for j in range(len(rewards)) if GROUPS[j] == g and keep[j]]
    if not keep[i] or (len(others) < 2 and name != "none"):
      continue
    r = rewards[others].astype(np.float64)
    centred = rewards[i] - r.mean()
    if name == "none":
      out[i] = rewards[i]
    elif name == "rloo":
      out[i] = rewards[i] - np.mean([rewards[j] for j in others if j != i])
    else:
      out[i] = centred / (r.std(ddof=cfg.ddof) + cfg.epsilon) if name == "grpo" else centred
  return out


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("name", ["none", "grpo", "dr_grpo", "rloo"])
def test_equal_the_loop(name, ddof):
  cfg = AdvantageConfig(name, ddof=ddof)
  for keep in (np.ones(8, bool), np.array([1, 1, 0, 1, 0, 1, 1, 1], bool)):
    rewards = np.where(keep, REWARDS, np.nan).astype(np.float32)
    given = inputs(rewards, keep)
    got = advantages.get_advantage(name)(given, cfg)
    expected = loop(name, rewards, keep, cfg)[:, None] * np.asarray(given.mask)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    order = np.random.default_rng(0).permutation(8)
    permuted = jax.tree.map(operator.itemgetter(order), given)
    np.testing.assert_allclose(advantages.get_advantage(name)(permuted, cfg), got[order], rtol=1e-6)


def test_constant_rewards_have_no_advantage():
  given = inputs(np.ones(8, np.float32))
  for name in ("grpo", "dr_grpo", "rloo"):
    np.testing.assert_array_equal(advantages.get_advantage(name)(given, AdvantageConfig(name)), 0.0)
  np.testing.assert_array_equal(advantages.get_advantage("grpo")(given, AdvantageConfig("grpo", epsilon=0.0)), 0.0)


def test_registry_refuses(monkeypatch):
  monkeypatch.setattr(registry, "_TABLE", dict(registry._TABLE))
  with pytest.raises(ConfigError, match="registered are"):
    advantages.get_advantage("nope")
  with pytest.raises(ValueError, match="registered already"):
    advantages.register("grpo")(lambda *a: None)
  advantages.register("of_tests_needs_keep", needs={"keep"})(lambda inputs, cfg: inputs.rewards)
  with pytest.raises(ValueError, match="needs"):
    advantages.get_advantage("of_tests_needs_keep")(inputs(), AdvantageConfig())


MODES = ("token", "token_sum", "sequence", "sequence_sum", "fixed")


@pytest.mark.parametrize("name", MODES)
def test_weights_by_hand(name):
  mask = jnp.asarray([[1, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0]], bool)
  keep = jnp.asarray([True, True, True, False])
  cfg = AggregationConfig(name, fixed_length=10)
  weights = loss_weights(mask, None, None, cfg, keep)
  per_row = {"token": [1 / 4, 1 / 4], "token_sum": [1, 1], "sequence": [1 / 6, 1 / 2], "sequence_sum": [1 / 2, 1 / 2],
             "fixed": [1 / 20, 1 / 20]}[name]
  np.testing.assert_allclose(weights, np.asarray(mask) * np.array([*per_row, 0, 0])[:, None], rtol=1e-6)
  padded = loss_weights(jnp.pad(mask, ((0, 2), (0, 3))), None, None, cfg, jnp.pad(keep, (0, 2)))
  np.testing.assert_allclose(padded[:4, :4], weights, rtol=1e-6)
  np.testing.assert_array_equal(loss_weights(jnp.zeros_like(mask), None, None, cfg), 0.0)


def test_fixed_needs_its_constant():
  with pytest.raises(ConfigError, match="fixed_length"):
    loss_weights(jnp.ones((2, 2), bool), None, None, AggregationConfig("fixed"))
