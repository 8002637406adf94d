"""experiments/papers/budgets: the policy's gradient, its search on a known cost, and the page."""

import copy
from pathlib import Path

import experiment_files
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.tables_lib import seed_results

FOLDER = Path(__file__).parents[4] / "experiments" / "papers" / "budgets"
run = experiment_files.load(FOLDER / "run.py")


def committed():
  return seed_results.load(FOLDER, run.SEEDS)


def exact(results) -> bool:
  """Whether every allocation keeps exactly the budget, within the bounds of each layer."""
  total = run.LAYERS * run.CHANNELS
  budgets = {"dense": total}
  return all(sum(kept) == budgets.get(name, total - round(run.TARGET * total))
             and run.LEAST <= min(kept) and max(kept) <= run.CHANNELS
             for one in results for name, kept in one["kept"].items())


def below_uniform(results, name="policy, no curriculum") -> int:
  """How many seeds have an allocation whose loss on the reported rows is below uniform pruning."""
  return sum(one["loss"][name] < one["loss"]["uniform"] for one in results)


def test_the_committed_budgets_are_exact_and_below_uniform():
  """On every seed without a curriculum, and on four of five with it."""
  results = committed()
  assert len(results) == 5 and exact(results) and below_uniform(results) == 5
  assert below_uniform(results, "policy, curriculum") == 4
  wrong = copy.deepcopy(results)
  wrong[3]["kept"]["policy, curriculum"][0] += 1
  assert not exact(wrong)
  wrong[3]["loss"]["policy, no curriculum"] = wrong[3]["loss"]["uniform"]
  assert below_uniform(wrong) == 4


# --- the policy


def unbiased(surrogate) -> bool:
  """Whether its mean over many actions is minus the gradient of the expected reward.

  The reward is c . a for a linear c, and a^2 of one layer: the exact expectations are c . mean and
  mean^2 + spread^2.
  """
  policy = run.start_policy() | {"mean": jnp.linspace(-1, 1, run.LAYERS),
                                 "slope": jnp.linspace(0.5, -0.5, run.LAYERS)}
  c, target = jnp.arange(1.0, run.LAYERS + 1), 0.15

  def expected(policy):
    mean = run.mean_of(policy, target)
    return c @ mean + mean[0]**2 + jnp.exp(2 * policy["log_spread"][0])

  noise = np.random.default_rng(0).normal(size=(400_000, run.LAYERS))
  noise = np.concatenate([noise, -noise])
  actions = jnp.asarray(run.mean_of(policy, target) + jnp.exp(policy["log_spread"]) * noise)
  rewards = actions @ c + actions[:, 0]**2
  gradient = jax.grad(surrogate)(policy, actions, rewards - rewards.mean(), target)
  exact = jax.grad(expected)(policy)
  return all(np.allclose(-gradient[name], exact[name], atol=0.1) for name in exact)


@pytest.mark.nightly
def test_the_surrogate_has_the_gradient_of_the_expected_reward():
  assert unbiased(run.surrogate)
  spread_fixed = lambda policy, *given: run.surrogate(
      policy | {"log_spread": jax.lax.stop_gradient(policy["log_spread"])}, *given)
  wrong_sign = lambda *given: -run.surrogate(*given)
  other_target = lambda policy, actions, advantages, target: run.surrogate(
      policy, actions, advantages, run.TARGET)
  for wrong in (spread_fixed, wrong_sign, other_target):
    assert not unbiased(wrong)


def test_a_reward_is_compared_with_the_others():
  rewards = np.array([1.0, 2.0, 6.0])
  others = np.array([1 - 4, 2 - 3.5, 6 - 1.5])
  np.testing.assert_allclose(run.leave_one_out(rewards), others / rewards.std())
  np.testing.assert_array_equal(run.leave_one_out(np.full(4, 0.3)), np.zeros(4))


def test_targets_rise_to_the_full_one():
  with_curriculum, without = run.targets(True), run.targets(False)
  assert len(with_curriculum) == len(without) == run.UPDATES
  assert with_curriculum[0] == run.EASY and (np.diff(with_curriculum) >= 0).all()
  assert (with_curriculum[run.UPDATES // 2:] == run.TARGET).all() and (without == run.TARGET).all()


def known():
  """A case whose loss is known: a channel of layer l costs the more, the larger l."""

  class Known(run.Pruned):
    def losses(self, kept, rows):
      missing = run.CHANNELS - np.stack(kept)
      return 1e-3 * (missing**2) @ 2.0**np.arange(run.LAYERS)

  return Known({}, np.zeros((run.LAYERS, run.CHANNELS)), [])


def searched(curriculum: bool):
  """(case, kept channels of the layers, loss of a uniform allocation, loss of that)."""
  case = known()
  kept = case.kept(run.search(case, 0, curriculum=curriculum), run.TARGET)
  uniform, loss = case.losses([case.kept(np.zeros(run.LAYERS), run.TARGET), kept], slice(None))
  return case, kept, uniform, loss


@pytest.mark.nightly
@pytest.mark.parametrize("curriculum", [False, True])
def test_the_search_finds_the_cheap_layers(curriculum):
  _, kept, uniform, loss = searched(curriculum)
  assert loss < 0.6 * uniform
  assert kept[0] < kept[-1] and kept.sum() == run.WIDTHS.sum() - round(0.3 * run.WIDTHS.sum())


@pytest.mark.nightly
def test_a_search_that_climbs_the_other_way_finds_nothing(monkeypatch):
  monkeypatch.setattr(run, "leave_one_out", lambda rewards: -(rewards - rewards.mean()))
  case, _, uniform, loss = searched(curriculum=True)
  assert loss > uniform
  by_chance = case.losses([case.kept(run.random_search(case, 0), run.TARGET)], slice(None))
  assert by_chance < uniform


@pytest.mark.nightly
def test_a_small_run_measures_all_allocations(monkeypatch):
  for name, value in {"STEPS": 3, "BATCH": 8, "UPDATES": 2, "SAMPLES": 2, "REPORTED": 1}.items():
    monkeypatch.setattr(run, name, value)
  numbers = run.one_seed(7)
  assert exact([numbers])
  assert all(part.keys() == committed()[0]["loss"].keys() for part in (
      numbers["loss"], numbers["kept"], numbers["loss_of_rewards"]))
  case = run.trained(7)
  # The masks and their order: all channels is the model itself.
  full_loss = float(run.sft_loss(case.params, case.rows[0], model=run.MODEL, cfg=None)[0])
  assert case.losses([run.WIDTHS], slice(1))[0] == pytest.approx(full_loss, rel=1e-5)
  fewer = case.kept(np.zeros(run.LAYERS), 0.5)
  more, less = case.losses([run.WIDTHS, fewer], slice(2, 3))
  np.testing.assert_allclose(case.rewards([run.WIDTHS, fewer], run.ROWS + 2),
                             [1, np.exp(more - less)], rtol=1e-5)
