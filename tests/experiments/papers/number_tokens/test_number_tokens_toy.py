"""experiments/papers/number_tokens: equal problems, updates and parameters for every kind."""

import dataclasses
import itertools
import math
import re
import sys
from decimal import Decimal
from pathlib import Path

import experiment_files
import jax
import pytest

from jaxrl_llm.config import from_dict
from jaxrl_llm.models import trainable
from jaxrl_llm.tasks import TASKS, demonstrations, make_task
from jaxrl_llm.wiring import setup

HERE = Path(__file__).parents[4] / "experiments" / "papers" / "number_tokens"
TOKENS = ("characters", "marker", "vocabulary")
PAIRS = list(itertools.product(("compare", "add"), TOKENS))


def config_of(operation: str, tokens: str):
  values = experiment_files.load(HERE / "config.py").get_config(f"{operation},{tokens}")
  values.plugins = (str(HERE / "task.py"),)
  return setup.resolve(from_dict(values))


def plugin():
  """task.py, as the run imports it."""
  return sys.modules[TASKS["numbers"].function.__module__]


@pytest.fixture(scope="module")
def configs():
  return {pair: config_of(*pair) for pair in PAIRS}


def task_of(cfg, seed=0):
  return make_task(cfg.task, seed, cfg.warm_start.batch_size, limits=cfg.rollout)


def asked(problem):
  """What a problem asks, whichever tokens write it."""
  return problem.id.split(" ")[0]


def parameters(cfg) -> int:
  cfg, _, learner = setup.build_learner(cfg, jax.devices()[:1])
  shapes = trainable.shapes_of(learner.model, cfg.parameters)
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


@pytest.mark.nightly
@pytest.mark.parametrize("operation", ["compare", "add"])
def test_every_kind_of_tokens_gets_the_same_problems_and_parameters(configs, operation):
  tasks = [task_of(configs[operation, tokens], seed=3) for tokens in TOKENS]
  for problems in ([task.batch(5) for task in tasks], [task.heldout(84) for task in tasks]):
    assert len({tuple(map(asked, batch)) for batch in problems}) == 1
    assert len({tuple(problem.answer for problem in batch) for batch in problems}) == 1
  assert {asked(p) for p in tasks[0].batch(5)} != {asked(p) for p in tasks[0].batch(6)}
  cfgs = [configs[operation, tokens] for tokens in TOKENS]
  assert len({(cfg.warm_start, cfg.optimizer, cfg.iterations) for cfg in cfgs}) == 1
  assert len({parameters(cfg) for cfg in cfgs}) == 1
  by_tokens = [dataclasses.replace(cfg, model=dataclasses.replace(cfg.model,
                                                                  vocab_size=len(task.tokenizer)))
               for cfg, task in zip(cfgs, tasks, strict=True)]
  assert len({parameters(cfg) for cfg in by_tokens}) == 3, "without equal rows the sizes differ"


@pytest.mark.parametrize("operation, tokens", PAIRS)
def test_training_has_no_held_out_problem_and_no_other_length(configs, operation, tokens):
  cfg = configs[operation, tokens]
  task = task_of(cfg)
  heldout = task.heldout(cfg.task.heldout_problems)
  lengths = [problem.id.split()[1] for problem in heldout]
  assert {lengths.count(f"length_{n}") for n in plugin().ASKED[operation]} == {
      len(heldout) // len(plugin().ASKED[operation])}
  trained = [problem for index in range(20) for problem in task.batch(index)]
  assert not set(map(asked, trained)) & set(map(asked, heldout))
  assert {problem.id.split()[1] for problem in trained} == {
      f"length_{n}" for n in plugin().TRAINED[operation]}
  assert set(plugin().TRAINED[operation]) < set(plugin().ASKED[operation])


@pytest.mark.parametrize("operation, tokens", PAIRS)
def test_a_demonstration_is_right_and_every_row_fits(configs, operation, tokens):
  cfg = configs[operation, tokens]
  task = task_of(cfg)
  for problem in [*task.heldout(300), *demonstrations.demonstrating(
      cfg.warm_start, cfg.task, cfg.rollout, 7, None).batch(0)]:
    ids = task.demonstration(problem)
    assert len(task.render(problem)) <= cfg.rollout.max_prompt_tokens
    assert len(ids) <= cfg.rollout.max_new_tokens
    assert task.reward(problem, task.tokenizer.decode(ids[:-1])).correct
    first, second = map(Decimal, re.split(r"[?+]", asked(problem).rstrip("=")))
    if operation == "add":
      right, wrong = str(first + second), str(first + second + 1)
    else:
      right, wrong = "<>" if first < second else "><"
    assert problem.answer == right
    assert not task.reward(problem, task._written(wrong)).correct
