"""Group advantages against their formulas, and what every advantage must satisfy."""

import functools
import operator

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suites import quick_for

from jaxrl_llm.config import AdvantageConfig, ConfigError
from jaxrl_llm.objective import advantages
from jaxrl_llm.types import AdvantageInputs

GROUPS = np.array([3, -1, 3, 8, -1, 3, 8, 5])  # unsorted; 5 has a single row
REWARDS = np.array([1.0, 0.0, 0.5, 1.0, 1.0, 0.0, 1.0, 1.0], np.float32)
BY_ROW = ("none", "grpo", "dr_grpo", "rloo", "opo")


def inputs(rewards=REWARDS, keep=None, groups=GROUPS, length=4):
  mask = np.arange(length) < np.arange(1, len(groups) + 1)[:, None] % (length + 1)
  return AdvantageInputs(jnp.asarray(rewards), jnp.asarray(mask), jnp.zeros(mask.shape, jnp.int32),
                         jnp.asarray(groups), None if keep is None else jnp.asarray(keep))


def loop(name, rewards, keep, lengths, cfg):
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
    elif name == "opo":
      out[i] = rewards[i] - np.sum(lengths[others] * r) / np.sum(lengths[others])
    else:
      out[i] = centred / (r.std(ddof=cfg.ddof) + cfg.epsilon) if name == "grpo" else centred
  return out


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("name", BY_ROW)
def test_equal_the_loop(name, ddof):
  cfg = AdvantageConfig(name, ddof=ddof)
  for keep in (np.ones(8, bool), np.array([1, 1, 0, 1, 0, 1, 1, 1], bool)):
    rewards = np.where(keep, REWARDS, np.nan).astype(np.float32)
    given = inputs(rewards, keep)
    got = advantages.get_advantage(name)(given, cfg)
    mask = np.asarray(given.mask)
    expected = loop(name, rewards, keep, mask.sum(1), cfg)[:, None] * mask
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    order = np.random.default_rng(0).permutation(8)
    permuted = jax.tree.map(operator.itemgetter(order), given)
    np.testing.assert_allclose(advantages.get_advantage(name)(permuted, cfg), got[order], rtol=1e-6)


@pytest.mark.parametrize("name", BY_ROW)
def test_token_rewards_count_in_the_reward_of_a_row(name):
  given = inputs()
  tokens = np.where(given.mask, np.arange(4) / 8, np.nan).astype(np.float32)
  together = given.replace(rewards=given.rewards + np.nansum(tokens, 1))
  run = functools.partial(advantages.get_advantage(name), cfg=AdvantageConfig(name))
  got = run(given.replace(token_rewards=jnp.asarray(tokens)))
  np.testing.assert_allclose(got, run(together), rtol=1e-5, atol=1e-6)
  assert np.abs(got - run(given)).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("reward", [1.0, 0.1])  # the mean of three 0.1 is not 0.1
def test_constant_rewards_have_no_advantage(reward):
  given = inputs(np.full(8, reward, np.float32))
  for name in ("grpo", "dr_grpo", "rloo", "opo", "tempo"):
    for epsilon in (1e-6, 0.0):
      cfg = AdvantageConfig(name, epsilon=epsilon)
      np.testing.assert_array_equal(advantages.get_advantage(name)(given, cfg), 0.0, err_msg=name)
  got = advantages.get_advantage("reinforce_pp")(given, AdvantageConfig("reinforce_pp"))
  np.testing.assert_allclose(got, 0.0, atol=1e-6)


def test_registry_refuses():
  with pytest.raises(ConfigError, match="registered are"):
    advantages.get_advantage("nope")
  with pytest.raises(ValueError, match="allowed are"):
    advantages.register("of_tests", options={("weight", "step"): {"nothing"}})(lambda *a: None)
  advantages.register("of_tests_needs_keep", needs={"keep"})(lambda inputs, cfg: inputs.rewards)
  with pytest.raises(ValueError, match="needs"):
    advantages.get_advantage("of_tests_needs_keep")(inputs(), AdvantageConfig())
  with pytest.raises(ConfigError, match=r"advantage\.gain = 2\.0: 'grpo' does not read it"):
    advantages.get_advantage("grpo")(inputs(), AdvantageConfig("grpo", gain=2.0))


def test_options_enlarge_the_needs():
  base = {"sum_pi_squared", "anchor_log_probs"}
  for cfg, needs in ((AdvantageConfig("grpo"), set()), (AdvantageConfig("gae"), {"values"}),
                     (AdvantageConfig("otb"), base),
                     (AdvantageConfig("otb", importance="outside"), base | {"correction_weights"}),
                     (AdvantageConfig("tir_otb", granularity="turn"), base | {"turn_id"})):
    assert advantages.needs(cfg) == needs
  lacking = cases.make(correction_weights=None)
  with pytest.raises(ValueError, match="importance = 'inside_cumsum' reads correction_weights"):
    advantages.get_advantage("otb")(lacking, AdvantageConfig("otb", importance="inside_cumsum"))
  with pytest.raises(ValueError, match="values"):
    advantages.value_targets(cases.make(values=None), AdvantageConfig("gae"))


