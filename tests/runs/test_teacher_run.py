"""A policy learns from a teacher's log-probs of its own completions, without a reward."""

import jax
import numpy as np
import pytest
import smallest

from jaxrl_llm.config import ConfigError
from jaxrl_llm.models import save_pretrained
from jaxrl_llm.runs.iteration import iterate
from jaxrl_llm.runs.run_state import first_state
from jaxrl_llm.tasks.tokenizer import character_tokenizer
from jaxrl_llm.wiring.loop import make_loop

ITERATIONS = 24


def built(**keys):
  return smallest.built(**{"rollout.prompts": 16, "optimizer.learning_rate": 3e-2} | keys)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
  """A checkpoint of the policy's shapes with decided tastes."""
  folder, parts = tmp_path_factory.mktemp("teacher") / "checkpoint", built()
  params = jax.tree.map(lambda x: 20 * x if x.ndim > 1 else x,
                        parts.learner.model.init(jax.random.key(7)))
  save_pretrained(folder, parts.learner.model, params, tokenizer=parts.task.tokenizer)
  return str(folder)


def divergences(teacher, **keys) -> list[float]:
  """Estimates of KL(policy || teacher) per token, of each iteration."""
  parts = built(**{"advantage.name": "reverse_kl", "term.name": "distill", "term.coef": 0.0,
                   "teacher.pretrained": teacher, **keys})
  run, loop, estimates = first_state(parts.learner, smallest.start_of(parts)), make_loop(*parts), []
  for iteration in range(1, ITERATIONS + 1):
    run, metrics, _, _ = iterate(loop, run, None, iteration)
    mean = metrics.steps[0]["distill/divergence"]
    estimates.append(float(mean.total / mean.count))
  return estimates


def check_learns(estimates: list[float]) -> None:
  first, last = np.mean(estimates[:3]), np.mean(estimates[-3:])
  assert first > 0.3 and last < 0.5 * first, (first, last)


@pytest.mark.slow
def test_the_policy_comes_closer_to_its_teacher(teacher):
  """By the advantage, and by the loss term."""
  check_learns(divergences(teacher))
  check_learns(divergences(teacher, **{"advantage.coef": 0.0, "term.coef": 1.0}))
  with pytest.raises(AssertionError):
    check_learns(divergences(teacher, **{"advantage.coef": 0.0}))


@pytest.mark.parametrize("keys, text", [
    ({}, "teacher.pretrained = ''.*advantage.name = 'reverse_kl'"),
    ({"teacher.pretrained": "nowhere/at_all"}, "teacher.pretrained = 'nowhere/at_all'"),
])
def test_what_is_refused(keys, text):
  with pytest.raises(ConfigError, match=text):
    built(**{"advantage.name": "reverse_kl", **keys})


def test_another_tokenizer_is_refused(teacher, tmp_path):
  model = built().learner.model
  save_pretrained(tmp_path / "other", model, model.init(jax.random.key(0)),
                  tokenizer=character_tokenizer("abcdefghijklmno"))
  with pytest.raises(ConfigError, match="tokenizer is not the policy's: of 17 tokens"):
    built(**{"advantage.name": "reverse_kl", "teacher.pretrained": str(tmp_path / "other")})
