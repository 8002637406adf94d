"""Row repair moves these rows only; the hinge is that of a loop."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict

from experiments.tables_lib import fitting, head_rows
from jaxrl_llm.config import ModelConfig, OptimizerConfig, ParametersConfig
from jaxrl_llm.models import Model
from jaxrl_llm.training.optimizers import make_optimizer

pytestmark = pytest.mark.slow

D, V = 16, 20
SHAPE = ModelConfig(vocab_size=V, width=D, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8,
                    mlp_width=24, tie_head=False)
MODEL = Model(SHAPE)
NINE = tuple(range(3, 12))
ROWS = ParametersConfig("selected", head_rows=NINE)
DECAYING = make_optimizer(OptimizerConfig(learning_rate=1e-2, weight_decay=0.1))


@functools.cache
def params_of(model=MODEL):
  return model.init(jax.random.key(0))


def states(count=90):
  rng = np.random.default_rng(0)
  return head_rows.States(jnp.asarray(rng.normal(size=(count, D)), jnp.float32),
                          jnp.asarray(np.resize(NINE, count), jnp.int32))


def only_rows(train) -> bool:
  """Whether exactly the 9 D scalars of these rows differ after training, and no other bit."""
  before, after = (flatten_dict(tree) for tree in (params_of(), train()))
  differs = {keys: np.asarray(before[keys]) != np.asarray(after[keys]) for keys in before}
  head = differs.pop(("head",))
  others = any(changed.any() for changed in differs.values())
  return (before.keys() == after.keys() and not others and head.sum() == len(NINE) * D
          and head[:, list(NINE)].all())


def gradient_masked_only():
  """The whole head under AdamW, with a mask on the gradient alone: decay moves all of it."""
  params = params_of()
  state = DECAYING.init(params)
  for _ in range(3):
    grads = jax.grad(lambda p: head_rows.cross_entropy(p, states(), model=MODEL, cfg=None)[0])(
        params)
    rows = jnp.isin(jnp.arange(V), jnp.asarray(NINE))
    grads = jax.tree.map(jnp.zeros_like, grads) | {"head": grads["head"] * rows}
    updates, state = DECAYING.update(grads, state, params)
    params = optax.apply_updates(params, updates)
  return params


def fitted(loss, rows=ROWS):
  return fitting.fit(MODEL, params_of(), [states()] * 3, DECAYING, loss=loss,
                     leaves=fitting.Leaves(rows)).params


def test_only_the_rows_move_under_weight_decay():
  for loss in (head_rows.hinge(np.ones(V, bool), 1e3), head_rows.cross_entropy):
    assert only_rows(lambda loss=loss: fitted(loss))
  one_row_less = dataclasses.replace(ROWS, head_rows=NINE[:-1])
  assert not only_rows(lambda: fitted(head_rows.cross_entropy, one_row_less))
  assert not only_rows(gradient_masked_only)


def loop(batch, head, among, margin):
  """The hinge in plain Python."""
  total = 0.0
  for hidden, answer in zip(np.asarray(batch.hidden, np.float64), batch.answers, strict=True):
    logits = hidden @ np.asarray(head, np.float64)
    others = [logits[i] for i in range(V) if i != answer and among[i]]
    total += max(0.0, margin + max(others) - logits[answer])
  return total / len(batch.answers)


@pytest.mark.parametrize("digits_compete", [False, True])
@pytest.mark.parametrize("margin", [0.0, 2.0])
def test_the_hinge_equals_a_loop_and_moves_the_right_row_only(digits_compete, margin):
  published, every = head_rows.others(MODEL, np.array(NINE)), np.ones(V, bool)
  assert published.sum() == V - len(NINE) and not published[list(NINE)].any()
  among, wrong = (every, published) if digits_compete else (published, every)
  batch = jax.tree.map(lambda x: x[:2], states())  # answers 3 and 4
  params = params_of() | {"head": 10 * params_of()["head"]}
  loss = head_rows.hinge(among, margin)
  value, grads = jax.value_and_grad(lambda p: loss(p, batch, model=MODEL, cfg=None)[0])(params)
  assert float(value) == pytest.approx(loop(batch, params["head"], among, margin), rel=1e-5)
  moved = np.flatnonzero(np.asarray(grads["head"]).any(0))
  assert set(moved) <= {3, 4} and (margin == 0 or len(moved) == 2)
  many, value = states(), loop(states(), params["head"], among, margin)
  assert float(loss(params, many, model=MODEL, cfg=None)[0]) == pytest.approx(value, rel=1e-5)
  rejected = head_rows.hinge(wrong, margin)(params, many, model=MODEL, cfg=None)[0]
  assert float(rejected) != pytest.approx(value, rel=1e-2)


def planted(randomised) -> bool:
  """Whether the rows are new, as long as before and orthogonal to a direction; nothing else is."""
  against = np.random.default_rng(1).normal(size=D)
  before = np.asarray(params_of()["head"], np.float64).T
  after = np.asarray(randomised(MODEL, params_of(), np.array(NINE), 5, against)["head"],
                     np.float64).T
  ids = np.array(NINE)
  same = np.delete(np.arange(V), ids)
  return (np.array_equal(before[same], after[same])
          and np.allclose(np.linalg.norm(before[ids], axis=1), np.linalg.norm(after[ids], axis=1))
          and np.abs(after[ids] @ against).max() < 1e-6 and not np.allclose(before, after))


def test_random_rows_keep_their_length_and_avoid_a_direction():
  assert planted(head_rows.randomised)
  assert not planted(lambda *given: head_rows.randomised(*given[:4]))  # any direction
  assert not planted(lambda *given: params_of())
  once, twice, other = (head_rows.randomised(MODEL, params_of(), np.array(NINE), seed)["head"]
                        for seed in (5, 5, 6))
  assert np.array_equal(once, twice) and not np.array_equal(once, other)
