"""The head that predicts two tokens ahead: what it reads, and where its log-probs land."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from jaxrl_llm.config import ConfigError, ModelConfig, ParametersConfig
from jaxrl_llm.models import (
  CheckpointError,
  Model,
  load_pretrained,
  mtp,
  row_attention,
  save_pretrained,
  trainable,
)
from jaxrl_llm.objective import row_stats as row_stats_lib
from jaxrl_llm.objective.row_stats import Distribution, row_stats
from jaxrl_llm.rollouts import hand_over
from jaxrl_llm.types import Bins

pytestmark = pytest.mark.slow

CONFIG = ModelConfig(vocab_size=13, width=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8,
                     mlp_width=24, mtp=True)
MODELS = {
    "tied": Model(CONFIG),
    "scanned": Model(dataclasses.replace(CONFIG, scan_layers=True, remat="full", tie_head=False)),
    "experts": Model(dataclasses.replace(CONFIG, num_experts=4, expert_width=8)),
}
LENGTH = np.array([9, 3, 2, 6], np.int32)
PROMPT = np.array([2, 1, 1, 4], np.int32)
AHEAD = frozenset({"mtp_log_probs"})


def tokens(seed=0, width=9):
  ids = np.random.default_rng(seed).integers(1, 13, (len(LENGTH), width))
  return jnp.asarray(np.where(np.arange(width) < LENGTH[:, None], ids, 0), jnp.int32)


@functools.cache
def parameters(name):
  params = MODELS[name].init(jax.random.key(0))
  return jax.tree.map(lambda x: 5 * x if x.ndim > 1 else x, params)


@functools.cache
def last_logits(name):
  """A function from the tokens before s [s] to the logits of token s, from nothing else."""
  model, params = MODELS[name], parameters(name)

  @jax.jit
  def run(before):
    network, trunk = model.network(params), before[None, :-1]
    positions, segments = jnp.arange(trunk.shape[1])[None], jnp.ones(trunk.shape, jnp.int32)
    hidden, _ = model.hidden(params, trunk, positions, segments)
    x = network.mtp.join(hidden, params["embedding"][before[None, 1:]], model.constrain)
    seen = row_attention.rows(segments, model.config, model.constrain, packed=False)
    x, _ = network.mtp.block(x, positions, seen, None, None, model.constrain)
    return network.mtp.norm(x)[0, -1] @ model.head(params)

  return run


def by_prefix(name, ids, temperature):
  """Log-probs [L] of one row."""
  out = np.zeros(len(ids))
  for s in range(2, len(ids)):
    out[s] = jax.nn.log_softmax(last_logits(name)(ids[:s]) / temperature)[ids[s]]
  return out


def check_slots(name):
  ids = tokens()
  scores = scored(name, distribution=Distribution(0.7))
  assert scores.shape == ids.shape and scores.dtype == jnp.float32
  for row, length in enumerate(LENGTH):
    expected = by_prefix(name, ids[row, :length], 0.7)
    np.testing.assert_allclose(scores[row, :length], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_a_log_prob_lies_at_its_token_and_reads_only_what_precedes_it(name):
  check_slots(name)


def wrong_slot(monkeypatch):
  """The prediction of token t + 2 lies where that of token t + 1 belongs."""
  right = row_stats_lib._at_the_predicted_token
  monkeypatch.setattr(row_stats_lib, "_at_the_predicted_token", lambda x, ahead=1: right(x, 1))


def wrong_target(monkeypatch):
  right = row_stats_lib._next_column
  monkeypatch.setattr(row_stats_lib, "_next_column", lambda x, ahead: right(x, 1))


def wrong_embedding(monkeypatch):
  """Reads the embedding of the token that it is to predict."""
  right = Model.ahead
  monkeypatch.setattr(Model, "ahead", lambda self, params, hidden, ids, *rest: right(
      self, params, hidden, jnp.roll(ids, -1, 1), *rest))


@pytest.mark.parametrize("wrong", [wrong_slot, wrong_target, wrong_embedding])
def test_the_check_rejects_a_wrong_shift(wrong, monkeypatch):
  wrong(monkeypatch)
  with pytest.raises(AssertionError):
    check_slots("tied")


def scored(name, ids=None, length=LENGTH, **options):

  @jax.jit
  def run(params, ids, length):
    return row_stats(params, ids, length, model=MODELS[name], stats=AHEAD, **options).mtp_log_probs

  return run(parameters(name), tokens() if ids is None else ids, jnp.asarray(length))


def inside(x, first=2):
  """The entries of whole rows from column `first` to each row's end, 0 elsewhere."""
  at = np.arange(np.shape(x)[1])
  return np.where((at >= first) & (at < LENGTH[:, None]), x, 0)


