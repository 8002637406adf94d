"""Best of n, weighted votes and step beam search, with scripted generators and with the engine."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.papers.tvm import search
from experiments.papers.tvm.search import Beam, BeamConfig, Step
from jaxrl_llm.config import ModelConfig, SamplerConfig
from jaxrl_llm.fields import ConfigError
from jaxrl_llm.models import Model
from jaxrl_llm.rollouts import generate
from jaxrl_llm.types import PromptBatch, Sampling

pytestmark = pytest.mark.slow

MODEL = Model(ModelConfig(vocab_size=13, width=16, num_layers=1, num_heads=2, num_kv_heads=1,
                          head_dim=8, mlp_width=24))
END, NEWLINE, PAD = 3, 4, 0


def test_best_of_n_is_the_first_of_the_largest():
  scores = np.array([[0.1, 0.9, 0.9], [-3.0, -2.0, -np.inf]])
  np.testing.assert_array_equal(search.best_of_n(scores), [1, 1])
  with pytest.raises(ValueError, match="NaN"):
    search.best_of_n(np.array([0.1, np.nan]))


def test_votes_are_weighted():
  assert search.weighted_vote(["7", "5", "7", None], [0.3, 0.5, 0.3, 9.0]) == "7"
  assert search.weighted_vote(["7", "5", "7"], [0.1, 0.5, 0.3]) == "5"
  assert search.weighted_vote(["7", "5"], [0.5, 0.5]) == "7", "the first of equal ones"
  assert search.weighted_vote([None, None], [1.0, 1.0]) is None


def numbered(calls):
  """A generator whose n-th continuation in a call is the id n + 1; it ends after three steps."""

  def continue_rows(rows, copies, step):
    calls.append(([list(row) for row in rows], copies))
    return [Step([n + 1], step == 2) for n in range(len(rows) * copies)]

  return continue_rows


def constant(rows):
  return np.zeros(len(rows))


def samples_stay_apart(best) -> bool:
  """Whether K = b and a constant scorer give independent samples: [1 1 1], [2 2 2], .."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(search, "_best", best)
    groups = search.step_beam_search(numbered([]), constant, [[9], [8, 8]], BeamConfig(3, 3))
  return [[beam.ids for beam in group] for group in groups] == [
      [(1, 1, 1), (2, 2, 2), (3, 3, 3)], [(4, 4, 4), (5, 5, 5), (6, 6, 6)]]


def test_a_constant_scorer_with_k_equal_to_b_gives_independent_samples():
  copies_the_best = lambda group, cfg: [max(group, key=lambda beam: beam.score)] * cfg.beams
  turns_ties_around = lambda group, cfg: sorted(
      reversed(group), key=lambda beam: -beam.score)[:cfg.beams]
  assert samples_stay_apart(search._best)
  assert not samples_stay_apart(copies_the_best)
  assert not samples_stay_apart(turns_ties_around)


def test_the_best_of_all_candidates_and_ended_beams_are_kept():
  """Worked out by hand: K = 4, b = 2, scores are those of the table."""
  script = [[[1], [2], [3], [4]], [[5], [6], [7], [8]], [[1], [2]]]
  scores = {(1,): .1, (2,): .9, (3,): .5, (4,): .2, (2, 5): .3, (2, 6): .8, (3, 7): .7,
            (3, 8): .1, (3, 7, 1): .6, (3, 7, 2): .75}
  asked = []

  def continue_rows(rows, copies, step):
    assert copies == 2
    asked.append(rows)
    return [Step(ids, ids == [6] or step == 2) for ids in script[step]]

  def score(rows):
    return np.array([scores[tuple(row[1:])] for row in rows])

  groups = search.step_beam_search(continue_rows, score, [[9]], BeamConfig(4, 2))
  assert asked == [[[9], [9]], [[9, 2], [9, 3]], [[9, 3, 7]]], "an ended beam is not continued"
  assert groups == [[Beam((2, 6), .8, True), Beam((3, 7, 2), .75, True)]]


