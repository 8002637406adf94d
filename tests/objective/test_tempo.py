"""The prefix tree against a loop that compares prefixes, its identities, and its cost."""

import functools
import unittest.mock

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.config import AdvantageConfig
from jaxrl_llm.objective import advantages
from jaxrl_llm.objective.advantages import prefix_tree
from jaxrl_llm.ops import masked

KEEP = np.arange(len(cases.GROUPS)) != 8
CFG = AdvantageConfig("tempo")
tempo = advantages.get_advantage("tempo")


def totals(x):
  return x.rewards + np.nansum(np.where(x.mask, x.token_rewards, 0), 1)


def kept_rows(x, i):
  """Kept rows of row i's group."""
  return [j for j in np.flatnonzero(x.group_id == x.group_id[i]) if x.keep is None or x.keep[j]]


def slow_differences(x):
  """TD by comparing the policy tokens of every pair of rows at every depth."""
  out, total = np.zeros(x.mask.shape), totals(x)
  policy = [list(x.tokens[i, x.mask[i]]) for i in range(len(x.mask))]
  for i in range(len(policy)):
    rows = kept_rows(x, i)
    if i not in rows or len(rows) < 2:
      continue
    value = lambda k, i=i, rows=rows: np.mean([total[j] for j in rows if len(policy[j]) >= k
                                               and policy[j][:k] == policy[i][:k]])
    out[i, x.mask[i]] = [value(k) - value(k - 1) for k in range(1, len(policy[i]) + 1)]
  return out


def slow(x, cfg):
  out, total, differences = np.zeros(x.mask.shape), totals(x), slow_differences(x)
  for i in range(len(total)):
    rows = kept_rows(x, i)
    if i in rows and len(rows) > 1:
      divisor = np.std(total[rows], ddof=cfg.ddof) + cfg.epsilon if cfg.normalize else 1
      out[i] = (total[i] - np.mean(total[rows]) + differences[i]) / divisor * x.mask[i]
  return out


def check(function, x, cfg):
  with jax.enable_x64(True):
    np.testing.assert_allclose(function(cases.on_device(x), cfg), slow(x, cfg), rtol=1e-10,
                               atol=1e-11)


@pytest.mark.parametrize("options", [{}, {"ddof": 0}, {"normalize": False}], ids=str)
def test_equals_the_slow_loop(options):
  for keep in (None, KEEP):
    x = cases.make(np.float64, keep=keep)
    assert (np.abs(slow_differences(x)) > 1e-6).sum() > 8  # it branches
    check(jax.jit(tempo, static_argnums=1), x, AdvantageConfig("tempo", **options))


def stops_at_the_first_hole(given, cfg):
  begun = jnp.cumsum(given.mask, 1) > 0
  cut = given.mask & (jnp.cumsum(begun & ~given.mask, 1) == 0)
  return jnp.where(given.mask, tempo(given.replace(mask=cut), cfg), 0)


def forgets_the_parent(given, cfg):
  """Takes prefixes for equal that agree in their last token, whatever came before."""
  with unittest.mock.patch.object(masked, "pair_index", lambda number, token: token):
    return tempo(given, cfg)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [stops_at_the_first_hole, forgets_the_parent,
                                   lambda given, cfg: advantages.get_advantage("grpo")(given, cfg)])
def test_the_loop_rejects(wrong):
  with pytest.raises(AssertionError):
    check(wrong, cases.make(np.float64), CFG)


@functools.cache
def prefix_free():
  """(inputs, TD) of rows with five policy tokens each, of which rows 0 and 5 are equal."""
  rng = np.random.default_rng(3)
  x = cases.make(np.float64, token_rewards=np.zeros((10, 9)))
  mask = np.stack([rng.permutation(np.arange(9) < 5) for _ in range(10)])
  tokens = x.tokens.copy()
  tokens[5, mask[5]] = tokens[0, mask[0]]
  x = x.replace(mask=mask, tokens=tokens, token_rewards=np.zeros((10, 9)))
  with jax.enable_x64(True):
    return x, np.asarray(prefix_tree.temporal_differences(cases.on_device(x)))


def test_differences_telescope():
  x, td = prefix_free()
  for i, row in enumerate(td):
    rows = kept_rows(x, i)
    leaf = [j for j in rows if (x.tokens[j, x.mask[j]] == x.tokens[i, x.mask[i]]).all()]
    expected = np.mean(x.rewards[leaf]) - np.mean(x.rewards[rows]) if len(rows) > 1 else 0
    np.testing.assert_allclose(row.sum(), expected, atol=1e-12)
  # never alone
  assert abs(td[0].sum() - (x.rewards[0] - np.mean(x.rewards[x.group_id == 3]))) > 1e-3


def test_differences_sum_to_zero_at_every_depth():
  x, td = prefix_free()
  depth = np.cumsum(x.mask, 1)
  assert (np.abs(td) > 0.01).sum() > 8
  for group in (3, -1, 8):
    for k in range(1, 6):
      here = x.mask & (depth == k) & (x.group_id == group)[:, None]
      assert abs(td[here].sum()) < 1e-12


def test_equal_rows_keep_equal_differences():
  x, td = prefix_free()
  np.testing.assert_array_equal(td[0, x.mask[0]], td[5, x.mask[5]])


@pytest.mark.slow
def test_nothing_is_added_where_nothing_branches():
  x = cases.on_device(
      cases.make(vocabulary=1, seed=2).replace(mask=np.ones((10, 9), bool), token_rewards=None))
  np.testing.assert_array_equal(prefix_tree.temporal_differences(x), 0.0)
  grpo = advantages.get_advantage("grpo")(x, AdvantageConfig("grpo"))
  np.testing.assert_allclose(tempo(x, CFG), grpo, rtol=1e-6)


def largest_array(function, *arguments) -> int:
  """Elements of the largest array that the traced function makes, inner programs included."""

  def walk(jaxpr):
    for eqn in jaxpr.eqns:
      yield from (v.aval.size for v in eqn.outvars if hasattr(v.aval, "size"))
      for value in jax.tree.leaves(eqn.params,
                                   is_leaf=lambda v: hasattr(v, "eqns") or hasattr(v, "jaxpr")):
        if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
          yield from walk(getattr(value, "jaxpr", value))

  return max(walk(jax.make_jaxpr(function)(*arguments).jaxpr))


def test_rows_are_never_compared_in_pairs():
  rows, width = 64, 3
  x = cases.on_device(cases.make(length=width + 6))
  x = jax.tree.map(lambda v: jnp.resize(v, (rows, *((width,) if v.ndim == 2 else ()))), x)
  assert largest_array(lambda given: tempo(given, CFG), x) <= 3 * rows * (width + 1)
  in_pairs = lambda given: jnp.sum(given.group_id[:, None] == given.group_id, 1)
  assert largest_array(jax.jit(in_pairs), x) >= rows * rows
