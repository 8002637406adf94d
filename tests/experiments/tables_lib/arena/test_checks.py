"""The arena's own checks hold for every task, and reject wrong versions of what they check."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.tables_lib import arena
from experiments.tables_lib.arena import automata, checks, rows, runs, updates
from experiments.tables_lib.arena.setting import Setting
from jaxrl_llm.config import ConfigError

TASKS = ("dense", "ending", "sparse", "verdict", "warm")
SHORT = Setting(length=32, groups=32, group_size=8, batches=1)


@pytest.mark.nightly
def test_all_checks_of_a_lab_hold():
  text = arena.Lab(length=32).check()
  assert all(f"return, {name}" in text and f"gradient, {name}" in text for name in TASKS)
  assert "holds ages 0 to 64" in text


def test_a_policy_that_remembers_samples_its_first_return():
  assert abs(checks.sampled_return(Setting(length=16, policy="gru")).errors) < checks.ERRORS


@pytest.mark.slow
def test_ended_rows_that_walk_on_are_rejected(monkeypatch):
  after = rows._after
  monkeypatch.setattr(rows, "_after", lambda automaton, index, uniforms, live: (
      after(automaton, index, uniforms, live)[0], live))
  with pytest.raises(RuntimeError, match=r"return, ending: sampled .* standard errors apart"):
    arena.Lab(task="ending", length=32).check()


def test_a_gradient_that_forgets_the_weights_is_rejected(monkeypatch):
  right = updates.loss_weights
  monkeypatch.setattr(updates, "loss_weights",
                      lambda method, batch: jnp.where(jnp.arange(32) < 16, right(method, batch), 0))
  assert abs(checks.sampled_gradient(SHORT).errors) > checks.ERRORS


def test_a_ring_that_wraps_is_rejected(monkeypatch):
  monkeypatch.setattr(runs, "policy_of_age",
                      lambda ring, iteration, age: ring[(iteration - age % 64) % ring.shape[0]])
  with pytest.raises(RuntimeError, match="ring = 65"):
    checks.check_ring(SHORT)


def test_an_age_that_the_ring_does_not_hold_is_an_error(monkeypatch):
  with pytest.raises(ConfigError, match=r"ages = \[4, 16\] with ring = 8.*Fix: ring=17"):
    arena.Lab(length=16, ring=8).sweep(["cispo"], ages=[4, 16], seeds=2)
  monkeypatch.setattr(Setting, "check_ages", lambda self, ages: None)
  with pytest.raises(RuntimeError, match="would wrap"):
    checks.check_ring(SHORT)


def test_a_method_off_by_its_aggregation_is_rejected(monkeypatch):
  monkeypatch.setattr(checks, "COMPARED", ("cispo", "grpo?advantage=dr_grpo"))
  assert checks.first_gradients(SHORT) > checks.RELATIVE


@pytest.mark.parametrize("name", TASKS)
def test_returns_are_those_of_an_enumeration_over_time(name):
  """The matrix power against a loop over tokens that keeps the distribution of states."""
  automaton, length = automata.make(name, jax.random.key(3), 24), 24
  probs = np.asarray(jnp.exp(automaton.first_logits)
                     / jnp.exp(automaton.first_logits).sum(-1, keepdims=True), np.float64)
  alive, total = np.asarray(automaton.starts, np.float64), 0.0
  for _ in range(length):
    following = np.zeros_like(alive)
    for state, token in np.ndindex(*probs.shape):
      mass = alive[state] * probs[state, token]
      if automaton.end is not None and automaton.end[state, token]:
        total += mass * float(automaton.win[state])
        continue
      mass *= 1 - float(automaton.hazard[state, token])
      chance = 0.0 if automaton.branch is None else float(automaton.branch_chance[state, token])
      following[int(automaton.next[state, token])] += mass * (1 - chance)
      if chance:
        following[int(automaton.branch[state, token])] += mass * chance
    alive = following
    if automaton.state_rewards is not None:
      total += alive @ np.asarray(automaton.state_rewards) / length
  if automaton.state_rewards is None and automaton.end is None:
    total += alive.sum()
  assert float(automata.exact_return(automaton, jnp.asarray(probs, jnp.float32),
                                     length)) == pytest.approx(total, rel=1e-4)
  assert float(automata.optimum(automaton, length)) >= total


def test_a_users_task_is_one_by_its_name():
  @arena.task("coin")
  def coin(key, length):
    del key, length
    shape = (2, 4)
    hazard = jnp.zeros(shape).at[:, 0].set(0.1)
    return arena.Automaton(jnp.zeros(shape, jnp.int32), hazard, None, None, jnp.array([1.0, 0.0]),
                           jnp.zeros(shape))

  begin = runs.start(0, Setting(task="coin", length=8))
  assert float(begin.first_return) == pytest.approx(0.975 ** 8, rel=1e-5)
  assert float(begin.optimum) == 1.0


@pytest.mark.parametrize("wrong, message", [
    ({"starts": jnp.ones(3) / 3}, r"starts has the shape \(3,\)"),
    ({"branch": jnp.zeros((2, 4), jnp.int32)}, "give both or neither"),
    ({"end": jnp.zeros((2, 4), bool), "state_rewards": jnp.ones(2)}, "state_rewards with end"),
])
def test_a_wrong_automaton_is_blamed_on_its_task(wrong, message):
  right = arena.Automaton(jnp.zeros((2, 4), jnp.int32), jnp.zeros((2, 4)), None, None,
                          jnp.array([1.0, 0.0]), jnp.zeros((2, 4)))
  arena.task("wrong")(lambda key, length: right._replace(**wrong))
  with pytest.raises(ConfigError, match=f"automaton 'wrong'.*{message}"):
    automata.make("wrong", jax.random.key(0), 8)
