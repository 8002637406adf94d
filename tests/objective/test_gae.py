"""Advantages that run over time, against loops from the right: GAE and REINFORCE++."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.config import AdvantageConfig
from jaxrl_llm.objective import advantages

KEEP = np.arange(len(cases.GROUPS)) != 2


def reward_of(x, i, outcome):
  reward = np.where(x.mask[i], x.token_rewards[i], 0)
  if x.mask[i].any():
    reward[np.flatnonzero(x.mask[i])[-1]] += outcome
  return reward


def live_of(x):
  return x.mask if x.keep is None else x.mask & x.keep[:, None]


def slow_gae(x, cfg):
  """Unwhitened."""
  out = np.zeros(x.mask.shape)
  for i in np.flatnonzero(live_of(x).any(1)):
    reward, value, advantage = reward_of(x, i, x.rewards[i]), 0.0, 0.0
    for t in np.flatnonzero(x.mask[i])[::-1]:
      delta = reward[t] + cfg.gamma * value - x.values[i, t]
      out[i, t] = advantage = delta + cfg.gamma * cfg.lam * advantage
      value = x.values[i, t]
  return out


def slow_returns(x, cfg, outcomes, live):
  out = np.zeros(x.mask.shape)
  for i in np.flatnonzero(live.any(1)):
    reward, running = reward_of(x, i, outcomes[i]), 0.0
    for t in np.flatnonzero(x.mask[i])[::-1]:
      out[i, t] = running = reward[t] + cfg.gamma * running
  return out


def whitened(values, live):
  v = values[live]
  return np.where(live, (values - v.mean()) / np.sqrt(v.var(ddof=1) + 1e-8), 0)


def check_gae(function, cfg, x):
  with jax.enable_x64(True):
    got = function(cases.on_device(x), cfg)
    targets = advantages.value_targets(cases.on_device(x), cfg)
  raw, live = slow_gae(x, cfg), live_of(x)
  np.testing.assert_allclose(got, whitened(raw, live) if cfg.whiten else raw, rtol=1e-9, atol=1e-11)
  np.testing.assert_allclose(targets, np.where(live, raw + np.where(live, x.values, 0), 0),
                             rtol=1e-9, atol=1e-11)


OPTIONS = [{"gamma": 0.9, "lam": 0.7}, {"lam": 0.95, "whiten": False}, {"gamma": 0.0}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gae_equals_the_loop(options):
  for keep in (None, KEEP):
    check_gae(advantages.get_advantage("gae"), AdvantageConfig("gae", **options),
              cases.make(np.float64, keep=keep))


def counts_masked_tokens(given, cfg):
  """Wrong: a masked token is a step of its own, with value and reward 0."""
  filled = given.replace(
      **{k: jnp.where(given.mask, getattr(given, k), 0) for k in ("values", "token_rewards")})
  width = jnp.arange(given.mask.shape[1])
  last = jnp.max(jnp.where(given.mask, width, -1), 1)
  dense = filled.replace(mask=width <= last[:, None])
  return jnp.where(given.mask, advantages.get_advantage("gae")(dense, cfg), 0)


def test_masked_spans_are_skipped():
  cfg = AdvantageConfig("gae", gamma=0.9, lam=0.7, whiten=False)
  with pytest.raises(AssertionError):
    check_gae(counts_masked_tokens, cfg, cases.make(np.float64))


def test_limits_of_lambda():
  x = cases.make(np.float64)
  values = np.where(x.mask, x.values, 0)
  with jax.enable_x64(True):
    run = lambda **k: np.asarray(
        advantages.get_advantage("gae")(cases.on_device(x), AdvantageConfig("gae", **k)))
    monte_carlo, one_step = run(gamma=0.9, whiten=False), run(gamma=0.9, lam=0.0, whiten=False)
  returns = slow_returns(x, AdvantageConfig(gamma=0.9), x.rewards, x.mask)
  np.testing.assert_allclose(monte_carlo, returns - values, rtol=1e-10, atol=1e-11)
  for i in range(len(values)):
    v = x.values[i, x.mask[i]]
    expected = reward_of(x, i, x.rewards[i])[x.mask[i]] + 0.9 * np.append(v, 0)[1:] - v
    np.testing.assert_allclose(one_step[i, x.mask[i]], expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("options", [{"gamma": 0.8}, {"gamma": 0.8, "whiten": False}, {}], ids=str)
def test_reinforce_pp_equals_the_loop(options):
  for keep in (None, KEEP):
    x = cases.make(np.float64, keep=keep)
    kept = np.ones(len(x.rewards), bool) if keep is None else keep
    total = np.where(kept, x.rewards + np.nansum(np.where(x.mask, x.token_rewards, 0), 1), 0)
    members = np.array([(kept & (x.group_id == g)).sum() for g in x.group_id])
    mean = np.array([total[kept & (x.group_id == g)].mean() for g in x.group_id])
    for name, outcomes, rows in (("reinforce_pp", x.rewards, kept),
                                 ("reinforce_pp_baseline", x.rewards - mean, kept & (members > 1))):
      cfg, live = AdvantageConfig(name, **options), x.mask & rows[:, None]
      with jax.enable_x64(True):
        got = np.asarray(advantages.get_advantage(name)(cases.on_device(x), cfg))
      raw = slow_returns(x, cfg, outcomes, live)
      np.testing.assert_allclose(got,
                                 whitened(raw, live) if cfg.whiten else raw, rtol=1e-9, atol=1e-11,
                                 err_msg=name)


def test_baseline_without_token_rewards_is_dr_grpo():
  given = cases.on_device(cases.make(token_rewards=None))
  cfg = AdvantageConfig("reinforce_pp_baseline", whiten=False)
  got, dr = (advantages.get_advantage(n)(given, cfg) for n in ("reinforce_pp_baseline", "dr_grpo"))
  np.testing.assert_allclose(got, dr, rtol=1e-6, atol=1e-6)


def test_whitening_has_mean_0_and_variance_1_over_policy_tokens():
  x = cases.make(np.float64, keep=KEEP)
  live = live_of(x)
  with jax.enable_x64(True):
    for name in ("gae", "reinforce_pp"):
      got = np.asarray(advantages.get_advantage(name)(cases.on_device(x), AdvantageConfig(name)))
      np.testing.assert_allclose([got[live].mean(), got[live].var(ddof=1)], [0, 1], atol=1e-7)
      assert abs(got.var() - 1) > 0.1  # over all entries, padding included, it is not
