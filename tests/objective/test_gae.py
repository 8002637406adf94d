"""Advantages that run over time, against loops from the right: GAE and REINFORCE++."""

import dataclasses

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


def slow_gae(x, cfg, lam=None):
  """Unwhitened; `lam` in place of the config's, and then without its upgoing share."""
  out = np.zeros(x.mask.shape)
  for i in np.flatnonzero(live_of(x).any(1)):
    reward, value, advantage, tokens = reward_of(x, i, x.rewards[i]), 0.0, 0.0, x.mask[i].sum()
    decay = cfg.lam if cfg.length_alpha is None else max(0.0, 1 - 1 / (cfg.length_alpha * tokens))
    decay = decay if lam is None else lam
    for t in np.flatnonzero(x.mask[i])[::-1]:
      delta = reward[t] + cfg.gamma * value - x.values[i, t]
      out[i, t] = advantage = delta + cfg.gamma * decay * advantage
      value = x.values[i, t]
  share = cfg.upgo if lam is None else 0.0
  return share * slow_upgoing(x, cfg) + (1 - share) * out


def slow_upgoing(x, cfg):
  """U - V, from the definition: U follows the row where its next step was as good as expected."""
  out = np.zeros(x.mask.shape)
  for i in np.flatnonzero(live_of(x).any(1)):
    reward, steps = reward_of(x, i, x.rewards[i]), np.flatnonzero(x.mask[i])
    values = np.append(x.values[i, steps], [0.0, 0.0])
    upgoing = np.zeros(len(steps) + 1)
    for n in range(len(steps) - 1, -1, -1):
      goes_on = n + 1 < len(steps) and (
          reward[steps[n + 1]] + cfg.gamma * values[n + 2] >= values[n + 1])
      upgoing[n] = reward[steps[n]] + cfg.gamma * (upgoing[n + 1] if goes_on else values[n + 1])
      out[i, steps[n]] = upgoing[n] - values[n]
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
  of_target = slow_gae(x, dataclasses.replace(cfg, upgo=0.0), cfg.target_lam)
  np.testing.assert_allclose(got, whitened(raw, live) if cfg.whiten else raw, rtol=1e-9, atol=1e-11)
  np.testing.assert_allclose(targets, np.where(live, of_target + np.where(live, x.values, 0), 0),
                             rtol=1e-9, atol=1e-11)


OPTIONS = [{"gamma": 0.9, "lam": 0.7}, {"lam": 0.95, "whiten": False}, {"gamma": 0.0},
           {"gamma": 0.9, "whiten": False}, {"gamma": 0.9, "lam": 0.0, "whiten": False},
           {"length_alpha": 0.4, "target_lam": 1.0, "whiten": False},
           {"upgo": 0.3, "gamma": 0.9, "lam": 0.7, "whiten": False},
           {"upgo": 1.0, "target_lam": 0.5}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gae_equals_the_loop(options):
  for keep in (None, KEEP):
    check_gae(advantages.get_advantage("gae"), AdvantageConfig("gae", **options),
              cases.make(np.float64, keep=keep))


def test_bpco_at_its_limits():
  """A row of fewer than 1 / alpha tokens has lambda 0; targets by Monte Carlo are the returns."""
  x = cases.make(np.float64)
  given = cases.on_device(x)
  gae, live = advantages.get_advantage("gae"), live_of(x)
  short = gae(given, AdvantageConfig("gae", length_alpha=1e-3, whiten=False))
  np.testing.assert_allclose(short, gae(given, AdvantageConfig("gae", lam=0.0, whiten=False)),
                             atol=1e-6)
  long = gae(given, AdvantageConfig("gae", length_alpha=1e6, whiten=False))
  np.testing.assert_allclose(long, gae(given, AdvantageConfig("gae", whiten=False)), atol=1e-4)
  targets = advantages.value_targets(given, AdvantageConfig("gae", lam=0.3, target_lam=1.0))
  np.testing.assert_allclose(targets, slow_returns(x, AdvantageConfig("gae"), x.rewards, live),
                             rtol=1e-5, atol=1e-5)
  of_lambda = advantages.value_targets(given, AdvantageConfig("gae", lam=0.3))
  assert np.abs(np.asarray(of_lambda - targets)).max() > 0.1, "the advantage's lambda does as well"
  for scale in (1e4, -1e4):
    far = given.replace(values=scale * given.values, rewards=scale * given.rewards)
    assert np.isfinite(gae(far, AdvantageConfig("gae", upgo=0.5, length_alpha=0.4))).all()


def follows_every_row(given, cfg):
  """Wrong: U is the return, also after a step that was worse than expected."""
  return advantages.get_advantage("gae")(given, AdvantageConfig("gae", gamma=cfg.gamma,
                                                                whiten=False))


def counts_masked_tokens(given, cfg):
  """Wrong: a masked token is a step of its own, with value and reward 0."""
  filled = given.replace(
      **{k: jnp.where(given.mask, getattr(given, k), 0) for k in ("values", "token_rewards")})
  width = jnp.arange(given.mask.shape[1])
  last = jnp.max(jnp.where(given.mask, width, -1), 1)
  dense = filled.replace(mask=width <= last[:, None])
  return jnp.where(given.mask, advantages.get_advantage("gae")(dense, cfg), 0)


@pytest.mark.parametrize(("wrong", "numbers"), [
    (follows_every_row, {"upgo": 1.0, "gamma": 0.9}),
    (counts_masked_tokens, {"gamma": 0.9, "lam": 0.7})])
def test_the_loop_rejects(wrong, numbers):
  x, cfg = cases.make(np.float64), AdvantageConfig("gae", whiten=False, **numbers)
  check_gae(advantages.get_advantage("gae"), cfg, x)
  with pytest.raises(AssertionError):
    check_gae(wrong, cfg, x)


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
