"""Every estimator against the contracts and the slow loop; every contract against a wrong one."""

import math

import contracts
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from reference import estimators as reference
from reference import estimators_groups
from suites import quick_of

from jaxrl_llm.config import ConfigError, EstimatorConfig, from_dict
from jaxrl_llm.objective import estimators
from jaxrl_llm.objective.estimators import common, token
from jaxrl_llm.objective.estimators.registry import register
from jaxrl_llm.ops import masked, prefix
from jaxrl_llm.registry import ADVANTAGES, ESTIMATORS

# Configurations beyond the defaults that the contracts and the slow loop also run on.
VARIANTS = [
    EstimatorConfig("ppo", clip_high=0.28, dual_clip=1.3),
    EstimatorConfig("ppo", clip_low=None, clip_high=None),
    EstimatorConfig("gspo", clip_low=0.05, clip_high=None),
    EstimatorConfig("seq_is", cap=1.2),
    EstimatorConfig("ctpo", log_dual=None),
    EstimatorConfig("ctpo", log_low=None, log_high=None, log_dual=None),
    EstimatorConfig("ctpo", power=0.0, log_low=0.3, log_high=0.4, log_dual=0.6),
    EstimatorConfig("ctpo", log_high=None, log_dual=0.2),
    EstimatorConfig("ctpo", power=1.0),
    EstimatorConfig("ctpo_geomean", power=0.0, log_dual=None),
    EstimatorConfig("minpro", cap_at_one=True),
    EstimatorConfig("minpro", clip_low=0.2, clip_high=0.1),
    EstimatorConfig("m2po", m2_scope="all"),
    EstimatorConfig("m2po", m2_rule="cap"),
    EstimatorConfig("m2po", m2_rule="cap", min_low=0.3, min_high=0.5),
    EstimatorConfig("m2po", tau=None),
    EstimatorConfig("cispo", clip_low=0.3),
    EstimatorConfig("gmpo", log_low=None, log_high=0.1),
    EstimatorConfig("topr", cap=None),
    EstimatorConfig("dppo_tv", delta_low=None, delta_high=0.05, ratio_cap=1.1),
    EstimatorConfig("dppo_kl", ratio_cap=None),
    EstimatorConfig("cppo", d=0.05, d_b=0.0, w_min=0.5),
    EstimatorConfig("cppo", d=0.1, adaptive=True),
    EstimatorConfig("dppo_tv", mask_anchor="recomputed", delta_low=0.05),
    EstimatorConfig("dppo_kl", mask_anchor="recomputed", delta_high=0.01),
    EstimatorConfig("dro", span="sequence"),
    EstimatorConfig("gspo", span="segment", clip_low=0.1, clip_high=0.2),
    EstimatorConfig("ipo", delta=None),
    EstimatorConfig("kpop", phi=0.01, kl_tau=0.1),
    EstimatorConfig("drpo", weighted=False, eps=0.2, ratio_cap=3.0),
    EstimatorConfig("drpo", eps=0.15),
    EstimatorConfig("ce_gppo", beta_low=0.25, dual_clip=1.3),
    EstimatorConfig("aspo", cap=1.2, entropy_quantile=0.5),
    EstimatorConfig("rec", clip="two_side", weight="clipped_ratio", ring_high=0.1),
    EstimatorConfig("rec", clip="one_side", weight="ratio", k2=0.05),
    EstimatorConfig("rec", clip="ring"),
    EstimatorConfig("rec", clip="one_side_row", weight="row_ratio", clip_low=0.05),
    EstimatorConfig("delight", eta=0.1),
    EstimatorConfig("prefix_power", alpha=0.25, log_low=None, log_high=None, log_dual=None),
    EstimatorConfig("fipo", high_only=False, half_life=2.0, dual_clip=1.4, safety=1.1),
    EstimatorConfig("fipo", width=3.0, clip_low=None, clip_high=None, dual_clip=None,
                    max_dual=None),
    EstimatorConfig("geo_mask", row_low=0.9, row_high=1.2),
    EstimatorConfig("seq_mis", row_low=0.9, row_high=None),
    EstimatorConfig("mis_po", row_low=0.8, row_high=1.5, token_high=1.3),
    EstimatorConfig("bapo", contribution="live", target=1.5),
    EstimatorConfig("bapo", target=0.9, dual_clip=None),
    EstimatorConfig("clip_cov", share=0.1, cov_low=0.1),
    EstimatorConfig("clip_cov", share=1.0, cov_low=-1.0, clip_low=0.2),
    EstimatorConfig("kl_cov", share=0.2),
    EstimatorConfig("tpo", normalize="mean", eta=0.5),
    EstimatorConfig("oapl", beta=0.2, beta_value=2.0),
    EstimatorConfig("qrpo", transform="identity"),
    EstimatorConfig("qrpo", transform="normal", beta=0.5),
    EstimatorConfig("real", tau=0.1),
]
CONFIGS = [*map(EstimatorConfig, estimators.names()), *VARIANTS]
IDS = lambda cfg: "-".join([cfg.name, *(f"{name}={value}" for name, value in cfg.given)])
QUICK = {"ctpo", "minpro"}
# Slow: each estimator with its published numbers. Nightly: the variants of its numbers.
DEFAULT = set(estimators.names())
CONTRACTS = {f"{IDS(cfg)}-{check}": (cfg, check) for check in contracts.CHECKS for cfg in CONFIGS}
QUICK_CONTRACTS = {name for name, (cfg, check) in CONTRACTS.items() if IDS(cfg) in QUICK
                   or (cfg.name in ("sapo", "dro") and check == "constant_anchor")}


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
  numbers = {name: getattr(estimators.resolve(cfg), name)
             for name in estimators.spec(cfg.name).defaults}
  columns = {name: np.asarray(x) for name, x in c.columns(cfg).items()}
  loops = estimators_groups if cfg.name in estimators_groups.NAMES else reference
  return loops.evaluate(cfg.name, c.log_probs, c.anchor, c.advantages, c.mask, columns, **numbers)


