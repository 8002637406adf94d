"""The prober of critical tokens, with scripted continuations and with the engine."""

import functools

import jax
import numpy as np
import pytest

from experiments.papers.critical_tokens import probing
from experiments.papers.tvm.search import Step
from jaxrl_llm.config import ModelConfig, SamplerConfig
from jaxrl_llm.models import Model
from jaxrl_llm.types import Sampling

MODEL = Model(ModelConfig(vocab_size=13, width=16, num_layers=1, num_heads=2, num_kv_heads=1,
                          head_dim=8, mlp_width=24))
END = 3


def by_hand(find) -> bool:
  """Whether the position is that of the rule, on shares after each token."""
  cases = [([.9, .5, 0., 0., 0.], 2), ([0., .5, .02, 0., 0.], 3), ([.5, 0., .04, 0.], 1),
           ([.5, 0., .05, 0.], 3), ([.9, .8, 1.], None), ([.5, .02, .01], None), ([0.], 0)]
  return all(find(np.array(shares)) == place for shares, place in cases)


def first_zero(shares):
  return int(np.argmin(shares)) if (shares == 0).any() else None


def after_the_last_right_one(shares):
  late = np.flatnonzero(shares > 0)
  start = late[-1] + 1 if len(late) else 0
  return int(start) if start < len(shares) else None


def test_the_critical_position_by_hand():
  assert by_hand(probing.critical_position)
  assert not by_hand(first_zero) and not by_hand(after_the_last_right_one)


def test_shares_are_those_of_the_continuations_of_each_prefix():
  """A response is right if its ids add up to 6; the n-th continuation of a prefix adds n."""
  asked = []

  def continue_rows(rows, count, step):
    asked.extend(rows)
    return [Step([n], True) for _ in rows for n in range(count)]

  def right(row):
    return sum(row) == 6

  found = probing.probe_critical_tokens(continue_rows, [[0, 0], [0]], [[3, 9, 1], [2, 4]],
                                        [right, right], count=4)
  assert asked == [[0, 0, 3], [0, 0, 3, 9], [0, 2]]
  np.testing.assert_array_equal(found[0], [1 / 4, 0, 0])
  np.testing.assert_array_equal(found[1], [0, 1])
  assert [probing.critical_position(shares) for shares in found] == [1, None]


@functools.cache
def params():
  return jax.tree.map(lambda x: 4 * x if x.ndim > 1 else x, MODEL.init(jax.random.key(35)))


ROWS = [[5, 6, 7], [8], [9, 10, 11, 12, 5]]
COUNT = 600


def first_ids(forbidden):
  """First ids of COUNT continuations of each row, [3, COUNT]."""
  cfg = SamplerConfig(max_new_tokens=2, stop_ids=(END,), pad_id=0)
  go_on = probing.without_token(params(), jax.random.key(0), Sampling.of(1.0), model=MODEL, cfg=cfg)
  steps = go_on(ROWS, forbidden, COUNT)
  for step in steps:
    assert step.ended == (step.ids[-1] == END) and 1 <= len(step.ids) <= 3
    assert len(step.ids) == 3 or step.ended
  return np.array([step.ids[0] for step in steps]).reshape(3, COUNT)


def probabilities():
  """Of the first token of each row, [3, V]."""
  out = []
  for row in ROWS:
    ids = np.array([row])
    hidden = MODEL.hidden(params(), ids, np.arange(len(row))[None], np.ones_like(ids))[0]
    out.append(np.asarray(jax.nn.softmax(hidden[0, -1] @ MODEL.head(params())), np.float64))
  return np.array(out)


def follows(found, probs, forbidden) -> bool:
  """Whether the forbidden token never comes, and the others have its probability in proportion."""
  expected = probs.copy()
  expected[np.arange(3), forbidden] = 0
  expected /= expected.sum(1, keepdims=True)
  shares = np.array([np.bincount(row, minlength=13) / COUNT for row in found])
  error = np.sqrt(expected * (1 - expected) / COUNT)
  return bool((np.abs(shares - expected) <= 5 * error + 1e-12).all())


@pytest.mark.slow
def test_a_forbidden_token_never_comes_first():
  probs = probabilities()
  likely = probs.argmax(1)
  found = first_ids(likely.tolist())
  assert (probs.max(1) > 0.1).all()
  assert follows(found, probs, likely)
  assert not follows(found, probs, (likely + 1) % 13), "another token forbidden"
  assert not follows(first_ids([0, 0, 0]), probs, likely), "the likely token allowed"
