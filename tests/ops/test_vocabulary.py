"""Vocabulary rules against loops in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.ops import vocabulary

RULES = [
    {},
    {"min_p": 0.0},
    {"min_p": 0.2},
    {"min_p": 1.0},
    {"top_k": 0},
    {"top_k": 1},
    {"top_k": 4},
    {"top_k": 99},
    {"top_p": 1.0},
    {"top_p": 0.6},
    {"top_p": 0.0},
    {"top_k": 4, "top_p": 0.7},
    {"top_k": 5, "min_p": 0.1},
    {"top_p": 0.9, "min_p": 0.3},
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


@pytest.mark.parametrize("rules,on", [
    ({}, False),
    ({"top_k": 0, "top_p": 1.0, "min_p": 0.0}, False),
    ({"top_k": 1}, True),
    ({"top_p": 0.9}, True),
    ({"min_p": 1e-6}, True),
], ids=str)
def test_active(rules, on):
  assert vocabulary.active(**rules) == on


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
