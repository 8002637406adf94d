"""Shapes of rollouts that a run keeps, of their scores, and of what update transforms carry."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_llm.config import SamplerConfig
from jaxrl_llm.rollouts.assembly import rollout_shape
from jaxrl_llm.training.columns import POLICIES, TEACHER
from jaxrl_llm.training.score import Scores
from jaxrl_llm.types import PromptBatch, Rollout
from jaxrl_llm.wiring.learner import Learner
from jaxrl_llm.wiring.scoring import Scoring, score_rollout


def rollout_shapes(learner: Learner, rows: int) -> Rollout:
  """Returns shapes and dtypes of `rows` rows of the run's rollouts."""
  rollout, per_row = learner.rollout, jax.ShapeDtypeStruct((rows,), jnp.int32)
  tokens = jax.ShapeDtypeStruct((rows, rollout.max_prompt_tokens), jnp.int32)
  shapes = rollout_shape(PromptBatch(tokens, per_row, per_row, per_row),
                         SamplerConfig(max_new_tokens=rollout.max_new_tokens),
                         turns=rollout.max_turns > 0)
  if not rollout.routing:
    return shapes
  model = learner.model.config
  layers = model.num_layers - len(model.dense_layers)
  experts = (*shapes.tokens.shape, layers, model.experts_per_token)
  return shapes.replace(routing=jax.ShapeDtypeStruct(experts, jnp.int16))


def abstract_scores(scoring: Scoring, params, rollout: Rollout, **options) -> Scores:
  """Returns shapes and dtypes of what `score_rollout` returns for abstract arguments, with parts of
  rewards where the advantage reads them; `params` also serve as the reference and the base, and as
  a teacher in plans.
  """
  score = functools.partial(score_rollout, scoring, **options)
  rows, policies = rollout.length.shape[0], dict.fromkeys(POLICIES, params)
  if scoring.teachers is not None:
    policies[TEACHER] = scoring.teachers.shapes(rows)
  scores = jax.eval_shape(score, policies, rollout)
  if not scoring.part_count:
    return scores
  parts = jax.ShapeDtypeStruct((rows, scoring.part_count), jnp.float32)
  return scores.replace(reward_parts=parts)


def abstract_carried(learner: Learner) -> dict[str, Any]:
  """Returns shapes of what update transforms carry, by tracing the functions that make it."""
  rows = learner.rollout.rows
  shapes = rollout_shapes(learner, rows)
  scores = abstract_scores(learner.scoring, learner.model.shapes(), shapes)
  rewards = jax.ShapeDtypeStruct((rows,), jnp.float32)
  keep = jax.ShapeDtypeStruct((rows,), bool)
  return {name: phase.carried(shapes, rewards, keep, scores)
          for name, phase in learner.phases.by_name.items()}