def fast(cfg, c):
  """(per-token loss, 0 where masked; gradient of its sum)."""
  estimator = estimators.get_estimator(cfg.name)
  out = estimator(*c.arrays(), cfg, **c.columns(cfg))
  _, gradient = contracts.weighted(estimator, cfg, c, np.ones(c.mask.shape, c.log_probs.dtype))
  return np.where(c.mask, out.per_token_loss, 0), gradient


def test_the_slow_loop_covers_the_table():
  assert {*reference.NAMES, *estimators_groups.NAMES} == set(estimators.names())


# --- wrong estimators, each of which one contract must reject


def _leaky(log_probs, anchor_log_probs, advantages, mask, cfg):
  """No stop_gradient on the prefix: earlier tokens are credited again for every later one."""
  total = prefix.cumulative_log_ratio(common.masked_log_ratio(log_probs, anchor_log_probs, mask),
                                      mask)
  return common.output(-masked.masked(advantages, mask) * masked.masked(jnp.exp(total), mask), {})


def _weighing(weight):
  """An estimator that weighs A log pi by `weight(log_ratio, mask)`."""

  def estimator(log_probs, anchor_log_probs, advantages, mask, cfg):
    weights = weight(common.masked_log_ratio(log_probs, anchor_log_probs, mask), mask)
    return common.output(_surrogate(jnp.broadcast_to(weights, mask.shape), log_probs, advantages,
                                    mask), {})

  return estimator


# Positions count columns, not policy tokens.
_absolute_position = _weighing(lambda _, mask: jnp.arange(1, mask.shape[1] + 1) ** 0.5)
# A sequence mean over the padded width.
_unmasked_mean = _weighing(lambda log_ratio, _: jnp.exp(jnp.mean(log_ratio, -1, keepdims=True)))
# The prefix runs down the batch.
_across_rows = _weighing(lambda log_ratio, _: jnp.exp(jnp.cumsum(log_ratio, 0)))
# Weights divided by their sum over the rows at hand.
_batch_normalised = _weighing(lambda log_ratio, _: jax.nn.softmax(log_ratio, (0, 1)))
# Another answer inside jit (and so on a mesh) than eagerly.
_device_local = _weighing(lambda _, mask: 1.0 + isinstance(jnp.sum(mask), jax.core.Tracer))


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


def _prepares_each_micro_batch(log_probs, anchor_log_probs, advantages, mask, cfg):
  """Takes every micro-batch for the whole optimizer batch."""
  return estimators.get_estimator("m2po")(log_probs, anchor_log_probs, advantages, mask,
                                          EstimatorConfig("m2po"))


def _surrogate(weight, log_probs, advantages, mask):
  return common.score_function_surrogate(lax.stop_gradient(weight), log_probs, advantages, mask)


