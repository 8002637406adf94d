"""Every estimator of the table against the contracts and the slow loop; every contract against a
wrong estimator.
"""

import importlib.util
import math
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from suites import quick_of

from jaxrl_llm.config import ConfigError, EstimatorConfig, from_dict
from jaxrl_llm.objective import estimators
from jaxrl_llm.objective.estimators import common, token
from jaxrl_llm.objective.estimators.registry import register
from jaxrl_llm.ops import masked, prefix
from jaxrl_llm.registry import ADVANTAGES, ESTIMATORS


def _load(path):
  spec = importlib.util.spec_from_file_location(path.stem + "_of_tests", path)
  sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


contracts = _load(Path(__file__).parent / "contracts.py")
reference = _load(Path(__file__).parent.parent / "reference" / "estimators.py")
reference_2026 = _load(Path(__file__).parent.parent / "reference" / "estimators_2026.py")
reference_groups = _load(Path(__file__).parent.parent / "reference" / "estimators_groups.py")

# Configurations beyond the defaults that the contracts and the slow loop also run on.
VARIANTS = [
    {
        "name": "ppo",
        "clip_high": 0.28,
        "dual_clip": 1.3
    },
    {
        "name": "ppo",
        "clip_low": None,
        "clip_high": None
    },
    {
        "name": "gspo",
        "clip_low": 0.05,
        "clip_high": None
    },
    {
        "name": "seq_is",
        "cap": 1.2
    },
    {
        "name": "ctpo",
        "log_dual": None
    },
    {
        "name": "ctpo",
        "log_low": None,
        "log_high": None,
        "log_dual": None
    },
    {
        "name": "ctpo",
        "power": 0.0,
        "log_low": 0.3,
        "log_high": 0.4,
        "log_dual": 0.6
    },
    {
        "name": "ctpo",
        "log_high": None,
        "log_dual": 0.2
    },
    {
        "name": "ctpo",
        "power": 1.0
    },
    {
        "name": "ctpo_geomean",
        "power": 0.0,
        "log_dual": None
    },
    {
        "name": "minpro",
        "cap_at_one": True
    },
    {
        "name": "minpro",
        "clip_low": 0.2,
        "clip_high": 0.1
    },
    {
        "name": "m2po",
        "m2_scope": "all"
    },
    {
        "name": "m2po",
        "m2_rule": "cap"
    },
    {
        "name": "m2po",
        "m2_rule": "cap",
        "min_low": 0.3,
        "min_high": 0.5
    },
    {
        "name": "m2po",
        "tau": None
    },
    {
        "name": "cispo",
        "clip_low": 0.3
    },
    {
        "name": "gmpo",
        "log_low": None,
        "log_high": 0.1
    },
    {
        "name": "topr",
        "cap": None
    },
    {
        "name": "dppo_tv",
        "delta_low": None,
        "delta_high": 0.05,
        "ratio_cap": 1.1
    },
    {
        "name": "dppo_kl",
        "ratio_cap": None
    },
    {
        "name": "cppo",
        "d": 0.05,
        "d_b": 0.0,
        "w_min": 0.5
    },
    {
        "name": "cppo",
        "d": 0.1,
        "adaptive": True
    },
    {
        "name": "dppo_tv",
        "mask_anchor": "recomputed",
        "delta_low": 0.05
    },
    {
        "name": "dppo_kl",
        "mask_anchor": "recomputed",
        "delta_high": 0.01
    },
    {
        "name": "dro",
        "span": "sequence"
    },
    {
        "name": "gspo",
        "span": "segment",
        "clip_low": 0.1,
        "clip_high": 0.2
    },
    {
        "name": "ipo",
        "delta": None
    },
    {
        "name": "kpop",
        "phi": 0.01,
        "kl_tau": 0.1
    },
    {
        "name": "drpo",
        "weighted": False,
        "eps": 0.2,
        "ratio_cap": 3.0
    },
    {
        "name": "drpo",
        "eps": 0.15
    },
    {
        "name": "ce_gppo",
        "beta_low": 0.25,
        "dual_clip": 1.3
    },
    {
        "name": "aspo",
        "cap": 1.2,
        "entropy_quantile": 0.5
    },
    {
        "name": "rec",
        "clip": "two_side",
        "weight": "clipped_ratio",
        "ring_high": 0.1
    },
    {
        "name": "rec",
        "clip": "one_side",
        "weight": "ratio",
        "k2": 0.05
    },
    {
        "name": "rec",
        "clip": "ring"
    },
    {
        "name": "rec",
        "clip": "one_side_row",
        "weight": "row_ratio",
        "clip_low": 0.05
    },
    {
        "name": "delight",
        "eta": 0.1
    },
    {
        "name": "prefix_power",
        "alpha": 0.25,
        "log_low": None,
        "log_high": None,
        "log_dual": None
    },
    {
        "name": "fipo",
        "high_only": False,
        "half_life": 2.0,
        "dual_clip": 1.4,
        "safety": 1.1
    },
    {
        "name": "fipo",
        "width": 3.0,
        "clip_low": None,
        "clip_high": None,
        "dual_clip": None,
        "max_dual": None
    },
    {
        "name": "geo_mask",
        "row_low": 0.9,
        "row_high": 1.2
    },
    {
        "name": "seq_mis",
        "row_low": 0.9,
        "row_high": None
    },
    {
        "name": "mis_po",
        "row_low": 0.8,
        "row_high": 1.5,
        "token_high": 1.3
    },
    {
        "name": "bapo",
        "contribution": "live",
        "target": 1.5
    },
    {
        "name": "bapo",
        "target": 0.9,
        "dual_clip": None
    },
    {
        "name": "clip_cov",
        "share": 0.1,
        "cov_low": 0.1
    },
    {
        "name": "clip_cov",
        "share": 1.0,
        "cov_low": -1.0,
        "clip_low": 0.2
    },
    {
        "name": "kl_cov",
        "share": 0.2
    },
    {
        "name": "tpo",
        "normalize": "mean",
        "eta": 0.5
    },
    {
        "name": "oapl",
        "beta": 0.2,
        "beta_value": 2.0
    },
    {
        "name": "qrpo",
        "transform": "identity"
    },
    {
        "name": "qrpo",
        "transform": "normal",
        "beta": 0.5
    },
    {
        "name": "real",
        "tau": 0.1
    },
]
CONFIGS = [EstimatorConfig(name) for name in estimators.names()
          ] + [EstimatorConfig(**v) for v in VARIANTS]
