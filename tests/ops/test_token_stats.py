"""Chunked token statistics against the whole softmax."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suites import quick_for

from jaxrl_llm.ops import token_stats, vocabulary
from jaxrl_llm.types import TokenStats


def arrays(seed=0, rows=3, length=37, width=8, vocabulary=19):
  rng = np.random.default_rng(seed)
  return (jnp.asarray(rng.standard_normal((rows, length, width)), jnp.float32),
          jnp.asarray(rng.standard_normal((width, vocabulary)), jnp.float32),
          jnp.asarray(rng.integers(0, vocabulary, (rows, length))))


def as_float64(hidden, head, targets):
  return (*(jnp.asarray(np.asarray(x, np.float64)) for x in (hidden, head)), targets)


def at(x, targets):
  return jnp.take_along_axis(x, targets[..., None], -1)[..., 0]


def nothing_banned(targets):
  return jnp.zeros(19, bool), jnp.zeros(targets.shape, bool)


def full_stats(hidden, head, targets, rules, ids, where):
  """Every statistic from the logits of the whole batch at temperature 0.7; differentiable but for
  the set. Tokens `ids` are banned at `where`: they are left out of every sum.
  """
  logits = hidden @ head / 0.7
  allowed = ~(where[..., None] & ids)
  keep = allowed & vocabulary.support(jnp.where(allowed, logits, -jnp.inf), **rules)
  mass, p = jnp.sum(jnp.exp(logits), -1), jnp.where(keep, jnp.exp(logits), 0)
  p_s = p / jnp.sum(p, -1, keepdims=True)
  entropy = -jnp.sum(p_s * jnp.log(jnp.where(keep, p_s, 1)), -1)
  kept = jnp.sum(p, -1)
  return TokenStats(at(logits, targets) - jnp.log(kept), entropy, jnp.sum(p_s**2, -1),
                    kept / mass, at(keep, targets))


def cosines(targets):
  """Weights of both signs, one per token."""
  return jnp.cos(jnp.arange(targets.size)).reshape(targets.shape)


def total(stats, targets):
  """A loss that every statistic with a gradient enters."""
  inside = jnp.where(stats.in_support, stats.log_probs, 0)
  return jnp.sum(cosines(targets) * (inside + 0.3 * stats.entropy))


def slope(run, targets):
  """(hidden, head, ...) -> ((loss, statistics), gradients in hidden and head)."""

  def loss(*arguments):
    stats = run(*arguments)
    return total(stats, targets), stats

  return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))


@pytest.mark.parametrize("chunk", [1, 10, 64, 4096])
def test_chunks_change_neither_values_nor_gradients(monkeypatch, chunk):
  monkeypatch.setattr(token_stats, "CHUNK", chunk)
  hidden, head, targets = arrays()
  weights = cosines(targets)

  def chunked(hidden, head):
    out = token_stats.token_stats(hidden, head, targets, temperature=0.7,
                                  stats=frozenset({"entropy"}), entropy_gradient=True)
    return jnp.sum(weights * (out.log_probs + 0.3 * out.entropy))

  def direct(hidden, head):
    out = full_stats(hidden, head, targets, {}, *nothing_banned(targets))
    return jnp.sum(weights * (out.log_probs + 0.3 * out.entropy))

  got, expected = (jax.value_and_grad(f, (0, 1))(hidden, head) for f in (chunked, direct))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), got, expected)


def test_no_array_of_batch_by_vocabulary(monkeypatch):
  monkeypatch.setattr(token_stats, "CHUNK", 64)
  hidden, head, targets = arrays(rows=4, length=64, vocabulary=101)

  def loss(hidden, head):
    return jnp.sum(token_stats.token_stats(hidden, head, targets, temperature=1.0).log_probs)

  text = jax.jit(jax.grad(loss, (0, 1))).lower(hidden, head).compile().as_text()
  shapes = re.findall(r"f32\[([0-9,]+)\]", text)
  biggest = max(math.prod(map(int, shape.split(","))) for shape in shapes)
  assert biggest < targets.size * head.shape[1], "an array as large as the batch's logits exists"


ALL = frozenset({"log_probs", "entropy", "sum_pi_squared", "kept_mass", "in_support"})
RULES = [{"min_p": 0.1}, {"top_k": 3}, {"top_p": 0.8}, {"top_k": 5, "top_p": 0.9, "min_p": 0.02}]


@pytest.mark.parametrize("rules", quick_for(map(str, RULES[2:]), RULES))
def test_pruned_statistics_and_gradients(monkeypatch, rules):
  monkeypatch.setattr(token_stats, "CHUNK", 32)
  with jax.enable_x64(True):
    hidden, head, targets = as_float64(*arrays(seed=1))

    def chunked(hidden, head, **rules):
      return token_stats.token_stats(hidden, head, targets, temperature=0.7, stats=ALL,
                                     entropy_gradient=True, **rules)

    def direct(hidden, head):
      return full_stats(hidden, head, targets, rules, *nothing_banned(targets))

    got, expected = (slope(run, targets)(hidden, head)
                     for run in (functools.partial(chunked, **rules), direct))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), got, expected)
    assert {x.dtype for x in jax.tree.leaves(got)} == {np.dtype("float64"), np.dtype("bool")}
    pruned, unpruned = got[0][1], chunked(hidden, head)
  assert not np.all(pruned.in_support) and np.any(pruned.in_support)
  for name in ALL - {"in_support"}:
    change = np.abs(getattr(unpruned, name) - getattr(pruned, name))
    assert np.any(change > 1e-2), f"{name} notices the pruning"


WRONG = {
    "everywhere": lambda ids, where: (ids, where | True),
    "nowhere": lambda ids, where: (ids, where & False),
    "one place on": lambda ids, where: (ids, jnp.roll(where, 1, 1)),
    "another token": lambda ids, where: (jnp.roll(ids, 1), where),
}


@pytest.mark.slow
@pytest.mark.parametrize("rules", [{}, {"min_p": 0.1}, {"top_k": 17},
                                   {"top_k": 5, "top_p": 0.9, "min_p": 0.02}], ids=str)
def test_banned_tokens_in_float64(monkeypatch, rules):
  """As autodiff without our backward pass; a ban at other places or of other tokens fails."""
  monkeypatch.setattr(token_stats, "CHUNK", 32)
  with jax.enable_x64(True):
    hidden, head, targets = as_float64(*arrays(2))
    ids = jnp.arange(19) % 6 == 1
    where = jnp.broadcast_to(np.arange(37) % 5 < 2, targets.shape)

    def chunked(hidden, head, banned):
      return token_stats.token_stats(hidden, head, targets, temperature=0.7, banned=banned,
                                     stats=ALL, entropy_gradient=True, **rules)

    def direct(hidden, head, banned):
      return full_stats(hidden, head, targets, rules, *banned)

    ours = slope(chunked, targets)
    expected = slope(direct, targets)(hidden, head, (ids, where))

    def assert_expected(got):
      jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), got,
                   expected)

    got = ours(hidden, head, (ids, where))
    assert_expected(got)
    outside = where & ids[targets]
    assert outside.any() and not np.any(got[0][1].in_support & outside), "some targets are banned"
    for name, wrong in WRONG.items():
      with pytest.raises(AssertionError):
        assert_expected(ours(hidden, head, wrong(ids, where)))
        pytest.fail(f"{name}: the comparison is blind", pytrace=False)


def test_a_banned_logit_has_no_gradient():
  """The identity for a head: gradients are those of the logits; a banned target is a constant."""
  logits = jnp.asarray([[[2.0, 1.9, 0.5, -3.0]]])
  banned = (jnp.arange(4) == 0, jnp.ones((1, 1), bool))

  @jax.jit
  def run(target, top_k):
    def log_prob(z):
      out = token_stats.token_stats(z, jnp.eye(4), jnp.full((1, 1), target), temperature=1.0,
                                    banned=banned, top_k=top_k, stats=ALL)
      return out.log_probs[0, 0], out.in_support[0, 0]
    return jax.value_and_grad(log_prob, has_aux=True)(logits)

  for top_k in (0, 2, 4):  # of the allowed tokens; 4 is more than there are
    (value, inside), gradient = run(1, top_k)
    left = logits[0, 0, 1:3 if top_k == 2 else 4]
    np.testing.assert_allclose(value, jax.nn.log_softmax(left)[0], rtol=1e-6)
    assert inside and gradient[0, 0, 0] == 0 and gradient[0, 0, 1] > 0
    (value, inside), gradient = run(0, top_k)
    assert not inside and np.isfinite(value) and np.all(gradient == 0)


def test_gradient_is_exactly_zero_outside_the_support():
  """With the identity for a head, the gradient in the hidden state is that in the logits."""
  logits = jnp.asarray([[[2.0, 1.9, 0.5, -3.0]]])

  def log_prob(logits, target, min_p):
    out = token_stats.token_stats(logits, jnp.eye(4), jnp.full((1, 1), target), temperature=1.0,
                                  min_p=min_p, stats=ALL)
    return out.log_probs[0, 0], out

  gradient = jax.jit(jax.value_and_grad(log_prob, has_aux=True))
  p_s = np.append(np.array(jax.nn.softmax(logits[0, 0, :3])), 0)
  (_, out), inside = gradient(logits, 1, 0.05)
  np.testing.assert_allclose(inside[0, 0], np.eye(4)[1] - p_s, atol=1e-6)
  assert inside[0, 0, 3] == 0 and bool(out.in_support[0, 0])
  (value, out), outside = gradient(logits, 3, 0.05)
  np.testing.assert_allclose(value, -3.0 - jax.nn.logsumexp(logits[0, 0, :3]), rtol=1e-6)
  assert not out.in_support[0, 0] and np.all(outside == 0), "a target outside is a constant"
  _, slopes = gradient(logits, 3, 0.0)
  assert slopes[0, 0, 3] > 0.9, "with a threshold of 0 the same target is pushed"


def test_statistics_without_gradient():
  hidden, head, targets = arrays()

  def summed(hidden, name, **options):
    out = token_stats.token_stats(hidden, head, targets, temperature=1.0, stats=ALL, **options)
    return jnp.sum(getattr(out, name))

  for name in ("sum_pi_squared", "kept_mass", "entropy"):
    assert np.all(jax.grad(summed)(hidden, name, min_p=0.1) == 0)
  assert np.all(jax.grad(summed)(hidden, "entropy") == 0), "it is logged"
  assert np.any(jax.grad(summed)(hidden, "entropy", entropy_gradient=True) != 0)
  assert np.any(jax.grad(summed)(hidden, "log_probs", min_p=0.1) != 0)


def test_values_that_keep_all_change_nothing():
  hidden, head, targets = arrays()
  plain = token_stats.token_stats(hidden, head, targets, temperature=1.3, stats=ALL)
  off = token_stats.token_stats(hidden, head, targets, temperature=1.3, stats=ALL, top_k=0,
                                top_p=1.0, min_p=0.0)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), off, plain)
  assert np.all(off.kept_mass <= 1) and np.all(off.in_support)
  assert np.all(plain.kept_mass == 1) and np.all(plain.in_support)


def test_no_rule_costs_nothing():
  """Arrays over the vocabulary in the traced program, V = 19: the fewest without a rule."""
  hidden, head, targets = arrays(length=4)

  def count(**rules):
    run = functools.partial(token_stats.token_stats, head=head, targets=targets, temperature=1.0)
    return str(jax.make_jaxpr(lambda h: run(h, **rules).log_probs)(hidden)).count("19]")

  banned = (jnp.arange(19) == 3, jnp.ones(targets.shape, bool))
  assert count() < count(min_p=0.1) < count(top_k=3) and count() < count(banned=banned)


@pytest.mark.slow
def test_long_tails_stay_finite():
  """Logits of +-3e4, as half precision can hold, give finite statistics and gradients."""
  hidden = jnp.asarray([[[3e4, -3e4, 0.0], [0.0, 0.0, 0.0]]])

  def run(hidden, target):
    return token_stats.token_stats(hidden, jnp.eye(3), jnp.full((1, 2), target), temperature=1.0,
                                   min_p=1e-6, stats=ALL, entropy_gradient=True)

  def loss(hidden, target):
    out = run(hidden, target)
    return jnp.sum(out.log_probs + out.entropy)

  for target in range(3):  # in the support and outside
    out, gradient = run(hidden, target), jax.grad(loss)(hidden, target)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves((out, gradient)))


def test_unknown_statistic_is_refused():
  with pytest.raises(ValueError, match="allowed are"):
    token_stats.token_stats(*arrays(), temperature=1.0, stats=frozenset({"nonsense"}))


@pytest.mark.parametrize("last", (0, 1, 9, 10, 20, 37))
@pytest.mark.parametrize("chunk", (1024, 48), ids=("one_chunk", "chunks"))
@pytest.mark.parametrize("rules", ({}, {"top_k": 5}), ids=("plain", "top_k"))
def test_columns_that_are_read_have_the_statistics_and_gradient_of_all(last, chunk, rules,
                                                                       monkeypatch):
  """Rows differ in what is read; a chunk that any of them reads is computed."""
  monkeypatch.setattr(token_stats, "CHUNK", chunk)
  monkeypatch.setattr(token_stats, "FEW", 512 if chunk > 512 else 0)
  assert_read(last, rules)


def test_a_chunk_too_few_is_rejected(monkeypatch):
  right = token_stats._if_read
  monkeypatch.setattr(token_stats, "FEW", 0)
  monkeypatch.setattr(token_stats, "_if_read", lambda read, *rest: right(
      None if read is None else jnp.bool(False), *rest))
  with pytest.raises(AssertionError):
    assert_read(20, {})


def assert_read(last: int, rules: dict) -> None:
  hidden, head, targets = arrays()
  read = jnp.arange(37) < jnp.array([last, last // 2, 0])[:, None]
  banned = (jnp.arange(19) == 3, jnp.broadcast_to(jnp.arange(37) < 4, (3, 37)))

  def loss(hidden, head, read_or_none):
    stats = token_stats.token_stats(
        hidden, head, targets, temperature=0.7, stats=token_stats.STATS, entropy_gradient=True,
        banned=banned, read=read_or_none, **rules)
    stats = jax.tree.map(lambda x: jnp.where(read, x, jnp.zeros_like(x)), stats)
    return total(stats, targets), stats

  run = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
  (of_part, stats), gradients = run(hidden, head, read)
  (of_all, expected), expected_gradients = run(hidden, head, None)
  np.testing.assert_allclose(of_part, of_all, rtol=1e-5, atol=1e-6)
  for x, y in zip(jax.tree.leaves((stats, gradients)),
                  jax.tree.leaves((expected, expected_gradients)), strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
