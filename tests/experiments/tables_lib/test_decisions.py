"""Tokens that are forced or forbidden: is a task a switch?"""

import jax
import numpy as np
import pytest

from experiments.tables_lib import decisions
from experiments.tables_lib.decisions import FREE, Case, Rules
from jaxrl_llm.config import ModelConfig, TaskConfig
from jaxrl_llm.models import Model
from jaxrl_llm.runs.rollout_batch import prompt_batch
from jaxrl_llm.tasks.recurrence import Recurrence

STEPS, COUNT = 5, 32


@pytest.fixture(scope="module")
def case():
  """An untrained network, whose tokens are near uniform."""
  task = Recurrence(TaskConfig("recurrence", steps=STEPS), 0, COUNT)
  model = Model(ModelConfig(vocab_size=12, width=16, num_layers=1, num_heads=1, num_kv_heads=1,
                            head_dim=16, mlp_width=16))
  rules = Rules(STEPS + 1, STEPS, tuple(task.stop_ids), task.tokenizer.pad_token_id)
  return Case(task, model, rules, 4), model.init(jax.random.key(0))


def sampled(case, params, forced=None, forbidden=None) -> np.ndarray:
  shape = (COUNT, case.rules.steps)
  prompts = prompt_batch(case.task, case.task.heldout(COUNT), case.width)
  return np.asarray(decisions.sample(
      params, prompts, jax.random.key(1), decisions.Interventions(
          np.full(shape, FREE, np.int32) if forced is None else forced,
          np.zeros((COUNT, 12), bool) if forbidden is None else forbidden),
      model=case.model, rules=case.rules))


def test_forced_tokens_stand_and_forbidden_ones_do_not(case):
  case, params = case
  free = sampled(case, params)
  assert len(np.unique(free[:, :STEPS])) > 6 and not np.isin(free[:, :STEPS], 1).any()
  forced = np.full(free.shape, FREE, np.int32)
  forced[:, 2] = 7
  there = sampled(case, params, forced)
  assert (there[:, 2] == 7).all() and (there[:, :2] == free[:, :2]).all()
  forbidden = np.zeros((COUNT, 12), bool)
  forbidden[:, 7] = True
  assert 7 in free and 7 not in sampled(case, params, forbidden=forbidden)


def test_a_switch_is_one_token_that_decides():
  many = {"forced": np.full((3, 2), 0.3), "everywhere": np.zeros(2), "forbidden": np.full(2, 0.4)}
  assert not decisions.is_switch(many)
  for name in many:
    one = {**many, name: many[name].copy()}
    one[name].flat[0] = 0.98
    assert decisions.is_switch(one), name