IDS = lambda cfg: cfg.name + "".join(f"-{k}={v}" for k, v in vars(cfg).items()
                                     if k != "name" and v != "default")


QUICK = {IDS(cfg) for cfg in CONFIGS if cfg.name in ("ctpo", "minpro")}
CONTRACTS = {f"{IDS(cfg)}-{check}": (cfg, check) for check in contracts.CHECKS for cfg in CONFIGS}
QUICK_CONTRACTS = {name for name, (cfg, check) in CONTRACTS.items() if IDS(cfg) in QUICK
                   or (cfg.name in ("sapo", "dro") and check == "constant_anchor")}


# Slow: each estimator with its published numbers. Nightly: the variants of its numbers.
DEFAULT = {IDS(EstimatorConfig(name)) for name in estimators.names()}


@pytest.mark.parametrize("cfg, check", quick_of(QUICK_CONTRACTS, CONTRACTS, slow={
    name for name, (cfg, _) in CONTRACTS.items() if IDS(cfg) in DEFAULT}))
def test_contract(cfg, check):
  if check == "zero_advantage" and estimators.spec(cfg.name).regularized:
    pytest.skip("regularized: its gradient does not vanish with the advantage")
  contracts.CHECKS[check](estimators.get_estimator(cfg.name), cfg)


LOOPS = {f"{IDS(cfg)}-{seed}": (cfg, seed) for seed in (0, 1, 2) for cfg in CONFIGS}
QUICK_LOOPS = {name for name, (_, seed) in LOOPS.items() if seed == 1}


@pytest.mark.parametrize("cfg, seed", quick_of(QUICK_LOOPS, LOOPS, slow={
    name for name, (cfg, _) in LOOPS.items() if IDS(cfg) in DEFAULT}))
