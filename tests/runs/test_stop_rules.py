"""Rules of the vocabulary and of a row's end, from the config through an iteration."""

import jax
import numpy as np
import pytest
import smallest

from jaxrl_llm.config import ConfigError
from jaxrl_llm.rollouts.environment import before_stop
from jaxrl_llm.rollouts.next_token import Draw
from jaxrl_llm.runs.evaluate import sample_rows
from jaxrl_llm.runs.iteration import iterate
from jaxrl_llm.runs.rollout_batch import prompt_batch
from jaxrl_llm.runs.run_state import first_state
from jaxrl_llm.runs.verdicts import completions
from jaxrl_llm.types import STOP_LENGTH, STOP_STRING, STOP_TOKEN, Sampling
from jaxrl_llm.wiring import setup
from jaxrl_llm.wiring.loop import make_loop
from jaxrl_llm.wiring.sampler import sampling_of
from jaxrl_llm.wiring.warm_start import Start

STRINGS, LEAST = ("1", "2+"), 3
RULES = {"vocabulary.top_k": 12, "vocabulary.top_p": 0.9, "vocabulary.min_p": 0.02,
         "rollout.min_new_tokens": LEAST}
STOPS = {"rollout.slots": 8, "rollout.chunk": 2, "rollout.stop_strings": STRINGS}


def configured(**overrides):
  """On-policy with the behavior for an anchor: a right loss has a ratio of 1 at each token."""
  return smallest.resolved(**{
      "rollout.prompts": 8, "rollout.max_new_tokens": 8, "rollout.window": 8,
      "rollout.temperature": 0.8, "updates.optimizer_batches": 1,
      "updates.anchor": "behavior"} | overrides)


def iterated(**overrides):
  """(built, parameters, metrics of the step, rows) of one iteration from sharp random parameters.
  """
  built = setup.build(configured(**overrides), jax.devices()[:1])
  params = jax.tree.map(lambda x: 6 * x if x.ndim > 1 else x,
                        built.learner.model.init(jax.random.key(0)))
  run = first_state(built.learner, Start(params, None))
  _, ((metrics,), *_), _, rows = iterate(make_loop(*built), run, params, 1)
  return built, params, jax.device_get(metrics), rows


@pytest.fixture(scope="module")
def finished():
  return iterated(**RULES, **STOPS)


@pytest.mark.slow
def test_rows_end_with_a_stop_string_and_keep_it(finished):
  built, _, _, rows = finished
  ended = [row for row in rows if row["stop_reason"] == STOP_STRING]
  assert ended and {row["stop_reason"] for row in rows} == {STOP_STRING, STOP_TOKEN, STOP_LENGTH}
  for row in rows:
    new = row["tokens"][row["prompt_length"]:].tolist()
    text = built.task.tokenizer.decode(new)
    has_stop = any(string in text for string in STRINGS)
    assert has_stop == (row["stop_reason"] == STOP_STRING) and not (has_stop and row["truncated"])
    assert row["mask"][row["prompt_length"]:].all() and len(
        row["behavior_log_probs"]) == len(row["tokens"])
    if has_stop:
      assert text.endswith(STRINGS) and not any(string in built.task.tokenizer.decode(new[:-1])
                                                for string in STRINGS)
      assert row["completion"] == text.removesuffix("1").removesuffix(
          "2+") and row["completion"] != text
    assert built.task.stop_ids[0] not in new[:LEAST]


@pytest.mark.slow
def test_evaluation_ends_rows_in_the_same_way(finished):
  built, params, *_ = finished
  cfg = built.cfg.rollout
  prompts = prompt_batch(built.task, built.task.heldout(8) * 4, cfg.max_prompt_tokens)
  host = sample_rows(built.sampler, params, prompts,
                     Draw(jax.random.key(3), Sampling.of(1.0)), piece=32)
  ended = host.stop_reason == STOP_STRING
  texts = completions(built.task.tokenizer, built.sampler.environment, cfg, host)
  assert ended.any() and host.turn_id is None
  assert not any(string in text for text in texts for string in STRINGS)
  early = host.mask & (np.arange(host.tokens.shape[1]) - host.prompt_length[:, None] < LEAST)
  assert not np.isin(host.tokens[early], built.task.stop_ids).any() and (host.stop_reason
                                                                         == STOP_TOKEN).any()


def test_text_in_front_of_a_stop_string():
  assert before_stop("ab\nc", ("\n",)) == "ab" and before_stop("abc", ("\n", "d")) == "abc"
  assert before_stop("xaby", ("b", "ab")) == before_stop("xaby",
                                                         ("ab", "b")) == "x", "the first to begin"
  assert before_stop("STOP", ("STOP",)) == ""


@pytest.mark.parametrize("overrides, text", [
    ({"rollout.min_new_tokens": 9}, r"rollout.min_new_tokens = 9.*max_new_tokens = 8.*0 to 8"),
    ({**STOPS, "rollout.stop_strings": ("x", "")}, r"stop_strings = \('x', ''\).*Fix: remove"),
    ({**STOPS, "rollout.stop_strings": (7,)}, r"rollout.stop_strings = \(7,\)"),
], ids=["least above most", "empty text", "no text"])
def test_refused_with_key_value_and_fix(overrides, text):
  with pytest.raises(ConfigError, match=text):
    configured(**overrides)


@pytest.mark.parametrize(("side", "sampler", "loss"), [("both", True, True),
                                                       ("sampler", True, False),
                                                       ("trainer", False, True)])
def test_each_side_gets_all_rules(side, sampler, loss):
  cfg = configured(**RULES, **{"vocabulary.side": side})
  rules = {"top_k": 12, "top_p": 0.9, "min_p": 0.02}
  assert cfg.loss.rules == (rules if loss else {}) and cfg.loss.min_new_tokens == LEAST
  for name, pruned in (("sampler", sampler), ("trainer", loss)):
    expected = Sampling.of(0.8, **(rules if pruned else {}))
    sampling = sampling_of(cfg.rollout, cfg.vocabulary, name)
    assert jax.tree.map(float, sampling) == jax.tree.map(float, expected)
  noisy = configured(**{"rollout.logit_noise": 0.5})
  noise = [float(sampling_of(noisy.rollout, noisy.vocabulary, name).logit_noise)
           for name in ("sampler", "trainer")]
  assert noise == [0.5, 0], "only the sampler has noise"
