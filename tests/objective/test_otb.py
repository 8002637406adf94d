"""Optimal token baselines against a slow loop, autodiff and their identities."""

import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.config import AdvantageConfig
from jaxrl_llm.objective import advantages
from jaxrl_llm.objective.advantages import returns, token_baseline
from jaxrl_llm.types import AdvantageInputs

KEEP = np.arange(len(cases.GROUPS)) != 2


def energy(x):
  p = np.exp(x.anchor_log_probs)
  return np.where(x.mask, np.maximum(0, 1 - 2 * p + x.sum_pi_squared), 0)


def position(x, i, t, cfg):
  if cfg.granularity == "step":
    return t + 1 if cfg.name == "otb" else x.mask[i, :t + 1].sum()
  return x.turn_id[i, t] if cfg.granularity == "turn" else 1


def units_of_row(x, i, cfg):
  """{position: (tokens, W, G)} of one row."""
  units, running, w = {}, 0.0, energy(x)
  of = {t: position(x, i, t, cfg) for t in np.flatnonzero(x.mask[i])}
  for q in sorted(set(of.values())):
    tokens = [t for t in of if of[t] == q]
    squares = [1 if x.correction_weights is None else x.correction_weights[i, t] ** 2
               for t in tokens]
    step_energy = sum((1 if cfg.weight == "uniform" else w[i, t]) *
                      (rho if cfg.importance in ("auto", "inside_cumsum") else 1)
                      for t, rho in zip(tokens, squares, strict=True))
    running = step_energy + (running if cfg.weight == "cumulative" else 0)
    total = running * (np.mean(squares) if cfg.importance == "outside" else 1)
    units[q] = tokens, total, x.rewards[i] + sum(
        x.token_rewards[i, t] for t in of if t >= tokens[0])
  return units


def slow(x, cfg):
  out = np.zeros(x.mask.shape)
  for group in np.unique(x.group_id):
    rows = [i for i in np.flatnonzero(x.group_id == group) if x.keep is None or x.keep[i]]
    units = {i: units_of_row(x, i, cfg) for i in rows} if len(rows) > 1 else {}
    for i in units:
      for q, (tokens, _, reward) in units[i].items():
        alive = [j for j in rows if q in units[j] and not (cfg.leave_one_out and j == i)]
        weight = sum(units[j][q][1] for j in alive)
        baseline = sum(units[j][q][1] * units[j][q][2] for j in alive) / (weight + 1e-8)
        beyond = all(max(units[j], default=0) < q for j in rows if j != i)
        out[i, tokens] = reward - (0 if cfg.zero_tail and beyond else baseline)
  return out


CONFIGS = [
    {}, {"weight": "step", "importance": "none"}, {"weight": "uniform"}, {"zero_tail": False},
    {"importance": "none"}, {"importance": "outside", "weight": "step"},
    {"leave_one_out": True, "zero_tail": False}, {"granularity": "turn"},
    {"granularity": "turn", "importance": "outside", "leave_one_out": True},
    {"granularity": "sequence", "importance": "inside_cumsum"},
    {"granularity": "sequence", "weight": "uniform"}]


@pytest.mark.parametrize("options", CONFIGS,
                         ids=lambda c: "-".join(map(str, c.values())) or "paper")
def test_equals_the_slow_loop(options):
  given = cases.make(np.float64, keep=KEEP)
  with jax.enable_x64(True):
    for name in ("otb", "tir_otb"):
      cfg = AdvantageConfig(name, **options)
      got = advantages.get_advantage(name)(cases.on_device(given), cfg)
      np.testing.assert_allclose(got, slow(given, cfg), rtol=1e-9, atol=1e-10, err_msg=name)


def knows_of_the_correction(importance: str) -> bool:
  """With weights it is verl's rho^2 inside the sum; without, weights of 1."""
  corrected = cases.on_device(cases.make(keep=KEEP))
  plain = cases.on_device(cases.make(keep=KEEP, correction_weights=None))
  run = lambda x, mode: np.asarray(
      advantages.get_advantage("tir_otb")(x, AdvantageConfig("tir_otb", importance=mode)))
  return bool(np.array_equal(run(corrected, importance), run(corrected, "inside_cumsum"))
              and np.array_equal(run(plain, importance), run(plain, "none")))