def test_value_and_coefficient_equal_the_slow_loop(cfg, seed):
  c = contracts.case(seed, drift=(0.02, 0.3, 12.0)[seed])
  loss, coefficient = slow(cfg, c)
  value, gradient = fast(cfg, c)
  np.testing.assert_allclose(value, loss, rtol=2e-4, atol=1e-5)
  np.testing.assert_allclose(gradient, -coefficient, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("cfg", quick_of(QUICK, {IDS(cfg): (cfg,) for cfg in CONFIGS}, DEFAULT))
def test_float64_is_float64_throughout(cfg):
  """A single number held in f32 on the way would leave an error of 1e-8."""
  with jax.enable_x64(True):
    c = contracts.case(1)
    c = c.floats(np.float64)
    loss, coefficient = slow(cfg, c)
    value, gradient = fast(cfg, c)
  assert value.dtype == np.float64
  np.testing.assert_allclose(value, loss, rtol=1e-12, atol=1e-14)
  np.testing.assert_allclose(gradient, -coefficient, rtol=1e-12, atol=1e-14)


def slow(cfg, c):
  numbers = {
      k: v
      for k, v in vars(estimators.resolve(cfg)).items()
      if k in estimators.spec(cfg.name).defaults
  }
  arrays = (c.log_probs, c.anchor, c.advantages, c.mask)
  columns = {name: np.asarray(x) for name, x in c.columns(cfg).items()}
  for loops in (reference_2026, reference_groups):
    if cfg.name in loops.NAMES:
      return loops.evaluate(cfg.name, *arrays, columns, **numbers)
  return reference.evaluate(cfg.name, *arrays, **numbers)


def fast(cfg, c):
  """(per-token loss, 0 where masked; gradient of its sum)."""
  estimator = estimators.get_estimator(cfg.name)
  out = estimator(*c.arrays(), cfg, **c.columns(cfg))
  _, gradient = contracts.weighted(estimator, cfg, c, np.ones(c.mask.shape, c.log_probs.dtype))
  return np.where(c.mask, out.per_token_loss, 0), gradient


def test_the_slow_loop_covers_the_table():
  names = {*reference.NAMES, *reference_2026.NAMES, *reference_groups.NAMES}
  assert names == set(estimators.names())


# --- wrong estimators, each of which one contract must reject


def _leaky(log_probs, anchor_log_probs, advantages, mask, cfg):
  """No stop_gradient on the prefix: earlier tokens are credited again for every later one."""
  total = prefix.cumulative_log_ratio(common.masked_log_ratio(log_probs, anchor_log_probs, mask),
                                      mask)
  return common.output(-masked.masked(advantages, mask) * masked.masked(jnp.exp(total), mask), {})


def _absolute_position(log_probs, anchor_log_probs, advantages, mask, cfg):
  """Positions count columns, not policy tokens."""
  scale = jnp.arange(1, mask.shape[1] + 1) ** 0.5
  return common.output(_surrogate(jnp.broadcast_to(scale, mask.shape), log_probs, advantages, mask),
                       {})


def _unmasked_mean(log_probs, anchor_log_probs, advantages, mask, cfg):
  """A sequence mean over the padded width."""
  log_s = jnp.mean(common.masked_log_ratio(log_probs, anchor_log_probs, mask), -1, keepdims=True)
  return common.output(
      _surrogate(jnp.broadcast_to(jnp.exp(log_s), mask.shape), log_probs, advantages, mask), {})


def _across_rows(log_probs, anchor_log_probs, advantages, mask, cfg):
  """The prefix runs down the batch."""
  log_ratio = common.masked_log_ratio(log_probs, anchor_log_probs, mask)
  return common.output(_surrogate(jnp.exp(jnp.cumsum(log_ratio, 0)), log_probs, advantages, mask),
                       {})


def _batch_normalised(log_probs, anchor_log_probs, advantages, mask, cfg):
  """Weights divided by their mean over the rows at hand."""
  ratio = jnp.exp(common.masked_log_ratio(log_probs, anchor_log_probs, mask))
  return common.output(_surrogate(ratio / jnp.mean(ratio), log_probs, advantages, mask), {})


def _unbounded(log_probs, anchor_log_probs, advantages, mask, cfg):
  """exp before any bound."""
  log_ratio = masked.masked(log_probs, mask) - masked.masked(anchor_log_probs, mask)
  return common.output(_surrogate(jnp.exp(jnp.cumsum(log_ratio, -1)), log_probs, advantages, mask),
                       {})


def _mean_of_nothing(log_probs, anchor_log_probs, advantages, mask, cfg):
  """Divides by a count that may be 0."""
  log_ratio = common.masked_log_ratio(log_probs, anchor_log_probs, mask)
  log_s = jnp.sum(log_ratio, -1, keepdims=True) / jnp.sum(mask, -1, keepdims=True)
  return common.output(-advantages * jnp.exp(log_s) * log_probs, {})


def _always_pulls(log_probs, anchor_log_probs, advantages, mask, cfg):
  """A penalty that does not vanish with the advantage."""
  loss = _surrogate(jnp.ones_like(log_probs), log_probs, advantages, mask)
  return common.output(
      loss + 0.1 * jnp.square(common.masked_log_ratio(log_probs, anchor_log_probs, mask)), {})


def _pulls_the_anchor(log_probs, anchor_log_probs, advantages, mask, cfg):
  """A loss that could also fall by moving the anchor towards the policy."""
  difference = masked.masked(log_probs, mask) - masked.masked(anchor_log_probs, mask)
  return common.output(jnp.square(difference), {})


def _half_precision(log_probs, anchor_log_probs, advantages, mask, cfg):
  """The ratio is taken in the dtype that arrives."""
  ratio = jnp.exp(jnp.where(mask, log_probs - anchor_log_probs, 0))
  return common.output((-advantages * ratio).astype(jnp.float32), {})


def _device_local(log_probs, anchor_log_probs, advantages, mask, cfg):
  """Another answer inside jit (and so on a mesh) than eagerly."""
  traced = isinstance(jnp.sum(anchor_log_probs), jax.core.Tracer)
  return common.output(
      _surrogate(jnp.full_like(log_probs, 2.0 if traced else 1.0), log_probs, advantages, mask), {})


def _prepares_each_micro_batch(log_probs, anchor_log_probs, advantages, mask, cfg):
  """Takes every micro-batch for the whole optimizer batch."""
  return estimators.get_estimator("m2po")(log_probs, anchor_log_probs, advantages, mask,
                                          EstimatorConfig("m2po"))


def _surrogate(weight, log_probs, advantages, mask):
  return common.score_function_surrogate(lax.stop_gradient(weight), log_probs, advantages, mask)


@pytest.mark.slow
@pytest.mark.parametrize(("check", "wrong"), [("on_policy", _leaky), ("local_gradient", _leaky),
                                              ("padding", _unmasked_mean),
                                              ("holes", _absolute_position),
                                              ("row_order", _across_rows),
                                              ("micro_batches", _batch_normalised),
                                              ("micro_batches", _prepares_each_micro_batch),
                                              ("devices", _device_local),
                                              ("masked", _mean_of_nothing),
                                              ("extremes", _unbounded),
                                              ("zero_advantage", _always_pulls),
                                              ("constant_anchor", _pulls_the_anchor),
                                              ("full_precision", _half_precision)])
def test_contract_rejects_a_wrong_estimator(check, wrong):
  with pytest.raises(AssertionError):
    contracts.CHECKS[check](wrong, EstimatorConfig("reinforce"))


@pytest.mark.parametrize("name", [n for n in estimators.names() if estimators.spec(n).on_policy])
def test_a_declared_on_policy_coefficient_is_not_the_advantage(name):
  """REINFORCE, which is right where nothing is declared, is rejected."""
  def plain(*arrays, **further):
    return estimators.get_estimator("reinforce")(*arrays[:4], EstimatorConfig("reinforce"))

  cfg = EstimatorConfig(name, **({"share": 0.5, "cov_low": 0.0} if name == "clip_cov" else {}))
  contracts.CHECKS["on_policy"](estimators.get_estimator(name), cfg)
  with pytest.raises(AssertionError, match="declared"):
    contracts.CHECKS["on_policy"](plain, cfg)


def test_every_contract_has_a_wrong_estimator():
  marks = test_contract_rejects_a_wrong_estimator.pytestmark[0].args[1]
  assert {check for check, _ in marks} == set(contracts.CHECKS)


# --- hand-computed


def _one_row(name, ratios, advantage, **numbers):
  """(per-token loss + its score-function part removed, gradient) of one row with all log-probs -1.
  """
  n = len(ratios)
  log_probs = jnp.full((1, n), -1.0)
  anchor = log_probs - jnp.log(jnp.asarray([ratios]))
  cfg = EstimatorConfig(name, **numbers)
  advantages, mask = jnp.broadcast_to(jnp.asarray(advantage, jnp.float32), (1, n)), jnp.ones((1, n),
                                                                                             bool)
  loss = lambda lp: estimators.get_estimator(name)(lp, anchor, advantages, mask, cfg)
  return np.asarray(jax.grad(lambda lp: loss(lp).per_token_loss.sum())(log_probs))[0]


def test_ppo_by_hand():
  np.testing.assert_allclose(_one_row("ppo", [0.5, 1.1, 1.3], 2.0), [-1.0, -2.2, 0.0], rtol=1e-6)
  np.testing.assert_allclose(_one_row("ppo", [0.5, 1.1, 4.0], -2.0, dual_clip=3.0), [0.0, 2.2, 0.0],
                             rtol=1e-6)


def test_ctpo_window_by_hand():
  """Upper log window 0.05 sqrt(t): equal steps of 0.04 leave it at t = 2 (0.08 > 0.0707)."""
  step = math.exp(0.04)
  gradient = _one_row("ctpo", [step] * 4, 1.0)
  np.testing.assert_allclose(gradient, [-step, 0.0, 0.0, 0.0], rtol=1e-6)
  down = _one_row("ctpo", [math.exp(-0.02), 1.0, math.exp(-0.03)], -1.0)
  np.testing.assert_allclose(down, [math.exp(-0.02), math.exp(-0.02), 0.0], rtol=1e-6)


def test_minpro_by_hand():
  np.testing.assert_allclose(_one_row("minpro", [1.2, 0.5, 2.0, 1.0], 1.0),
                             [-1.2, -0.6, -1.0, -0.5], rtol=1e-6)
  capped = _one_row("minpro", [1.2, 0.5, 2.0], 1.0, cap_at_one=True)
  np.testing.assert_allclose(capped, [-1.2, -0.5, -1.0], rtol=1e-6)


def test_sequence_ratios_by_hand():
  np.testing.assert_allclose(_one_row("seq_is", [0.5, 4.0], 1.0), [-2.0, -2.0], rtol=1e-6)
  np.testing.assert_allclose(_one_row("seq_is", [0.5, 4.0], 1.0, cap=1.5), [-1.5, -1.5], rtol=1e-6)
  np.testing.assert_allclose(_one_row("gspo", [1.0, 0.9998], 1.0), [-0.9999, -0.9999], rtol=1e-5)
  np.testing.assert_allclose(_one_row("gspo", [1.0, 1.01], 1.0), [0.0, 0.0])
  gmpo = _one_row("gmpo", [2.0, 1.0, 0.5], 1.0)
  s = math.exp((0.4 + math.log(0.5)) / 3)
  np.testing.assert_allclose(gmpo, [0.0, -s, -s], rtol=1e-6)
  np.testing.assert_allclose(_one_row("topr", [0.5, 4.0], -1.0), [1.0, 1.0], rtol=1e-6)
  np.testing.assert_allclose(_one_row("vespo", [0.5, 1.0], 1.0), [-0.25 * math.exp(1.5)] * 2,
                             rtol=1e-6)


def test_gspo_with_token_advantages_is_gspo_token():
  """s_t = stop_gradient(s) pi_t / stop_gradient(pi_t): each token's own advantage, the row's ratio.
  """
  advantages = jnp.asarray([[1.0, -2.0, 0.5]])
  ratios = [1.0003, 1.0, 0.9998]
  s = math.prod(ratios) ** (1 / 3)
  np.testing.assert_allclose(_one_row("gspo", ratios, advantages), -s * np.asarray(advantages[0]),
                             rtol=1e-6)
  above = _one_row("gspo", [1.002, 1.002, 1.002], advantages)
  # clipped only where A is positive
  np.testing.assert_allclose(above, [0.0, 2.0 * 1.002, 0.0], rtol=1e-6)


def test_m2po_by_hand():
  """Of all tokens: squares 0.01, 0.04, 0.09, 0.16: their mean is 0.075; without the last 0.047, and
  then 0.025 < 0.04.
  """
  ratios = np.exp([0.1, -0.2, 0.3, -0.4])
  everywhere = _one_row("m2po", ratios, 1.0, m2_scope="all")
  np.testing.assert_allclose(everywhere, [-ratios[0], -ratios[1], 0, 0], rtol=1e-6)
  # by default only rises count and can go: 0.01 and 0.09, mean 0.05
  away = _one_row("m2po", ratios, 1.0)
  np.testing.assert_allclose(away, [-ratios[0], -ratios[1], 0, -ratios[3]], rtol=1e-6)
  # equals go together
  np.testing.assert_allclose(_one_row("m2po", [math.exp(0.3)] * 2, 1.0), [0.0, 0.0])
  np.testing.assert_allclose(_one_row("m2po", ratios, 1.0, tau=None), -ratios, rtol=1e-6)


def test_m2po_counts_what_it_drops():
  ratios = jnp.asarray([[0.1, -0.2, 0.3, -0.4, 5.0]])
  mask = jnp.asarray([[True] * 4 + [False]])
  out = estimators.get_estimator("m2po")(ratios, jnp.zeros_like(ratios), jnp.ones_like(ratios),
                                         mask, EstimatorConfig("m2po", m2_scope="all"))
  counts = {name: (float(m.total), float(m.count)) for name, m in out.metrics.items()}
  assert counts == {
      "clip/high": (1, 4),
      "clip/low": (1, 4),
      "clip/dual": (0, 4),
      "clip/dropped": (2, 4)
  }
  np.testing.assert_array_equal(out.per_token_loss[0, 2:], 0.0)


# --- the registry


def test_registry_refuses():
  with pytest.raises(ConfigError, match="registered are aspo, bapo"):
    estimators.get_estimator("nope")
  with pytest.raises(ConfigError, match="does not read it"):
    estimators.resolve(EstimatorConfig("reinforce", clip_low=0.1))
  with pytest.raises(ValueError, match="registered already"):
    register("ppo")(lambda *a: None)
  with pytest.raises(ValueError, match="a number is a bool, an int, a float, a text or None"):
    register("other", bounds=(1.0, 2.0))
  with pytest.raises(ValueError, match="give a class of numbers or defaults"):
    register("other", token.Ppo, cap=2.0)
  with pytest.raises(ConfigError, match="power = 'none': float was expected"):
    estimators.resolve(EstimatorConfig("ctpo", power="none"))
  with pytest.raises(ConfigError, match="cap_at_one = 'yes': bool was expected"):
    estimators.resolve(EstimatorConfig("minpro", cap_at_one="yes"))
  with pytest.raises(ConfigError, match=r"clip_low = -3\.0: out of range"):  # also in Python
    estimators.resolve(EstimatorConfig("ppo", clip_low=-3.0))
  assert estimators.resolve(EstimatorConfig("ppo", clip_low=np.float32(0.5))).clip_low == 0.5
  with pytest.raises(ConfigError, match="allowed are 'away', 'all'"):
    estimators.resolve(EstimatorConfig("m2po", m2_scope="some"))


def unlisted(table) -> list[str]:
  """Methods of the package whose module the table does not name, so that all are imported."""
  return [name for name in table.names()
          if (module := table[name].function.__module__).startswith("jaxrl_llm.")
          and table.files.get(name) != module]


def test_methods_are_imported_by_their_names(monkeypatch):
  assert unlisted(ESTIMATORS) == unlisted(ADVANTAGES) == []
  monkeypatch.delitem(ESTIMATORS.files, "sapo")
  assert unlisted(ESTIMATORS) == ["sapo"] and estimators.spec("sapo").where


def test_m2po_refuses_a_bound_that_drops_every_token():
  with pytest.raises(ConfigError, match=r"estimator\.tau = 0\.0: out of range"):
    from_dict({"estimator": {"name": "m2po", "tau": 0.0}})
  for tau in (1e-6, "none"):
    assert from_dict({"estimator": {"name": "m2po", "tau": tau}})
  with pytest.raises(ConfigError, match=r"estimator\.tau = 0\.0: out of range"):  # also in Python
    _one_row("m2po", np.ones(3), 1.0, tau=0.0, m2_scope="all")


def test_the_window_of_m2po_by_hand():
  """Rises of .1, .3 and .4 have the mean 0.087 of squares; capped at the first 0.01, at the second
  0.063: the window ends at .1, where the token lives. A fall is never dropped.
  """
  ratios = np.exp([0.1, 0.3, 0.4, -0.6])
  capped = _one_row("m2po", ratios, 1.0, m2_rule="cap")
  np.testing.assert_allclose(capped, [-ratios[0], 0, 0, -ratios[3]], rtol=1e-6)
  floors = _one_row("m2po", ratios, 1.0, m2_rule="cap", min_low=0.3, min_high=0.4)
  np.testing.assert_allclose(floors, [-ratios[0], -ratios[1], 0, -ratios[3]], rtol=1e-6)
  down = _one_row("m2po", ratios, -1.0, m2_rule="cap")  # one fall, above the budget: it goes
  np.testing.assert_allclose(down, [*ratios[:3], 0], rtol=1e-6)
  np.testing.assert_allclose(_one_row("m2po", ratios, 1.0, m2_rule="cap", tau=0.1), -ratios,
                             rtol=1e-6)


def test_batch_statistics_are_declared():
  declared = {n for n in estimators.names() if estimators.spec(n).batch_statistics}
  assert declared == {"bapo", "clip_cov", "kl_cov", "m2po", *reference_groups.NAMES}
  for name in estimators.names():
    assert (estimators.get_estimator(name).prepare is not None) == (name in declared)


def test_columns_are_declared_and_asked_for():
  always = {n: set(estimators.spec(n).columns) for n in estimators.names()
            if estimators.spec(n).columns}
  assert always == {"aspo": {"entropy"}, "clip_cov": {"row_id"},
                    "qrpo": {"group_id", "ref_log_probs"},
                    **{name: {"group_id"} for name in ("gvpo", "oapl", "real", "tpo")}}
  assert estimators.required(EstimatorConfig("gspo")) == set()
  assert estimators.required(EstimatorConfig("gspo", span="segment")) == {"turn_id"}
  assert estimators.required(EstimatorConfig("dppo_kl", mask_anchor="recomputed")) == {
      "recomputed_log_probs"}
  with pytest.raises(ValueError, match=r"'aspo' reads \['entropy'\] with these numbers; it got"):
    _one_row("aspo", [1.0], 1.0)
  with pytest.raises(ValueError, match=r"reads the columns \['entropie'\]; allowed are"):
    register("other", columns={"entropie"})


def test_rec_without_a_pull_has_no_gradient_where_the_advantage_is_zero():
  contracts.CHECKS["zero_advantage"](estimators.get_estimator("rec"), EstimatorConfig("rec"))
  with pytest.raises(AssertionError):
    contracts.CHECKS["zero_advantage"](estimators.get_estimator("rec"),
                                       EstimatorConfig("rec", k2=0.1))


def test_unset_is_the_default_and_none_is_no_bound():
  assert estimators.resolve(EstimatorConfig("ppo")).clip_high == 0.2
  assert estimators.resolve(EstimatorConfig("ppo", clip_high=None)).clip_high is None
  assert estimators.resolve(EstimatorConfig("ppo", clip_high="none")).clip_high is None
