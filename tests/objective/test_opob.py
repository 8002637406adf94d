"""VCPO's baseline against a loop over a group, its limits, and log-energies of any size."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from reference import advantages_2026 as reference

from jaxrl_llm.config import AdvantageConfig
from jaxrl_llm.objective import advantages
from jaxrl_llm.types import AdvantageInputs

GROUPS = [((1.0, 0.0, 0.0, 0.5), (-1.0, 2.0, 0.5, 3.0)), ((0.2, 0.7, 0.4), (4.0, -4.0, 0.0)),
          ((1.0, 1.0, 1.0), (0.0, 1.0, 2.0)), ((2.0, -1.0), (1.0, 1.0))]
LENGTHS = np.array([5, 1, 3, 2, 4, 4, 2, 1, 5, 3, 2, 1])


def opob(groups, name="opob", **numbers):
  """Advantages of the rows of several groups, of different lengths, in turn."""
  listed = sorted((i, g) for g, (rewards, _) in enumerate(groups) for i in range(len(rewards)))
  mask = jnp.asarray(np.arange(6) < LENGTHS[:len(listed), None])
  rewards, energy = (jnp.asarray([groups[g][k][i] for i, g in listed], jnp.float32)
                     for k in (0, 1))
  columns = {"row_gradient": jnp.where(mask, energy[:, None], jnp.nan)}
  inputs = AdvantageInputs(rewards, mask, 0 * mask, jnp.asarray([g for _, g in listed]),
                           columns=columns)
  rows = np.asarray(advantages.get_advantage(name)(inputs, AdvantageConfig(name, **numbers)))
  assert (rows[~np.asarray(mask)] == 0).all()
  np.testing.assert_array_equal(rows[np.asarray(mask)],
                                np.repeat(rows[:, 0], LENGTHS[:len(listed)]))
  order = np.argsort([g for _, g in listed], kind="stable")
  return rows[order, 0]


def by_loop(change=lambda e: e, **numbers):
  return np.concatenate([reference.opob(rewards, [change(e) for e in energies], **numbers)
                         for rewards, energies in GROUPS])


@pytest.mark.parametrize("normalize", [False, True])
def test_equals_the_loop(normalize):
  values = opob(GROUPS, normalize=normalize)
  np.testing.assert_allclose(values, by_loop(normalize=normalize), rtol=1e-5, atol=1e-6)
  # What the check rejects: the norm without its square, and the group's mean.
  for wrong in (lambda e: e / 2, lambda e: 0.0):
    assert np.abs(values - by_loop(wrong, normalize=normalize)).max() > 0.03


def test_limits():
  equal = [(rewards, (0.3,) * len(rewards)) for rewards, _ in GROUPS]
  np.testing.assert_allclose(opob(equal), opob(equal, "dr_grpo"), atol=1e-6)
  # A row that outweighs the others is its own baseline.
  np.testing.assert_allclose(opob([((1.0, 0.0, 4.0), (0.0, 40.0, 0.0))]), [1, 0, 4], atol=1e-6)
  # The squared norm grows as the length where the tokens' gradients are orthogonal.
  rewards = (1.0, 0.0, 0.5, 0.0)
  of_length = [(rewards, tuple(map(math.log, LENGTHS[:4])))]
  np.testing.assert_allclose(opob(of_length), opob(of_length, "opo"), atol=1e-6)


@pytest.mark.parametrize("shift", [-1e4, 1e4])
def test_only_the_energies_differences_count(shift):
  shifted = [(rewards, tuple(e + shift for e in energies)) for rewards, energies in GROUPS]
  np.testing.assert_allclose(opob(shifted), by_loop(), atol=2e-3)  # f32 of 1e4 has steps of 1e-3
  large = opob([((1e4, -1e4, 0.0), (1e4, -1e4, 0.0))])
  np.testing.assert_allclose(large, [0, -2e4, -1e4], rtol=1e-6)
  # exp of the sums, as the code has it, is infinite or 0 there.
  with np.errstate(over="ignore", invalid="ignore"):
    plain = np.exp(np.float32(2) * np.float32(shift))
  assert not np.isfinite(plain) or plain == 0


def test_rows_without_gradient_or_group():
  nothing = opob([((1.0, 0.0), (-math.inf, -math.inf)), ((3.0,), (1.0,))])
  np.testing.assert_allclose(nothing, [0.5, -0.5, 0.0])
  np.testing.assert_allclose(opob([((1.0, 0.0), (-math.inf, 0.0))]), [1.0, 0.0])
