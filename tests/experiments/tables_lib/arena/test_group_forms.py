"""experiments/arena/group_forms.py: each coefficient is the gradient of the loss that it states.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.tables_lib.arena import methods
from jaxrl_llm.objective import estimators

FORMS = Path(__file__).parents[4] / "experiments" / "arena" / "group_forms.py"
GROUP = np.repeat([0, 1, 2], 4)
MASK = np.arange(3) < np.array([3, 1, 2, 3, 2, 2, 1, 3, 3, 3, 2, 1])[:, None]
rng = np.random.default_rng(0)
ANCHOR = np.where(MASK, -rng.uniform(0.2, 2, MASK.shape), 0)
LOG_PROBS = np.where(MASK, ANCHOR + 0.15 * rng.standard_normal(MASK.shape), 0)
REWARD = np.array([1.0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0])


def normalised():
  rewards = REWARD.reshape(-1, 4)
  std = rewards.std(1, keepdims=True)
  return ((rewards - rewards.mean(1, keepdims=True)) / np.where(std > 0, std, 1)).reshape(-1)


def gradient(text):
  """d loss / d log-prob at each token, of the sum of the token losses."""
  with jax.enable_x64(True):
    cfg = methods.parse(text, 8).estimator
    call = estimators.get_estimator(cfg.name)
    spread = jnp.asarray(np.broadcast_to(normalised()[:, None], MASK.shape))

    def loss(log_probs):
      return jnp.sum(call(log_probs, jnp.asarray(ANCHOR), spread, jnp.asarray(MASK), cfg,
                          group_id=jnp.asarray(GROUP)).per_token_loss)

    return np.asarray(jax.grad(loss)(jnp.asarray(LOG_PROBS)))


def slope(loss):
  """The same by differences of a loss of the row sums, [B]."""
  out, sums, step = np.zeros(len(GROUP)), LOG_PROBS.sum(1), 1e-5
  for i in range(len(GROUP)):
    ahead, behind = sums.copy(), sums.copy()
    ahead[i] += step
    behind[i] -= step
    out[i] = (loss(ahead) - loss(behind)) / (2 * step)
  return np.where(MASK, out[:, None], 0)


def snapshot(sums, pull=0.04, kept=1.0, clip=0.2):
  ratio = np.exp(sums - ANCHOR.sum(1))
  surrogate = np.minimum(ratio * normalised(), np.clip(ratio, 1 - clip, 1 + clip) * normalised())
  return -np.sum(kept * (surrogate - pull * (1 / ratio + np.log(ratio) - 1)))


def cross_entropy(sums, target, kept=1.0):
  total = 0.0
  for g in range(3):
    here = GROUP == g
    q = np.exp(target[here]) / np.exp(target[here]).sum()
    log_p = sums[here] - np.log(np.exp(sums[here]).sum())
    total -= np.sum(np.broadcast_to(kept, GROUP.shape)[here] * q * log_p)
  return total


INFORMATIVE = (GROUP != 1).astype(float)
TARGET = ANCHOR.sum(1) + normalised()
LOSSES = {
    "snapshot_grpo": snapshot,
    "snapshot_grpo?pull=0.0": lambda sums: snapshot(sums, 0.0),
    "snapshot_grpo?drop_equal=True": lambda sums: snapshot(sums, kept=1.5 * INFORMATIVE),
    "tpo_without_anchor": lambda sums: cross_entropy(sums, normalised()),
    "tpo_drop_equal": lambda sums: cross_entropy(sums, TARGET, INFORMATIVE),
}


@pytest.mark.parametrize("name", LOSSES)
def test_coefficients_are_the_gradient_of_the_loss(name):
  coefficients = gradient(f"{FORMS}:{name}")
  np.testing.assert_allclose(coefficients, slope(LOSSES[name]), rtol=1e-5, atol=1e-7)
  for other in LOSSES:  # what the check rejects: any other of them
    assert other == name or np.abs(coefficients - slope(LOSSES[other])).max() > 1e-3
