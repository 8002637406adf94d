"""experiments/papers/occ: the page says what the results say, and the toy measures what it says."""

import json
from pathlib import Path

import experiment_files
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.papers.occ import gradients
from experiments.tables_lib import seed_results
from jaxrl_llm.config import ModelConfig
from jaxrl_llm.models import Model
from jaxrl_llm.types import Rollout

FOLDER = Path(__file__).parents[4] / "experiments" / "papers" / "occ"
toy = experiment_files.load(FOLDER / "toy.py")


def test_the_losses_of_a_seed_begin_alike():
  for one in seed_results.load(FOLDER, toy.SEEDS):
    assert len({(one[loss]["accuracy"][0], one[loss]["ahead"][0]) for loss in toy.LOSSES}) == 1
    assert len({json.dumps(one[loss]["accuracy"]) for loss in toy.LOSSES}) > 1


@pytest.mark.nightly
def test_a_short_run_measures_the_coefficient_that_it_trains_with(tmp_path):
  """OCC's quotient in the watched batch is that of the update, up to the clamp."""
  found = toy.trained(toy.config("occ", seed=7, iterations=2), tmp_path)
  quotient = found["agreement"][0][2]
  assert found["coefficient"][1][-1] == pytest.approx(np.clip(quotient, 0, 1), abs=1e-4)
  assert len(found["accuracy"]) == 1 and len(found["reward"]) == 2
  assert len(found["cosine"][0]) == 3, "the first optimizer batch has none"


def guessing(model, params, tokens, mask):
  """(right, all) by a loop over the policy tokens, each from a network without what follows."""
  @jax.jit  # compiles once for each column
  def guess(before):
    positions, ones = jnp.arange(before.shape[1])[None], jnp.ones_like(before)
    hidden, _ = model.hidden(params, before, positions, ones)
    states, head = model.ahead(params, hidden, before, positions, ones)
    return jnp.argmax(states[0, -2] @ head)

  right = 0
  for row, column in np.argwhere(mask):
    right += int(guess(tokens[row:row + 1, :column])) == int(tokens[row, column])
  return right, int(mask.sum())


@pytest.mark.slow
def test_right_guesses_are_counted_at_their_tokens():
  model = Model(ModelConfig(vocab_size=3, width=8, num_layers=1, num_heads=1, num_kv_heads=1,
                            head_dim=8, mlp_width=8, mtp=True))
  params = jax.tree.map(lambda x: 5 * x, model.init(jax.random.key(0)))
  tokens = jnp.asarray(np.random.default_rng(0).integers(0, 3, (6, 7)), jnp.int32)
  ids = jnp.arange(6, dtype=jnp.int32)
  mask = jnp.arange(7) >= 3
  mask = jnp.broadcast_to(mask, tokens.shape) & (jnp.arange(7) < 7 - ids[:, None] // 2)
  rollout = Rollout(tokens, mask, 7 - ids // 2, 0 * ids + 3, 0.0 * tokens, ids < 0, ids, ids, ids,
                    ids)
  found = [int(x) for x in gradients.head_accuracy(params, rollout, model=model)]
  assert found == list(guessing(model, params, tokens, np.asarray(mask)))
  shifted = rollout.replace(tokens=jnp.roll(tokens, 1, 1))
  assert found != [int(x) for x in gradients.head_accuracy(params, shifted, model=model)]