def test_a_correction_is_not_silently_left_out():
  assert AdvantageConfig("otb").importance == "auto" and knows_of_the_correction("auto")
  assert not knows_of_the_correction("none")


def test_the_loop_tells_the_variants_apart():
  given = cases.make(np.float64, keep=KEEP)
  results = [slow(given, AdvantageConfig(name, **options))
             for options in CONFIGS for name in ("otb", "tir_otb")
             if name == "tir_otb" or "granularity" not in options]
  for i, a in enumerate(results):
    assert all(np.abs(a - b).max() > 1e-3 for b in results[:i]), i


def test_energy_is_the_squared_norm_of_the_score():
  with jax.enable_x64(True):
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(6, 5))) * 3
    chosen = jnp.asarray([0, 1, 2, 3, 4, 0])
    score = jax.vmap(jax.grad(lambda z, a: jax.nn.log_softmax(z)[a]))(logits, chosen)
    log_p = jax.nn.log_softmax(logits)
    got = token_baseline.gradient_energy(log_p[jnp.arange(6), chosen],
                                         jnp.sum(jnp.exp(2 * log_p), -1))
    np.testing.assert_allclose(got, jnp.sum(score**2, -1), rtol=1e-10, atol=1e-12)
  # rounding never makes it negative
  assert token_baseline.gradient_energy(jnp.zeros(()), jnp.asarray(1 - 1e-6)) == 0


def weighted_sums(x, advantage, index):
  """sum_i W_i A_i for each (group, position), `index` [B, L] giving a token's position."""
  accumulated = np.cumsum(energy(x), 1)
  return np.array([
      np.sum((accumulated * advantage)[x.mask & (x.group_id == g)[:, None] & (index == q)])
      for g in (3, -1, 8) for q in range(1, x.mask.shape[1] + 1)])


def counts_tokens(given, cfg):
  """Wrong: the mean over all rows of the group, ended or not, in place of those alive."""
  count = jnp.sum(given.group_id[:, None] == given.group_id, 1)[:, None]
  target = jnp.where(given.mask,
                     returns.rewards_to_go(given.rewards, jnp.nan_to_num(given.token_rewards)), 0)
  same = (given.group_id[:, None] == given.group_id).astype(target.dtype)
  return jnp.where(given.mask, target - same @ target / count, 0)


def check_weighted_sums(advantage, x, cfg):
  index = np.cumsum(x.mask, 1) if cfg.name == "tir_otb" else np.broadcast_to(
      np.arange(1, 10), x.mask.shape)
  assert np.abs(weighted_sums(x, np.asarray(advantage), index)).max() < 1e-6


def test_weighted_advantages_sum_to_zero_at_every_position():
  x = cases.make(np.float64, correction_weights=None)
  with jax.enable_x64(True):
    for name in ("otb", "tir_otb"):
      cfg = AdvantageConfig(name, zero_tail=False)
      check_weighted_sums(advantages.get_advantage(name)(cases.on_device(x), cfg), x, cfg)
    with pytest.raises(AssertionError):
      check_weighted_sums(counts_tokens(cases.on_device(x), None), x, AdvantageConfig("otb"))


def check_alive_mean(function, x):
  """Of uniform weights and the outcome, A is R minus the mean over rows alive at the column."""
  got, expected = np.asarray(function(cases.on_device(x))), np.zeros(x.mask.shape)
  for i, t in np.argwhere(x.mask & (x.group_id != 5)[:, None]):
    expected[i, t] = x.rewards[i] - np.mean(x.rewards[(x.group_id == x.group_id[i]) & x.mask[:, t]])
  np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_uniform_weights_give_the_mean_over_rows_alive():
  x = cases.make(token_rewards=None, correction_weights=None)
  cfg = AdvantageConfig("otb", weight="uniform", zero_tail=False)
  check_alive_mean(lambda given: advantages.get_advantage("otb")(given, cfg), x)
  with pytest.raises(AssertionError):
    check_alive_mean(
        lambda given: counts_tokens(given.replace(token_rewards=jnp.zeros(x.mask.shape)), cfg), x)


