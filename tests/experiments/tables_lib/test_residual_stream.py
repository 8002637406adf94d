"""States of chosen layers are those of a shorter network; normed, the last gives the logits."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.tables_lib.residual_stream import hidden_states, normed
from jaxrl_llm.config import ModelConfig
from jaxrl_llm.models import Model
from jaxrl_llm.ops.token_stats import scaled_logits

CONFIG = ModelConfig(vocab_size=11, width=16, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=8,
                     mlp_width=24, tie_head=False)
MODEL = Model(CONFIG)
IDS = jax.random.randint(jax.random.key(1), (3, 7), 0, CONFIG.vocab_size)
POSITIONS = jnp.broadcast_to(jnp.arange(7), IDS.shape)
INPUTS = (IDS, POSITIONS, jnp.ones_like(IDS))


def params_of(model=MODEL):
  return model.init(jax.random.key(0))


def of_shorter_networks(params):
  """[N + 1, R, S, D]: what a network of the first n blocks leaves, after the final norm."""
  states = []
  for depth in range(CONFIG.num_layers + 1):
    blocks = {i: params["blocks"][i] for i in range(depth)}
    if not depth:
      states.append(normed(MODEL, params, params["embedding"][IDS]))
      continue
    shorter = Model(dataclasses.replace(CONFIG, num_layers=depth))
    states.append(shorter.hidden(params | {"blocks": blocks}, *INPUTS)[0])
  return jnp.stack(states)


def captures(states_of) -> bool:
  """Whether the states of all layers and some columns are those of shorter networks."""
  params, columns = params_of(), jnp.asarray([[6, 0], [2, 3], [5, 5]])
  states = normed(MODEL, params, states_of(MODEL, params, *INPUTS, columns, (0, 1, 2, 3)))
  expected = jnp.take_along_axis(of_shorter_networks(params), columns[None, ..., None], 2)
  return states.shape == expected.shape and np.allclose(states, expected, atol=2e-5)


def test_states_are_those_of_shorter_networks():
  assert captures(hidden_states)
  one_layer_late = lambda *given: hidden_states(
      *given[:-1], tuple(min(layer + 1, CONFIG.num_layers) for layer in given[-1]))
  one_column_late = lambda *given: hidden_states(*given[:-2], (given[-2] + 1) % 7, given[-1])
  assert not captures(one_layer_late) and not captures(one_column_late)


@pytest.mark.parametrize("remat", ["none", "full"])
def test_stacked_blocks_have_the_same_states(remat):
  stacked = Model(dataclasses.replace(CONFIG, scan_layers=True, remat=remat))
  params = params_of()
  joined = jax.tree.map(lambda *x: jnp.stack(x), *params["blocks"].values())
  columns = jnp.asarray([[6], [2], [0]])
  for layers in ((3,), (2, 0), (0, 1, 2, 3)):
    np.testing.assert_allclose(
        hidden_states(stacked, params | {"blocks": joined}, *INPUTS, columns, layers),
        hidden_states(MODEL, params, *INPUTS, columns, layers), atol=2e-5)


def test_the_normed_state_of_the_last_layer_gives_the_logits_to_the_bit():
  params = params_of()
  states = hidden_states(MODEL, params, *INPUTS, POSITIONS, (2, 3))
  logits = scaled_logits(MODEL.hidden(params, *INPUTS)[0], MODEL.head(params), 1.0)
  before, last = (scaled_logits(normed(MODEL, params, x), MODEL.head(params), 1.0) for x in states)
  np.testing.assert_array_equal(last, logits)
  assert not np.allclose(before, logits, atol=1e-3)
  without_norm = scaled_logits(states[1], MODEL.head(params), 1.0)
  assert not np.allclose(without_norm, logits, atol=1e-3)