def test_copies_come_last():
  group = [Beam((1,), .9), Beam((1,), .9), Beam((2,), .5), Beam((1,), .9), Beam((3,), .1)]
  ids = lambda cfg: [beam.ids for beam in search._best(group, cfg)]
  assert ids(BeamConfig(4, 4, distinct=True)) == [(1,), (2,), (3,), (1,)]
  assert ids(BeamConfig(4, 4)) == [(1,), (1,), (1,), (2,)]


def test_limits_end_a_search():
  calls = []
  long = search.step_beam_search(numbered(calls), constant, [[9]],
                                 BeamConfig(2, 2, max_new_tokens=2))
  assert len(calls) == 2 and all(beam.ended and len(beam.ids) == 2 for beam in long[0])
  calls.clear()
  short = search.step_beam_search(numbered(calls), constant, [[9]], BeamConfig(2, 2, max_steps=1))
  assert len(calls) == 1 and not any(beam.ended for beam in short[0])


@pytest.mark.parametrize("candidates, beams", [(5, 2), (4, 0), (0, 1)])
def test_sizes_that_do_not_fit_are_refused(candidates, beams):
  with pytest.raises(ConfigError, match=f"candidates = {candidates} with beams = {beams}"):
    BeamConfig(candidates, beams)


@functools.cache
def params():
  """Far from uniform."""
  return jax.tree.map(lambda x: 8 * x if x.ndim > 1 else x, MODEL.init(jax.random.key(35)))


PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 5], [7, 7], [12], [6, 5]]
SIZES = SamplerConfig(max_new_tokens=12, stop_ids=(END,), pad_id=PAD)


def responses(temperature, key):
  """Responses of PROMPTS in one go."""
  width = max(map(len, PROMPTS))
  tokens = np.array([prompt + [PAD] * (width - len(prompt)) for prompt in PROMPTS], np.int32)
  ids = np.arange(len(PROMPTS), dtype=np.int32)
  batch = PromptBatch(jnp.asarray(tokens), jnp.asarray([len(p) for p in PROMPTS]), ids, ids)
  sample = jax.jit(functools.partial(generate, model=MODEL, cfg=SIZES))
  rollout = jax.device_get(sample(params(), batch, key, Sampling.of(temperature)))
  return [rollout.tokens[i, len(p):rollout.length[i]].tolist() for i, p in enumerate(PROMPTS)]


@pytest.mark.parametrize("step_end", [(), (NEWLINE, 7)])
def test_steps_of_the_engine_join_to_the_greedy_response(step_end):
  """With one beam and temperature 0, where steps end changes nothing."""
  key, lengths = jax.random.key(0), []
  cfg = SamplerConfig(max_new_tokens=3, stop_ids=(END,), pad_id=PAD)
  engine = search.engine_generator(params(), key, Sampling.of(0.0), model=MODEL, cfg=cfg,
                                   step_end=step_end)

  def counted(rows, copies, step):
    steps = engine(rows, copies, step)
    lengths.extend(len(one.ids) for one in steps)
    return steps

  groups = search.step_beam_search(counted, constant, PROMPTS,
                                   BeamConfig(1, 1, max_steps=12, max_new_tokens=12))
  expected = responses(0.0, key)
  assert [list(group[0].ids) for group in groups] == expected
  assert any(ids[-1] == END for ids in expected) and any(len(ids) == 12 for ids in expected)
  assert max(lengths) == 3 and (min(lengths) < 3 or not step_end)


def test_steps_have_noise_of_their_own_and_searches_repeat():
  cfg = SamplerConfig(max_new_tokens=1, stop_ids=(END,), pad_id=PAD)
  engine = search.engine_generator(params(), jax.random.key(0), Sampling.of(1.5), model=MODEL,
                                   cfg=cfg)
  first, again, second = (engine([[5, 6]], 64, step) for step in (0, 0, 1))
  assert first == again and first != second
  assert len({one.ids[0] for one in first}) > 2
