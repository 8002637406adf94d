"""Vocabulary rules against loops in float64, and what pruning does to a distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.ops import vocabulary

RULES = [
    {}, {"min_p": 0.0}, {"min_p": 0.2}, {"min_p": 1.0},
    {"top_k": 0}, {"top_k": 1}, {"top_k": 4}, {"top_k": 99},
    {"top_p": 1.0}, {"top_p": 0.6}, {"top_p": 0.0},
    {"top_k": 4, "top_p": 0.7}, {"top_k": 5, "min_p": 0.1}, {"top_p": 0.9, "min_p": 0.3},
    {"top_k": 6, "top_p": 0.8, "min_p": 0.15},
]


def softmax(z):
  z = np.asarray(z, np.float64)
  p = np.exp(z - z.max(-1, keepdims=True))
  return p / p.sum(-1, keepdims=True)


def loop(z, top_k=0, top_p=1.0, min_p=0.0):
  """The kept tokens of one distribution without ties: top-k, then top-p, then min-p."""
  p = softmax(z)
  order = [int(i) for i in np.argsort(-p, kind="stable")]
  if top_k:
    order = order[:top_k]
  mass, kept = sum(p[i] for i in order), []
  for i in order:
    if top_p < 1 and kept and sum(p[j] for j in kept) >= top_p * mass:
      break
    kept.append(i)
  return np.isin(np.arange(len(z)), [i for i in kept if p[i] >= min_p * p.max()])


@pytest.fixture(scope="module")
def logits():
  return jnp.asarray(2 * np.random.default_rng(0).standard_normal((40, 13)), jnp.float32)


@pytest.mark.parametrize("rules", RULES, ids=str)
def test_support_equals_the_loop(logits, rules):
  np.testing.assert_array_equal(vocabulary.support(logits, **rules),
                                [loop(z, **rules) for z in logits])


def test_order_of_the_rules_shows(logits):
  """Top-p before top-k, on the whole distribution, would keep other tokens."""
  swapped = vocabulary.support(logits, top_k=4) & vocabulary.support(logits, top_p=0.7)
  assert np.any(swapped != vocabulary.support(logits, top_k=4, top_p=0.7))


def test_equal_logits_are_kept_or_removed_together():
  z = jnp.asarray([1.0, 3.0, 2.0, 2.0, 0.0, 2.0])
  tied = [False, True, True, True, False, True]
  np.testing.assert_array_equal(vocabulary.support(z, top_k=2), tied)
  np.testing.assert_array_equal(vocabulary.support(z, top_p=0.6), tied)
  np.testing.assert_array_equal(vocabulary.support(jnp.zeros(4), top_k=1, top_p=0.1, min_p=1.0),
                                [True] * 4)


def test_sorts_only_where_asked():
  z = jnp.zeros((2, 5))

  def sorts(**rules):
    return "sort" in str(jax.make_jaxpr(lambda z, r: vocabulary.support(z, **r))(z, rules))

  assert not sorts(min_p=0.1) and not sorts()
  assert sorts(top_k=3) and sorts(top_p=0.5)
  jaxpr = jax.make_jaxpr(lambda z, p: vocabulary.support(z, top_p=p))(z, 0.5).jaxpr
  names = {equation.primitive.name for equation in jaxpr.eqns}
  assert "cond" in names and "sort" not in names, "the sort is inside the branch"


def test_active():
  assert not vocabulary.active() and not vocabulary.active(top_k=0, top_p=1.0, min_p=0.0)
  assert all(vocabulary.active(**rule) for rule in ({"top_k": 1}, {"top_p": 0.9}, {"min_p": 1e-6}))


def test_pruned_logits_are_finite_and_their_gradient_is_zero_outside(logits):
  keep = vocabulary.support(logits, min_p=0.2)

  @jax.value_and_grad
  def entropy(z):
    z = vocabulary.prune(z, vocabulary.support(z, min_p=0.2))
    return -jnp.sum(jax.nn.softmax(z) * jax.nn.log_softmax(z))

  value, gradient = entropy(logits)
  assert np.isfinite(value) and np.all(np.isfinite(gradient))
  assert np.all(np.asarray(gradient)[~keep] == 0) and np.any(np.asarray(gradient)[keep] != 0)
  p = jax.nn.softmax(vocabulary.prune(logits, keep))
  assert np.all(np.asarray(p)[~keep] == 0)
  np.testing.assert_allclose(np.sum(p, -1), 1, rtol=1e-6)


# What dynamic vocabulary pruning (arXiv 2512.23087) promises, in float64 on sets from the kernel.
# The constants of the bounds are derived here; the paper's are not known to us.

MIN_P = 0.05


def pruned(z, min_p=MIN_P):
  """(p, p_S, kept, Z)."""
  p = softmax(z)
  kept = np.asarray(vocabulary.support(jnp.asarray(z, jnp.float32), min_p=min_p))
  mass = np.sum(np.where(kept, p, 0), -1)
  return p, np.where(kept, p, 0) / mass[..., None], kept, mass


def states(seed, count=300, width=30, scale=2.0):
  return scale * np.random.default_rng(seed).standard_normal((count, width))


@pytest.mark.parametrize("bound", [0.01, 0.3, 1.0])
def test_mismatch_envelope(bound):
  """With logit noise within E, log p changes by at most log(p + (1 - p) e^{2E})."""
  z, rng = states(1, width=5), np.random.default_rng(2)
  p = softmax(z)
  envelope = np.log(p + (1 - p) * np.exp(2 * bound))
  assert np.all(envelope <= np.minimum(2 * bound, (1 - p) * np.expm1(2 * bound)) + 1e-12)
  first_order, beyond, tightest = 2 * bound * (1 - p), 0, 0.0
  noises = [bound * rng.uniform(-1, 1, z.shape) for _ in range(20)]
  # The worst noise lowers one token and raises all others.
  noises += [bound * (1 - 2 * (np.arange(z.shape[-1]) == k)) for k in range(z.shape[-1])]
  for noise in noises:
    gap = np.abs(np.log(softmax(z + noise)) - np.log(p))
    assert np.all(gap <= envelope + 1e-12)
    tightest = max(tightest, np.max(gap / envelope))
    beyond += np.sum(gap > first_order + 1e-12)
  assert tightest > 1 - 1e-9, "the envelope is attained"
  assert beyond > 0, "2 E (1 - p) is not a bound"


def test_distances_between_the_whole_and_the_pruned_distribution():
  """TV(p, p_S) = 1 - Z and KL(p_S || p) = -log Z."""
  p, p_s, kept, mass = pruned(states(3))
  np.testing.assert_allclose(0.5 * np.sum(np.abs(p - p_s), -1), 1 - mass, atol=1e-12)
  divergence = np.sum(np.where(kept, p_s * np.log(np.where(kept, p_s / p, 1)), 0), -1)
  np.testing.assert_allclose(divergence, -np.log(mass), atol=1e-12)
  assert np.max(1 - mass) > 0.05, "something is pruned"
  unnormalised = 0.5 * np.sum(np.abs(p - np.where(kept, p, 0)), -1)
  assert np.any(np.abs(unnormalised - (1 - mass)) > 1e-2), "renormalising matters"


@pytest.mark.parametrize("min_p", [0.01, 0.05, 0.3])
def test_tail_mass_bound(min_p):
  """1 - Z <= (|V| - |V_S|) min_p p_max."""
  p, _, kept, mass = pruned(states(4), min_p)
  bound = np.sum(~kept, -1) * min_p * np.max(p, -1)
  assert np.all(1 - mass <= bound + 1e-12)
  assert np.any(1 - mass > min_p * np.max(p, -1)), "one token's share does not bound the tail"


def test_ratio_identity_and_the_bias_of_one_sided_pruning():
  """On a common set pi_S / mu_S = (pi / mu) Z_mu / Z_pi has mean 1 under mu_S, pi / mu_S Z_pi."""
  z = states(5)
  mu, mu_s, kept, mass_mu = pruned(z)
  # A small step of the policy: rows whose set it changes are left out.
  pi, pi_s, kept_pi, mass_pi = pruned(z + 0.1 * np.random.default_rng(6).standard_normal(z.shape))
  same = np.all(kept == kept_pi, -1)
  assert 30 < np.sum(same) < len(z)
  ratio = np.divide(pi_s, mu_s, out=np.zeros_like(pi), where=kept)
  expected = np.where(kept, pi / mu * (mass_mu / mass_pi)[:, None], 0)
  np.testing.assert_allclose(ratio[same], expected[same], rtol=1e-12)
  np.testing.assert_allclose(np.sum(mu_s * ratio, -1)[same], 1, atol=1e-12)
  one_sided = np.divide(pi, mu_s, out=np.zeros_like(pi), where=kept)
  np.testing.assert_allclose(np.sum(mu_s * one_sided, -1)[same], mass_pi[same], atol=1e-12)
  assert np.min(mass_pi[same]) < 0.95, "the bias is visible"
  mean = np.sum(mu_s * ratio, -1)[~same]
  assert np.any(np.abs(mean - 1) > 1e-3), "unequal sets break the mean of 1"