@pytest.mark.slow
@pytest.mark.parametrize(("check", "wrong"), [
    ("on_policy", _leaky), ("local_gradient", _leaky), ("padding", _unmasked_mean),
    ("holes", _absolute_position), ("row_order", _across_rows),
    ("micro_batches", _batch_normalised), ("micro_batches", _prepares_each_micro_batch),
    ("devices", _device_local), ("masked", _mean_of_nothing), ("extremes", _unbounded),
    ("zero_advantage", _always_pulls), ("constant_anchor", _pulls_the_anchor),
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
  """The gradient of one row with all log-probs -1."""
  log_probs = jnp.full((1, len(ratios)), -1.0)
  anchor, mask = log_probs - jnp.log(jnp.asarray([ratios])), jnp.ones(log_probs.shape, bool)
  advantages = jnp.broadcast_to(jnp.asarray(advantage, jnp.float32), mask.shape)

  def loss(log_probs):
    return jnp.sum(estimators.get_estimator(name)(log_probs, anchor, advantages, mask,
                                                  EstimatorConfig(name, **numbers)).per_token_loss)

  return np.asarray(jax.grad(loss)(log_probs))[0]


SQUARES = np.exp([0.1, -0.2, 0.3, -0.4])
RISES = np.exp([0.1, 0.3, 0.4, -0.6])
GMPO = math.exp((0.4 + math.log(0.5)) / 3)
OF_TOKENS = np.array([1.0, -2.0, 0.5])  # advantages
# (name, numbers, ratios, advantage, gradient)
BY_HAND = [
    ("ppo", {}, [0.5, 1.1, 1.3], 2.0, [-1.0, -2.2, 0.0]),
    ("ppo", {"dual_clip": 3.0}, [0.5, 1.1, 4.0], -2.0, [0.0, 2.2, 0.0]),
    # Upper log window 0.05 sqrt(t): equal steps of 0.04 leave it at t = 2 (0.08 > 0.0707).
    ("ctpo", {}, np.exp([0.04] * 4), 1.0, [-math.exp(0.04), 0, 0, 0]),
    ("ctpo", {}, np.exp([-0.02, 0, -0.03]), -1.0, [math.exp(-0.02), math.exp(-0.02), 0]),
    ("minpro", {}, [1.2, 0.5, 2.0, 1.0], 1.0, [-1.2, -0.6, -1.0, -0.5]),
    ("minpro", {"cap_at_one": True}, [1.2, 0.5, 2.0], 1.0, [-1.2, -0.5, -1.0]),
    ("seq_is", {}, [0.5, 4.0], 1.0, [-2.0, -2.0]),
    ("seq_is", {"cap": 1.5}, [0.5, 4.0], 1.0, [-1.5, -1.5]),
    ("gspo", {}, [1.0, 0.9998], 1.0, [-(0.9998**0.5)] * 2),
    ("gspo", {}, [1.0, 1.01], 1.0, [0.0, 0.0]),
    # GSPO-token, s_t = sg(s) pi_t / sg(pi_t): each token's own advantage, the row's ratio.
    ("gspo", {}, [1.0003, 1.0, 0.9998], OF_TOKENS, -((1.0003 * 0.9998) ** (1 / 3)) * OF_TOKENS),
    ("gspo", {}, [1.002] * 3, OF_TOKENS, [0.0, 2.0 * 1.002, 0.0]),  # clipped where A is positive
    ("gmpo", {}, [2.0, 1.0, 0.5], 1.0, [0.0, -GMPO, -GMPO]),
    ("topr", {}, [0.5, 4.0], -1.0, [1.0, 1.0]),
    ("vespo", {}, [0.5, 1.0], 1.0, [-0.25 * math.exp(1.5)] * 2),
    # 0.01, 0.04, 0.09, 0.16: their mean is 0.075; without the last 0.047, and then 0.025 < 0.04.
    ("m2po", {"m2_scope": "all"}, SQUARES, 1.0, -SQUARES * [1, 1, 0, 0]),
    # By default only rises count and can go: 0.01 and 0.09, mean 0.05. Equals go together.
    ("m2po", {}, SQUARES, 1.0, -SQUARES * [1, 1, 0, 1]),
    ("m2po", {}, np.exp([0.3, 0.3]), 1.0, [0.0, 0.0]),
    ("m2po", {"tau": None}, SQUARES, 1.0, -SQUARES),
    # Rises of .1, .3, .4 have the mean 0.087 of squares; capped at the first 0.01, at the second
    # 0.063: the window ends at .1, where the token lives. A fall is never dropped.
    ("m2po", {"m2_rule": "cap"}, RISES, 1.0, -RISES * [1, 0, 0, 1]),
    ("m2po", {"m2_rule": "cap", "min_low": 0.3, "min_high": 0.4}, RISES, 1.0,
     -RISES * [1, 1, 0, 1]),
    ("m2po", {"m2_rule": "cap"}, RISES, -1.0, RISES * [1, 1, 1, 0]),  # a fall above the budget
    ("m2po", {"m2_rule": "cap", "tau": 0.1}, RISES, 1.0, -RISES),
]


@pytest.mark.parametrize(("name", "numbers", "ratios", "advantage", "gradient"), BY_HAND)
def test_gradients_by_hand(name, numbers, ratios, advantage, gradient):
  row = _one_row(name, ratios, advantage, **numbers)
  np.testing.assert_allclose(row, gradient, rtol=1e-6)


def test_m2po_counts_what_it_drops():
  ratios = jnp.asarray([[0.1, -0.2, 0.3, -0.4, 5.0]])
  mask = jnp.asarray([[True] * 4 + [False]])
  out = estimators.get_estimator("m2po")(ratios, jnp.zeros_like(ratios), jnp.ones_like(ratios),
                                         mask, EstimatorConfig("m2po", m2_scope="all"))
  counts = {name: (float(m.total), float(m.count)) for name, m in out.metrics.items()}
  assert counts == {"clip/high": (1, 4), "clip/low": (1, 4), "clip/dual": (0, 4),
                    "clip/dropped": (2, 4)}
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
  with pytest.raises(ConfigError, match=r"estimator\.tau = 0\.0: out of range"):
    from_dict({"estimator": {"name": "m2po", "tau": 0.0}})  # it would drop every token
  with pytest.raises(ConfigError, match=r"estimator\.tau = 0\.0: out of range"):  # also in Python
    estimators.resolve(EstimatorConfig("m2po", tau=0.0))
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
