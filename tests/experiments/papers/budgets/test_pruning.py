"""Budgets are met exactly, and a pruned model computes what a smaller one does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.papers.budgets import pruning
from jaxrl_llm.config import ModelConfig
from jaxrl_llm.models import Model

pytestmark = pytest.mark.slow

CONFIG = ModelConfig(vocab_size=11, width=16, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=8,
                     mlp_width=24)
MODEL = Model(CONFIG)


def drawn(rng):
  """(priorities, widths, budget, least) of a random case; a tenth have extreme priorities."""
  layers = int(rng.integers(1, 9))
  widths = rng.integers(1, 200, layers)
  scale = 10.0**rng.integers(-3, 4)
  least = int(rng.integers(0, 5))
  low = int(np.minimum(least, widths).sum())
  budget = int(rng.choice([low, widths.sum(), rng.integers(low, widths.sum() + 1)]))
  return scale * rng.normal(size=layers), widths, budget, least


def exact(project) -> bool:
  """Whether 500 random budgets are met, within the bounds of each layer and in order."""
  rng = np.random.default_rng(0)
  for _ in range(500):
    priorities, widths, budget, least = drawn(rng)
    kept = project(priorities, widths, budget, least)
    inside = (kept >= np.minimum(least, widths)) & (kept <= widths)
    if kept.sum() != budget or not inside.all():
      return False
    equal = project(priorities, np.full(len(widths), 50), 25 * len(widths), 0)
    if (np.diff(equal[np.argsort(priorities)]) < 0).any():
      return False
  return True


def each_rounded(priorities, widths, budget, least):
  shares = np.exp(priorities - priorities.max())
  return np.clip(np.rint(budget * shares / shares.sum()), np.minimum(least, widths),
                 widths).astype(int)


def rest_to_the_first(priorities, widths, budget, least):
  kept = pruning.project_to_budget(priorities, widths, budget, least).copy()
  kept[0] += budget - kept.sum() + 1
  return kept


def other_order(priorities, widths, budget, least):
  return pruning.project_to_budget(-priorities, widths, budget, least)


def test_budgets_are_met_exactly():
  assert exact(pruning.project_to_budget)
  for wrong in (each_rounded, rest_to_the_first, other_order):
    assert not exact(wrong), wrong


def logits(params):
  ids = jax.random.randint(jax.random.key(1), (2, 6), 0, CONFIG.vocab_size)
  positions = jnp.broadcast_to(jnp.arange(6), ids.shape)
  return MODEL.hidden(params, ids, positions, jnp.ones_like(ids))[0] @ MODEL.head(params)


def large(params):
  """MLPs that matter to the logits."""
  blocks = {i: block | {"mlp": jax.tree.map(lambda x: 10 * x, block["mlp"])}
            for i, block in params["blocks"].items()}
  return params | {"blocks": blocks}


# (scores, widths, budget, channels): as they are; too few, by the room left; too many, from the
# first layer on; and what rounding adds, from the last layers.
IN_ORDER = [([.2, .4, .9], [10, 10, 10], 15, [2, 4, 9]),
            ([-.2, .4, .4], [10, 10, 10], 20, [6, 7, 7]),
            ([.9, .9, .9], [10, 10, 10], 15, [9, 5, 1]),
            ([.5, .5, .5], [3, 3, 3], 4, [2, 1, 1])]


@pytest.mark.parametrize(("scores", "widths", "budget", "expected"), IN_ORDER)
def test_the_projection_of_the_authors_worked_out_by_hand(scores, widths, budget, expected):
  projection = pruning.project_in_order(np.array(scores), np.array(widths), budget)
  np.testing.assert_array_equal(projection, expected)


def test_a_masked_model_computes_what_a_smaller_one_does():
  params = large(MODEL.init(jax.random.key(0)))
  scores = pruning.channel_scores(params, CONFIG)
  kept = pruning.project_to_budget(np.array([1.0, -1.0, 0.0]), np.full(3, 24), 50)
  stay = pruning.best_channels(scores, kept)
  np.testing.assert_array_equal(stay.sum(1), kept)
  smaller = pruning.removed(params, CONFIG, stay)
  assert [smaller["blocks"][i]["mlp"]["gate"].shape[1] for i in range(3)] == kept.tolist()
  masked = logits(pruning.masked(params, CONFIG, jnp.asarray(stay)))
  np.testing.assert_allclose(masked, logits(smaller), atol=1e-5)
  assert np.abs(masked - logits(params)).max() > 1e-2
  np.testing.assert_array_equal(pruning.masked(params, CONFIG, jnp.ones_like(stay))["blocks"][0][
      "mlp"]["down"], params["blocks"][0]["mlp"]["down"])


def test_the_channels_with_the_largest_scores_stay():
  scores = np.array([[3.0, 1.0, 2.0, 2.0], [0.0, 5.0, 4.0, 1.0]])
  np.testing.assert_array_equal(pruning.best_channels(scores, np.array([3, 0])),
                                [[True, False, True, True], [False] * 4])
  params = MODEL.init(jax.random.key(0))
  mlp = params["blocks"][1]["mlp"]
  by_hand = [np.linalg.norm(mlp["gate"][:, c]) * np.linalg.norm(mlp["up"][:, c])
             * np.linalg.norm(mlp["down"][c]) for c in range(24)]
  np.testing.assert_allclose(pruning.channel_scores(params, CONFIG)[1], by_hand, rtol=1e-5)