@pytest.mark.parametrize("name", ["tied", "scanned"])
def test_bins_padding_row_order_and_columns_change_nothing(name):
  expected = inside(scored(name))
  for bins, order in ((Bins(12, 2), [0, 1, 2, 3]), (Bins(20, 4), [0, 1, 2, 3])):
    packed = scored(name, tokens()[jnp.asarray(order)], LENGTH[order], bins=bins)
    np.testing.assert_allclose(packed, expected, rtol=1e-4, atol=1e-5)
  wider = jnp.pad(tokens(), ((0, 0), (0, 5)), constant_values=7)
  np.testing.assert_allclose(inside(scored(name, wider))[:, :9], expected, rtol=1e-4, atol=1e-5)
  order = np.array([2, 0, 3, 1])
  np.testing.assert_allclose(scored(name, tokens()[order], LENGTH[order]), scored(name)[order],
                             rtol=1e-4, atol=1e-5)
  where = np.arange(9) >= PROMPT[:, None]
  for bins in (None, Bins(12, 2)):
    some = scored(name, completion=(jnp.asarray(PROMPT), 8), bins=bins)
    np.testing.assert_allclose(inside(some) * where, expected * where, rtol=1e-4, atol=1e-5)
    assert not np.any(np.asarray(some)[:, :2]), "nothing precedes these by two"


def test_a_packed_row_does_not_read_its_neighbour():
  """Also at its end, where the next token of the bin is another row's first."""
  bins = Bins(20, 4)
  changed = tokens().at[1].set(tokens(1)[1])
  first, second = scored("tied", bins=bins), scored("tied", changed, bins=bins)
  np.testing.assert_array_equal(np.delete(first, 1, 0), np.delete(second, 1, 0))
  assert np.any(first[1] != second[1])


def test_banned_tokens_are_those_of_the_slot():
  banned = np.zeros((4, 9), bool)
  banned[0, 4] = True
  ids = tokens().at[0, 5].set(3)
  plain = scored("tied", ids)
  stops = ((1, 2, 3), jnp.asarray(banned))
  scores = scored("tied", ids, distribution=Distribution(banned=stops))
  changed = np.argwhere(np.abs(scores - plain) > 1e-6)
  assert changed.tolist() == [[0, 4]]


def test_what_it_cannot_score_is_refused_by_name():
  with pytest.raises(ValueError, match=r"mtp_log_probs with top_k.*Fix: no rule"):
    scored("tied", distribution=Distribution(rules={"top_k": jnp.int32(3)}))
  with pytest.raises(ValueError, match="shared_prompts=False"):
    scored("tied", bins=Bins(20, 4, jnp.zeros(4, jnp.int32)))
  plain = Model(dataclasses.replace(CONFIG, mtp=False))
  with pytest.raises(ValueError, match="mtp=True"):
    row_stats(mtp.without(parameters("tied")), tokens(), jnp.asarray(LENGTH), model=plain,
              stats=AHEAD)