def test_uniform_weights_of_a_sequence_give_opo():
  given = cases.on_device(cases.make(token_rewards=None, correction_weights=None))
  cfg = AdvantageConfig("otb", granularity="sequence", weight="uniform")
  got, opo = (advantages.get_advantage(name)(given, cfg) for name in ("otb", "opo"))
  np.testing.assert_allclose(got, opo, rtol=1e-5, atol=1e-6)


def test_constant_rewards_leave_the_epsilon():
  x = cases.make(np.float64, rewards=np.full(10, 0.7), token_rewards=None,
                 correction_weights=None)
  with jax.enable_x64(True):
    got = np.asarray(advantages.get_advantage("otb")(cases.on_device(x), AdvantageConfig(
        "otb", zero_tail=False)))
  accumulated = np.where(x.mask, np.cumsum(energy(x), 1), 0)
  total = np.stack([accumulated[x.group_id == group].sum(0) for group in x.group_id])
  several = x.mask & (x.group_id != 5)[:, None]
  np.testing.assert_allclose(got[several], (0.7 * 1e-8 / (total + 1e-8))[several], atol=1e-15)


@pytest.mark.slow
def test_the_tail_of_the_only_longest_row_is_by_flag():
  mask = np.array(
      [[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0], [1, 0, 1, 0]], bool)
  constant = functools.partial(jnp.full, mask.shape)
  x = AdvantageInputs(jnp.arange(1.0, 7), jnp.asarray(mask), constant(0),
                      jnp.asarray([0, 0, 0, 1, 1, 1]), anchor_log_probs=constant(-1.0),
                      sum_pi_squared=constant(0.5))
  with_rule, without = (np.asarray(advantages.get_advantage("otb")(
      x, AdvantageConfig("otb", zero_tail=flag))) for flag in (True, False))
  np.testing.assert_allclose(with_rule[0, 2:], 1.0)
  np.testing.assert_allclose(without[0, 2:], 0.0, atol=1e-6)
  elsewhere = np.ones((6, 4), bool)
  elsewhere[0, 2:] = False
  # In the other group two rows share the longest length: nothing to except.
  np.testing.assert_array_equal(with_rule[elsewhere], without[elsewhere])


def check_alone(function, x):
  """The only completion of a group has no advantage, whatever its reward."""
  alone = x.group_id == 5
  assert alone.sum() == 1 and x.mask[alone].any() and x.rewards[alone] != 0
  np.testing.assert_array_equal(np.asarray(function(cases.on_device(x)))[alone], 0.0)


def test_a_group_of_one_has_no_advantage():
  x = cases.make(token_rewards=None, correction_weights=None)
  for name, zero_tail in (("otb", True), ("tir_otb", False)):
    cfg = AdvantageConfig(name, zero_tail=zero_tail)
    check_alone(functools.partial(advantages.get_advantage(name), cfg=cfg), x)
  with pytest.raises(AssertionError):  # verl's convention: B = 0 and A = G
    check_alone(lambda given: jnp.where(given.mask, given.rewards[:, None], 0), x)


def test_a_deterministic_prefix_has_no_baseline():
  x = cases.make(anchor_log_probs=np.zeros((10, 9)), sum_pi_squared=np.ones((10, 9)),
                 token_rewards=None)
  got = advantages.get_advantage("otb")(cases.on_device(x), AdvantageConfig("otb"))
  np.testing.assert_allclose(got,
                             np.where(x.mask & (x.group_id != 5)[:, None], x.rewards[:, None], 0),
                             rtol=1e-6)


def test_correction_weights_of_one_change_nothing_and_constant_ones_commute():
  ones = cases.on_device(cases.make(correction_weights=np.ones((10, 9))))
  by_row = cases.on_device(
      cases.make(correction_weights=np.repeat(np.linspace(0.2, 2, 10)[:, None], 9, 1)))
  for granularity in ("step", "turn"):
    plain, inside, outside = (AdvantageConfig("otb", importance=mode, granularity=granularity)
                              for mode in ("none", "inside_cumsum", "outside"))
    run = advantages.get_advantage("otb")
    for cfg in (inside, outside):
      np.testing.assert_allclose(run(ones, cfg), run(ones, plain), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run(by_row, inside), run(by_row, outside), rtol=1e-4, atol=1e-5)
    assert np.abs(run(by_row, inside) - run(by_row, plain)).max() > 0.01
