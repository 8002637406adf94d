"""The value model's loss by hand, what reaches it, and that it learns conditional means."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.papers.tvm import value_model
from experiments.papers.tvm.value_model import ValueLoss
from jaxrl_llm import parallel
from jaxrl_llm.config import ConfigError, MeshConfig, ModelConfig
from jaxrl_llm.models import Model
from jaxrl_llm.objective.loss import sft_loss
from jaxrl_llm.objective.row_stats import row_stats
from jaxrl_llm.types import SupervisedBatch

MODEL = Model(ModelConfig(vocab_size=13, width=16, num_layers=1, num_heads=2, num_kv_heads=1,
                          head_dim=8, mlp_width=24, value_head=True))
LENGTH = np.array([6, 3, 7, 5], np.int32)
MASK = (np.arange(7) >= 2) & (np.arange(7) < LENGTH[:, None])
TOKENS = np.random.default_rng(0).integers(0, 13, (4, 7)).astype(np.int32)


token_values = jax.jit(value_model.token_values, static_argnames=("model", "link"))
value_loss = jax.jit(value_model.value_loss, static_argnames=("model", "cfg"))


@functools.cache
def params():
  trunk = MODEL.init(jax.random.key(0))
  return trunk | {"value_head": jax.random.normal(jax.random.key(1), (16,))}


def batch(labels=None, mask=MASK):
  labels = np.random.default_rng(1).random((4, 7)) if labels is None else labels
  return value_model.value_batch(TOKENS, LENGTH, labels, mask)


def values(tokens=TOKENS):
  return np.asarray(token_values(params(), tokens, LENGTH, model=MODEL))


@pytest.mark.parametrize("link", value_model.LINKS)
def test_the_loss_is_the_sum_over_tokens_divided_by_rows(link):
  given = batch()
  loss, metrics = value_loss(params(), given, model=MODEL, cfg=ValueLoss(link))
  raw, labels = values().astype(np.float64), np.asarray(given.labels, np.float64)
  if link == "identity":
    terms = (raw - labels)**2
  else:
    probability = 1 / (1 + np.exp(-raw))
    terms = -labels * np.log(probability) - (1 - labels) * np.log(1 - probability)
  np.testing.assert_allclose(loss, terms[MASK].sum() / 4, rtol=1e-5)
  np.testing.assert_allclose(metrics["loss/value"].total, terms[MASK].sum(), rtol=1e-5)


def test_the_language_term_is_the_supervised_loss():
  alone, with_it = (value_loss(params(), batch(), model=MODEL, cfg=cfg)[0]
                    for cfg in (ValueLoss(), ValueLoss(language_coef=0.5)))
  supervised = SupervisedBatch(jnp.asarray(TOKENS), jnp.asarray(LENGTH),
                               jnp.asarray(MASK / 4, jnp.float32))
  nll = sft_loss(params(), supervised, model=MODEL, cfg=None)[0]
  np.testing.assert_allclose(with_it - alone, 0.5 * nll, rtol=1e-4)


def reads_no_masked_label(loss) -> bool:
  run = jax.jit(jax.value_and_grad(loss))
  (value, grads), (same, _) = (run(params(), batch(np.where(MASK, 0.5, outside)))
                               for outside in (np.nan, 7.0))
  return bool(value == same) and all(np.isfinite(x).all() for x in jax.tree.leaves(grads))


@pytest.mark.slow
def test_masked_labels_are_never_read():
  for cfg in (ValueLoss(), ValueLoss("sigmoid", 0.5)):
    assert reads_no_masked_label(
        lambda p, given, cfg=cfg: value_model.value_loss(p, given, model=MODEL, cfg=cfg)[0])

  def multiplied(params, given):  # instead of selected, so that NaN times 0 is NaN
    raw = value_model.token_values(params, given.tokens, given.length, model=MODEL)
    return jnp.sum(given.loss_weights * jnp.square(raw - given.labels))

  assert not reads_no_masked_label(multiplied)


def is_after_the_token(values) -> bool:
  """Whether another id in column 4 changes the values from that column on, and none before."""
  tokens = TOKENS.copy()
  tokens[:, 4] = (tokens[:, 4] + 1) % 13
  changed = np.abs(values(TOKENS) - values(tokens))[2] > 1e-6  # row 2 has all columns
  return not changed[:4].any() and changed[4:].all()


def before_the_token(tokens):
  stats = row_stats(params(), jnp.asarray(tokens), jnp.asarray(LENGTH), model=MODEL,
                    stats=frozenset({"values"}))
  return np.asarray(stats.values)


def test_a_value_is_that_of_the_state_after_its_token():
  assert is_after_the_token(values)
  assert not is_after_the_token(before_the_token)


@pytest.mark.nightly
@pytest.mark.parametrize("link", value_model.LINKS)
def test_training_finds_the_share_of_right_rows(link):
  """The same row with outcomes of which three in four are right; its parameters stay usable."""
  tokens, labels = np.repeat(TOKENS[2:3], 4, 0), np.repeat([[1.], [1.], [0.], [1.]], 7, 1)
  given = value_model.value_batch(tokens, np.full(4, 7), labels, np.ones((4, 7), bool))
  mesh = parallel.make_mesh(MeshConfig(data=1), jax.devices()[:1])
  start = MODEL.init(jax.random.key(0))
  train = value_model.make_value_step(MODEL, 150, 0.02, ValueLoss(link), mesh)
  theta, losses = train(start, [given] * 150)
  after = token_values(theta, tokens, jnp.full(4, 7), model=MODEL, link=link)
  np.testing.assert_allclose(after, 0.75, atol=0.02)
  assert losses[-1] < losses[0] and len(losses) == 150
  scorer = value_model.make_scorer(theta, MODEL, link)
  np.testing.assert_allclose(scorer([tokens[0].tolist(), tokens[0, :3].tolist(), [5]])[:2], 0.75,
                             atol=0.02)
  assert np.isfinite(jax.tree.leaves(start)[0]).all()


def test_a_scorer_reads_the_last_column_of_each_row():
  rows = [TOKENS[i, :n].tolist() for i, n in enumerate(LENGTH)]
  expected = values()[np.arange(4), LENGTH - 1]
  np.testing.assert_allclose(value_model.make_scorer(params(), MODEL)(rows), expected, rtol=1e-5)


def test_an_unknown_link_is_refused():
  with pytest.raises(ConfigError, match="link = 'relu': allowed are identity, sigmoid"):
    ValueLoss("relu")