def trunk_gradient(model):
  def total(params):
    ahead = row_stats(params, tokens(), jnp.asarray(LENGTH), model=model, stats=AHEAD).mtp_log_probs
    return jnp.sum(inside(np.ones((4, 9))) * ahead)

  gradient = flatten_dict(jax.jit(jax.grad(total))(parameters("tied")))
  sizes = {keys: float(jnp.max(jnp.abs(x))) for keys, x in gradient.items()}
  module = [size for keys, size in sizes.items() if keys[0] == mtp.NAME]
  assert all(size > 0 for size in module)
  return max(size for keys, size in sizes.items() if keys[0] != mtp.NAME)


def test_a_detached_head_leaves_the_trunk_alone():
  assert trunk_gradient(MODELS["tied"]) > 0.1
  assert trunk_gradient(dataclasses.replace(MODELS["tied"], detached=True)) == 0


@pytest.mark.parametrize("name", MODELS)
def test_the_trunk_begins_and_computes_as_without_the_head(name):
  model = MODELS[name]
  plain = Model(dataclasses.replace(model.config, mtp=False))
  theta = model.init(jax.random.key(3))
  jax.tree.map(np.testing.assert_array_equal, mtp.without(theta), plain.init(jax.random.key(3)))

  def log_probs(params, model):
    return row_stats(params, tokens(), jnp.asarray(LENGTH), model=model).log_probs

  run = jax.jit(log_probs, static_argnames="model")
  both = [run(theta, model), run(mtp.without(theta), plain)]
  np.testing.assert_array_equal(*both)
  ranks = jax.tree.map(lambda x, axes: x.ndim == len(axes), model.shapes(), model.logical_axes())
  assert all(jax.tree.leaves(ranks))


@pytest.mark.parametrize("name", MODELS)
def test_the_sampler_holds_nothing_of_it(name):
  model, params = MODELS[name], parameters(name)
  copy = hand_over.make(model, None)(params)
  assert mtp.NAME not in copy and not hand_over.decode_model(model).config.mtp
  jax.tree.map(np.testing.assert_array_equal, copy,
               hand_over.for_decoding(mtp.without(params), model)[1])


def test_it_is_trained_whole_and_never_left_at_random():
  model = MODELS["tied"]
  with pytest.raises(ConfigError, match=r"mtp/.* would never be trained.*add 'mtp'"):
    trainable.check(ParametersConfig("lora"), model)
  cfg = ParametersConfig("lora", patterns=("mtp",))
  trained, frozen = trainable.split(model.init(jax.random.key(0)), cfg, jax.random.key(1))
  assert set(trained["selected"]) == {"mtp"} and set(trained["lora"]) == {"blocks"}
  assert "mtp" not in frozen


def test_an_export_holds_it_in_a_file_of_its_own(tmp_path):
  config = dataclasses.replace(CONFIG, qk_norm=True)
  model = Model(config)
  params = model.init(jax.random.key(5))
  save_pretrained(tmp_path / "out", model, params)
  assert (tmp_path / "out" / "mtp.npz").exists()
  again, back, report = load_pretrained(tmp_path / "out", mtp=True)
  assert again.config.mtp and report.initialised == ()
  jax.tree.map(np.testing.assert_array_equal, back, params)
  _, plain, _ = load_pretrained(tmp_path / "out")
  jax.tree.map(np.testing.assert_array_equal, plain, mtp.without(params))
  (tmp_path / "out" / "mtp.npz").unlink()
  _, fresh, report = load_pretrained(tmp_path / "out", mtp=True)
  assert "mtp/projection" in report.initialised
  np.testing.assert_allclose(fresh["mtp"]["projection"],
                             model.init(jax.random.key(0))["mtp"]["projection"], rtol=1e-5)
  np.savez(tmp_path / "out" / "mtp.npz", **{"mtp/norm/scale": np.ones(16, np.float32)})
  with pytest.raises(CheckpointError, match=r"mtp.npz: mtp/.* is not there"):
    load_pretrained(tmp_path / "out", mtp=True)
