"""A run holds its start, and older policies, only as long as the training reads them."""

import gc

import jax
import pytest
import tiny

from jaxrl_llm.config import from_dict
from jaxrl_llm.runs import trainer
from jaxrl_llm.wiring import warm_start


def embeddings() -> int:
  """Arrays of the embedding's shape that are alive, without the shards that a checkpoint reads."""
  gc.collect()
  return sum(x.shape == (17, 16) and len(x.sharding.device_set) > 1 for x in jax.live_arrays())


def copies_while_training(monkeypatch, folder, iterations=2, **keys) -> list[int]:
  config = tiny.get_config()
  config.iterations = iterations
  config.warm_start.steps = 2
  config.update_from_flattened_dict(keys)
  counts, real = [], trainer.iterate

  def counting(*arguments):
    counts.append(embeddings())
    return real(*arguments)

  monkeypatch.setattr(trainer, "iterate", counting)
  trainer.run(from_dict(config), folder)
  return counts


@pytest.mark.parametrize("keys, extra", [
    pytest.param({}, 0, id="none", marks=pytest.mark.nightly),
    pytest.param({"kl.coef": 0.1}, 1, id="kl", marks=pytest.mark.nightly)])
def test_the_start_is_held_for_a_reference_alone(monkeypatch, tmp_path, keys, extra):
  before = embeddings()
  counts = copies_while_training(monkeypatch, tmp_path / "run", **keys)
  # parameters and two moments
  assert counts == [before + 3 + extra] * 2


@pytest.mark.parametrize("held", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_old_policies_go_when_others_replace_them(monkeypatch, tmp_path, held):
  begun, real = [], trainer.first_state

  def first_state(*arguments):
    state = real(*arguments)
    begun.extend([state] * held)
    return state

  monkeypatch.setattr(trainer, "first_state", first_state)
  before = embeddings()
  counts = copies_while_training(monkeypatch, tmp_path / "run", 4, **{"updates.staleness": 2})
  # parameters, two moments, two older policies; whoever holds the first state has the first two
  assert counts == [before + 5 + more * held for more in (0, 1, 2, 2)]


@pytest.mark.parametrize("held", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_the_warm_start_replaces_what_it_begins_with(monkeypatch, tmp_path, held):
  counts, split, train_step = [], warm_start._initial_split, warm_start.make_train_step
  copies = []

  def initial_split(*arguments):
    start = split(*arguments)
    copies.extend([jax.tree.map(jax.numpy.copy, start.params)] * held)
    return start

  def make_train_step(*arguments):
    step = train_step(*arguments)

    def counting(*arguments):
      counts.append(embeddings())
      return step(*arguments)

    return counting

  monkeypatch.setattr(warm_start, "_initial_split", initial_split)
  monkeypatch.setattr(warm_start, "make_train_step", make_train_step)
  before = embeddings()
  copies_while_training(monkeypatch, tmp_path / "run", 1)
  assert counts == [before + 3 + held] * 2  # parameters and two moments
