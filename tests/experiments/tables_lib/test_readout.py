"""Probes, ranks and the three ways to answer, each against a loop or a wrong one."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.tables_lib import readout
from jaxrl_llm.config import ModelConfig, TaskConfig
from jaxrl_llm.models import Model
from jaxrl_llm.tasks import make_task

RNG = np.random.default_rng(0)
STATES = RNG.normal(size=(60, 8)) + 3.0
WEIGHTS = RNG.normal(size=8)
TARGETS = STATES @ WEIGHTS - 2.0 + 0.1 * RNG.normal(size=60)
SHAPE = ModelConfig(vocab_size=17, width=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8,
                    mlp_width=24, tie_head=False)
MODEL = Model(SHAPE)


def minimises(ridge, alpha) -> bool:
  """Whether no small step lowers sum of squares + alpha |w|^2."""
  probe = ridge(STATES, TARGETS, alpha)

  def cost(weights, bias):
    return np.square(TARGETS - STATES @ weights - bias).sum() + alpha * np.square(weights).sum()

  least = cost(probe.weights, probe.bias)
  steps = [(probe.weights + 1e-3 * RNG.normal(size=8), probe.bias + 1e-3 * RNG.normal())
           for _ in range(200)]
  return all(cost(*step) >= least for step in steps)


def not_centred(states, targets, alpha):
  weights = np.linalg.solve(states.T @ states + alpha * np.eye(8),
                            states.T @ (targets - targets.mean()))
  return readout.Probe(weights, float(targets.mean()), alpha)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 100.0])
def test_ridge_is_the_minimum(alpha):
  assert minimises(readout.ridge, alpha)
  assert not minimises(not_centred, alpha)
  assert not minimises(lambda *data: readout.ridge(*data[:2], 2 * data[2] + 1), alpha)


def ranks_are_right(ranks) -> bool:
  logits = RNG.normal(size=(5, 30, 11))
  ids = RNG.integers(0, 11, (5, 30))
  by_sorting = np.empty(ids.shape, int)
  for at in np.ndindex(ids.shape):
    by_sorting[at] = np.flatnonzero(np.argsort(-logits[at]) == ids[at])[0] + 1
  first = ranks(logits, logits.argmax(-1)) == 1
  return (np.array_equal(ranks(logits, ids), by_sorting) and first.all()
          and np.array_equal(ranks(logits, ids) == 1, logits.argmax(-1) == ids))


def test_a_rank_is_1_exactly_at_the_arg_max():
  assert ranks_are_right(readout.ranks)
  for wrong in (lambda logits, ids: readout.ranks(logits, ids) - 1,
                lambda logits, ids: readout.ranks(-logits, ids),
                lambda logits, ids: np.minimum(readout.ranks(logits, ids), 10)):
    assert not ranks_are_right(wrong)


@functools.cache
def asked():
  """(task, problems, ids of digits): chains of two digits, which are answered by one digit."""
  task = make_task(TaskConfig(name="modular_chain", num_terms=2), 0, 64)
  problems = [dataclasses.replace(problem, prompt=problem.prompt + "=")
              for problem in task.batch(0)]
  return task, problems, np.array([task.tokenizer.encode(digit)[0] for digit in "0123456789"])


def often_right(seed):
  """Random parameters, with a large embedding so that answers differ."""
  params = MODEL.init(jax.random.key(seed))
  return params | {"embedding": 20 * params["embedding"], "head": 20 * params["head"]}


def nested(decode) -> bool:
  """Whether no problem is right in a freer way and wrong in a more restricted one."""
  task, problems, digits = asked()
  for seed in range(6):
    modes = decode(MODEL, often_right(seed), task, problems, digits)
    if (modes.full & ~modes.restricted).any() or (modes.generated & ~modes.full).any():
      return False
  return True


@pytest.mark.slow
def test_what_is_right_in_the_whole_vocabulary_is_right_among_digits():
  assert nested(readout.decode)
  task, problems, digits = asked()
  readouts = [readout.decode(MODEL, often_right(seed), task, problems, digits) for seed in range(6)]
  assert any((modes.restricted & ~modes.full).any() for modes in readouts), "both are the same"
  swapped = lambda *given: dataclasses.replace(
      readout.decode(*given), full=readout.decode(*given).restricted,
      restricted=readout.decode(*given).full)
  assert not nested(swapped)


@jax.jit
def last_hidden(params, tokens):
  return MODEL.hidden(params, tokens, jnp.arange(tokens.shape[1])[None],
                      jnp.ones_like(tokens))[0][0, -1]


def chain(params, ids):
  """Greedy continuation without a cache: up to 4 tokens, up to the stop token 1."""
  ids, out = list(ids), []
  while len(out) < 4 and 1 not in out:
    out.append(int(np.argmax(last_hidden(params, jnp.asarray([ids])) @ params["head"])))
    ids.append(out[-1])
  return out


class Answered:
  """A task whose answer to a prompt is what a model generates, or something else."""

  def __init__(self, task, texts):
    self.tokenizer, self.stop_ids, self.render = task.tokenizer, task.stop_ids, task.render
    self.texts = texts

  def reward(self, problem, completion):
    return dataclasses.replace(asked()[0].reward(problem, ""),
                               correct=self.texts[problem.prompt] == completion)


@pytest.mark.slow
def test_generation_equals_a_loop_without_a_cache():
  task, problems, digits = asked()
  params, few = often_right(3), problems[:24]
  # The stop token takes the place of one that some rows generate, so that these end.
  frequent = np.bincount([chain(params, task.render(problem))[2] for problem in few]).argmax()
  params["head"] = params["head"].at[:, 1].set(1.01 * params["head"][:, frequent])
  outs = [chain(params, task.render(problem)) for problem in few]
  texts = {problem.prompt: task.tokenizer.decode([i for i in out if i != 1])
           for problem, out in zip(few, outs, strict=True)}
  modes = readout.decode(MODEL, params, Answered(task, texts), few, digits)
  ended = np.array([1 in out for out in outs])
  assert 0 < ended.sum() < len(ended), "the test needs rows of both kinds"
  np.testing.assert_array_equal(modes.generated, ended)
  others = {prompt: text + "0" for prompt, text in texts.items()}
  assert not readout.decode(MODEL, params, Answered(task, others), few, digits).generated.any()
