"""Advantages of 2025-26 against loops over one group, worked numbers, and their limits."""

import jax.numpy as jnp
import numpy as np
import pytest
from reference import advantages_2026 as reference

from jaxrl_llm.config import AdvantageConfig, ConfigError, from_dict
from jaxrl_llm.objective import advantages
from jaxrl_llm.types import AdvantageInputs

ONE_RIGHT = (1.0, 0.0, 0.0, 0.0)
WORKED = [
    ("maxrl", {}, [3, -1, -1, -1]),
    ("pass_k", {"k": 2}, [1, -1 / 3, -1 / 3, -1 / 3]),
    ("pass_k", {"k": 1}, [1.732, -.577, -.577, -.577]),
    ("opmd", {}, [.6426, -.3574, -.3574, -.3574]),
    ("asymre", {}, [.85, -.15, -.15, -.15]),
]
GROUPS = [(1.0, 0.0, 1.0, 0.0, 0.0, 0.0), ONE_RIGHT, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0, 1.0),
          (1.0, 0.0), (1.0, 1.0, 0.0), (0.25, 2.0, 1.0, 2.0), (0.2, 0.7, 0.4)]
LOOPS = [("maxrl", {}), ("opmd", {}), ("opmd", {"tau": 0.2}), ("asymre", {}),
         ("asymre", {"shift": 0.3}), ("pass_k", {"k": 1}), ("pass_k", {"k": 2}),
         ("pass_k", {"k": 3}), ("pass_k", {"k": 5}), ("pass_k_best", {}),
         ("pass_k_best", {"normalize": False})]


def rows(groups, parts=None, length=3):
  """Inputs of several groups, in turn: the rows of a group do not stand together."""
  listed = sorted((i, g) for g, rewards in enumerate(groups) for i in range(len(rewards)))
  rewards = jnp.asarray([groups[g][i] for i, g in listed], jnp.float32)
  mask = jnp.ones((len(listed), length), bool).at[::2, -1].set(False)
  inputs = AdvantageInputs(
      rewards, mask, jnp.zeros(mask.shape, jnp.int32), jnp.asarray([g for _, g in listed]),
      reward_parts=None if parts is None else jnp.asarray([parts[g][i] for i, g in listed]))
  return inputs, [(g, i) for i, g in listed]


def of_rows(name, groups, parts=None, **numbers):
  """{(group, row): advantage}."""
  inputs, listed = rows(groups, parts)
  values = advantages.get_advantage(name)(inputs, AdvantageConfig(name, **numbers))
  return dict(zip(listed, np.asarray(values[:, 0]), strict=True))


@pytest.mark.parametrize(("name", "numbers", "expected"), WORKED)
def test_worked_numbers(name, numbers, expected):
  by_row = of_rows(name, [ONE_RIGHT], **numbers)
  np.testing.assert_allclose([by_row[0, i] for i in range(4)], expected, atol=5e-4)
  plain = of_rows("dr_grpo", [ONE_RIGHT])
  assert abs(by_row[0, 0] - plain[0, 0]) > 0.05


def largest_difference(name, numbers, loop):
  by_row = of_rows(name, GROUPS, **numbers)
  return max(abs(by_row[g, i] - value) for g, rewards in enumerate(GROUPS)
             for i, value in enumerate(loop(list(rewards), **numbers)))


@pytest.mark.parametrize(("name", "numbers"), LOOPS)
def test_equal_the_loop(name, numbers):
  """Equal rewards, ties for the best row, and fewer rows than k are among the groups."""
  assert largest_difference(name, numbers, getattr(reference, name)) < 1e-5


def _without_k(rewards, k):
  return reference.pass_k(rewards, 1)


def _mean_baseline(rewards, tau):
  return reference.asymre(rewards, shift=0.0)


@pytest.mark.parametrize(("name", "numbers", "wrong"), [
    ("pass_k", {"k": 2}, _without_k), ("opmd", {"tau": 0.2}, _mean_baseline)])
def test_the_loop_rejects_another_advantage(name, numbers, wrong):
  assert largest_difference(name, numbers, wrong) > 0.1