EVERY = {name: AdvantageConfig(name, gamma=0.9, lam=0.8) for name in (
    *BY_ROW, "asymre", "gae", "gdpo", "maxrl", "opmd", "opob", "otb", "pass_k_best", "reinforce_pp",
    "reinforce_pp_baseline", "tempo", "tir_otb")}
for granularity in ("turn", "sequence"):
  EVERY[f"tir_otb-{granularity}"] = AdvantageConfig("tir_otb", granularity=granularity,
                                                    importance="outside")
EVERY["reverse_kl"] = AdvantageConfig("reverse_kl")
EVERY["reverse_kl-reward"] = AdvantageConfig("reverse_kl", reward=2.0, bound=1.0)
EVERY["pass_k"] = AdvantageConfig("pass_k", k=1)
EVERY["gdpo-rows"] = AdvantageConfig("gdpo", whiten="rows", weights=(1.0, 0.5, 2.0))
EVERY["tir_otb-others"] = AdvantageConfig("tir_otb", leave_one_out=True, importance="inside_cumsum")


NOT_INVARIANT = {"otb"}  # its position is the column


def test_every_advantage_is_listed():
  names = {name for name in advantages.names()
           if advantages.spec(name).function.__module__.startswith("jaxrl_llm.")}
  assert {cfg.name for cfg in EVERY.values()} == names


def properties(advantage, cfg, *, group, tool_text):
  """What holds for every advantage, on rows with holes, an empty row and a group of one."""
  run = jax.jit(lambda given: advantage(given, cfg))
  keep = np.ones(len(cases.GROUPS), bool)
  keep[2] = False
  # Of pass_k every group needs a right row and a wrong one.
  rewards = {"rewards": np.isin(np.arange(len(keep)), [0, 1, 3]).astype(np.float32)}
  given = cases.make(keep=keep, **(rewards if cfg.name == "pass_k" else {}))
  got = np.asarray(run(cases.on_device(given)))
  assert got.dtype == np.float32 and np.isfinite(got).all() and np.abs(got).max() > 0.1
  np.testing.assert_array_equal(got[~given.mask], 0.0)
  np.testing.assert_array_equal(got[[2, cases.EMPTY]], 0.0)
  if group:
    np.testing.assert_array_equal(got[cases.GROUPS == 5], 0.0)
  close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
  order = np.random.default_rng(0).permutation(len(keep))
  close(run(cases.on_device(cases.permuted(given, order))), got[order])
  padded = run(cases.on_device(cases.padded(given)))
  close(padded[:len(keep), :got.shape[1]], got)
  if tool_text:
    longer = cases.with_tool_text(given)
    close(np.asarray(run(cases.on_device(longer)))[longer.mask], got[given.mask])


@pytest.mark.parametrize("key", quick_for({"grpo", "rloo", "otb", "tempo"}, EVERY))
def test_every_advantage(key):
  cfg = EVERY[key]
  properties(advantages.get_advantage(cfg.name), cfg, group=advantages.spec(cfg.name).group,
             tool_text=key not in NOT_INVARIANT)


@pytest.mark.parametrize("key", [k for k in EVERY if k != "none"])
def test_constants_without_gradient(key):
  cfg, given = EVERY[key], cases.on_device(cases.make())
  fields = ("rewards", "values", "anchor_log_probs", "sum_pi_squared", "correction_weights",
            "ref_log_probs", "entropy", "columns", "reward_parts")
  floats = {name: x for name in fields if (x := getattr(given, name)) is not None}
  function = advantages.get_advantage(cfg.name)
  gradient = jax.jit(
      jax.grad(lambda x: jnp.sum(jnp.square(function(given.replace(**x), cfg)))))(floats)
  assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(gradient))


def first_group_only(given, cfg):
  """Assumes that groups are contiguous blocks of two."""
  del cfg
  rewards = jnp.nan_to_num(given.rewards)
  mean = jnp.repeat(rewards.reshape(-1, 2).mean(1), 2)
  return jnp.where(given.mask, (rewards - mean)[:, None], 0.0)


# The position of otb is the column.
@pytest.mark.parametrize("wrong", [first_group_only, advantages.get_advantage("otb")])
def test_the_properties_bite(wrong):
  with pytest.raises(AssertionError):
    properties(wrong, AdvantageConfig("otb"), group=True, tool_text=True)
