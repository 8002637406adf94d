"""The adapter of reasoning-gym: separate seeds, no partial credit, clear errors."""

import sys

import pytest

from jaxrl_llm.config import ConfigError, GymConfig, RolloutConfig, TaskConfig
from jaxrl_llm.tasks import make_task


def make(name="chain_sum", *, seed=0, size=20, options="{}", limits=None, heldout=8):
  cfg = TaskConfig(name="reasoning_gym", heldout_problems=heldout,
                   gym=GymConfig(name, size, options))
  return make_task(cfg, seed, 4, limits=limits)


def test_without_the_package_the_command_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, "reasoning_gym", None)
  with pytest.raises(ConfigError, match=r"pip install -e '.\[gym\]'"):
    make()


@pytest.fixture(scope="module")
def gym():
  return pytest.importorskip("reasoning_gym")


def test_batches_cover_the_data_set(gym):
  task = make()
  assert {p.id for i in range(5) for p in task.batch(i)} == {f"train-{i}" for i in range(20)}


def test_train_and_heldout_seeds_do_not_overlap(gym):
  task = make(size=500)
  questions = {p.prompt for i in range(125) for p in task.batch(i)}
  heldout = task.heldout(8)
  assert len({p.prompt for p in heldout}) == 8 and not questions & {p.prompt for p in heldout}
  assert make(seed=3).heldout(8) == heldout
  # the trap: a near seed repeats training items
  near = gym.create_dataset("chain_sum", seed=499, size=8)
  assert near[0]["question"] in questions


def test_no_partial_credit(gym):
  task = make()
  problem = task.batch(0)[0]
  entry = task._entry(*problem.id.split("-")[:1], int(problem.id.split("-")[1]))
  junk = f"junk {problem.answer}"
  assert 0 < task._sets["train"].score_answer(junk, entry) < 1
  assert task.reward(problem, junk).value == 0.0
  assert task.reward(problem, problem.answer).value == 1.0
  assert task.reward(problem, f"so <answer> {problem.answer} </answer>").correct
  assert task.tokenizer.decode(task.demonstration(problem)[:-1]) == problem.answer


def test_items_that_do_not_fit_are_replaced(gym):
  limit = 85
  free, task = make(), make(limits=RolloutConfig(max_prompt_tokens=limit))
  assert free.longest_prompt() > limit >= task.longest_prompt()
  assert all(len(task.render(p)) <= limit for i in range(10) for p in task.batch(i))
  assert all(len(task.render(p)) <= limit for p in task.heldout(4))
  with pytest.raises(ConfigError, match=r"rollout.max_prompt_tokens = 5"):
    make(limits=RolloutConfig(max_prompt_tokens=5)).batch(0)


@pytest.mark.parametrize("name,options,message",
                         [("chain_summ", "{}", "Did you mean 'chain_sum'"),
                          ("chain_sum", '{"no": 1}', "task.gym.options"),
                          ("chain_sum", "{", "task.gym.options"),
                          ("chain_sum", "[1]", "task.gym.options"),
                          ("composite", '{"datasets": [{"name": "chain_sum"}]}', "task.gym.opt"),
                          ("chain_sum", '{"min_terms": -1}', "min_terms must be positive")])
def test_bad_options(gym, name, options, message):
  with pytest.raises(ConfigError, match=message):
    make(name, options=options)


def test_options_reach_the_data_set(gym):
  task = make(options='{"min_terms": 2, "max_terms": 2}')
  assert all(p.prompt.count(" + ") + p.prompt.count(" - ") == 1 for p in task.batch(0))