def test_limits():
  dr_grpo = of_rows("dr_grpo", GROUPS)
  for name, numbers in (("opmd", {"tau": 1e4}), ("asymre", {"shift": 0.0})):
    by_row = of_rows(name, GROUPS, **numbers)
    np.testing.assert_allclose([*by_row.values()], [*dr_grpo.values()], atol=2e-3)
  largest = of_rows("opmd", GROUPS, tau=1e-3)
  assert largest[6, 1] == pytest.approx(0, abs=1e-2) and largest[6, 0] == pytest.approx(-1.75, 0.01)
  scale = of_rows("maxrl", [(7.0, 0.0, 0.0, 0.0)])
  assert scale[0, 0] == pytest.approx(3, abs=1e-4)
  binary = [g for g in GROUPS if set(g) <= {0.0, 1.0}]
  population = of_rows("grpo", binary, ddof=0)
  np.testing.assert_allclose([*of_rows("pass_k", binary, k=1).values()], [*population.values()],
                             atol=1e-5)
  for k in (1, 2, 3):
    by_row = of_rows("pass_k", binary, k=k)
    sums = [sum(v for (g, _), v in by_row.items() if g == group) for group in range(len(binary))]
    np.testing.assert_allclose(sums, 0, atol=1e-5)


def test_too_few_rows_for_k_are_counted():
  inputs, _ = rows([ONE_RIGHT, (1.0, 0.0)])
  metric = advantages.metrics(inputs, AdvantageConfig("pass_k", k=3))["advantage/too_few"]
  assert (float(metric.total), float(metric.count)) == (2, 6)


PARTS = [[(1.0, 300.0), (0.0, 100.0), (1.0, 200.0), (0.0, 0.0)],
         [(1.0, 50.0), (1.0, 0.0), (1.0, 100.0)]]
SUMS = [[sum(row) for row in group] for group in PARTS]


def gdpo(parts=PARTS, **numbers):
  return of_rows("gdpo", [[sum(row) for row in group] for group in parts], parts, **numbers)


def test_gdpo_equals_the_loop():
  """Every row weighs as many times as it has policy tokens: 2 or 3."""
  inputs, listed = rows(SUMS, PARTS)
  columns = [list(zip(*group, strict=True)) for group in PARTS]
  scores = {(g, i): z for g, parts in enumerate(columns)
            for i, z in enumerate(reference.gdpo_scores(parts, (1.0, 0.5)))}
  tokens = [(row, scores[row]) for row, mask in zip(listed, np.asarray(inputs.mask), strict=True)
            for _ in range(mask.sum())]
  by_token = gdpo(weights=(1.0, 0.5))
  z_scores = {row: w for (row, _), w in zip(tokens, reference.whitened([z for _, z in tokens]),
                                            strict=True)}
  np.testing.assert_allclose([by_token[row] for row in z_scores], [*z_scores.values()], atol=1e-5)
  by_rows = gdpo(weights=(1.0, 0.5), whiten="rows")
  expected = np.array([scores[row] for row in by_rows])
  expected = (expected - expected.mean()) / (expected.std(ddof=1) + 1e-4)
  np.testing.assert_allclose([*by_rows.values()], expected, atol=1e-5)
  assert np.abs(np.array([*by_token.values()]) - expected).max() > 1e-3


def test_a_part_times_a_hundred_changes_nothing_in_gdpo():
  larger = [[(a, 100 * b) for a, b in group] for group in PARTS]
  np.testing.assert_allclose([*gdpo(larger).values()], [*gdpo().values()], atol=1e-5)
  grpo = of_rows("grpo", SUMS)
  changed = of_rows("grpo", [[sum(row) for row in group] for group in larger])
  assert max(abs(grpo[row] - changed[row]) for row in grpo) > 1e-3  # the sum does notice


def test_gdpo_with_one_part_is_whitened_grpo():
  single = [[(sum(row),) for row in group] for group in PARTS]
  inputs, _ = rows(SUMS)
  grpo = np.asarray(advantages.get_advantage("grpo")(inputs, AdvantageConfig("grpo")))
  inputs, _ = rows(SUMS, single)
  values = np.asarray(advantages.get_advantage("gdpo")(inputs, AdvantageConfig("gdpo")))
  mask = np.asarray(inputs.mask)
  expected = (grpo - grpo[mask].mean()) / grpo[mask].std(ddof=1)
  np.testing.assert_allclose(values[mask], expected[mask], atol=1e-4)


def test_gdpo_refuses_another_number_of_weights():
  with pytest.raises(ConfigError, match="3 weights for 2 parts"):
    gdpo(weights=(1.0, 1.0, 1.0))
  with pytest.raises(ValueError, match="reward_parts"):
    of_rows("gdpo", [ONE_RIGHT])
  cfg = from_dict({"advantage": {"name": "gdpo", "weights": (1.0, 2.0)}})
  assert cfg.advantage.weights == (1.0, 2.0)
  with pytest.raises(ConfigError):
    from_dict({"advantage": {"name": "gdpo", "weights": "much"}})
