"""experiments/staleness/shuffled.py: the controls are their methods on rows in another order."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from experiment_files import load

from jaxrl_llm.config import EstimatorConfig
from jaxrl_llm.objective.estimators import get_estimator

PLUGIN = Path(__file__).parent.parent / "experiments" / "staleness" / "shuffled.py"
SHAPE = (3, 8)


def inputs():
  keys = jax.random.split(jax.random.key(0), 3)
  log_probs, anchor = (-1 - jax.random.uniform(key, SHAPE) for key in keys[:2])
  mask = jnp.ones(SHAPE, bool).at[0, 5:].set(False).at[1, :2].set(False)
  return log_probs, anchor, jax.random.normal(keys[2], SHAPE[:1])[:, None] * mask, mask


def loss(name, *arrays):
  estimator = get_estimator(name)
  return jax.jit(lambda *given: estimator(*given, EstimatorConfig(name)).per_token_loss)(*arrays)


@pytest.mark.parametrize("name", ["minpro", "ctpo"])
def test_a_control_is_the_method_on_rows_in_another_order(name):
  plugin = load(PLUGIN)
  arrays = inputs()
  mask = np.asarray(arrays[3])
  expected = np.zeros(SHAPE)
  for row in range(SHAPE[0]):
    at = [i for i in np.argsort(plugin.KEYS[:SHAPE[1]]) if mask[row, i]]
    alone = loss(name, *(array[row, np.array(at)][None] for array in arrays))
    expected[row, at] = alone[0]
  losses = np.asarray(loss(f"{name}_shuffled", *arrays))
  np.testing.assert_allclose(losses * mask, expected, rtol=1e-6)
  assert np.abs(losses - np.asarray(loss(name, *arrays))).max() > 1e-3, "the order is as it was"
