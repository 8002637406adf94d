"""Batches whose groups are of mixed ages (`updates.replay`): drawn from the groups that this
iteration sampled and from those of the iterations before.

Each iteration samples and trains as many groups as without it. A batch has no group twice; a group
may be in several batches until it is too old. A token keeps the log-prob and the step of the
weights that sampled it, so that each row has its own behavior as the ratio's denominator.
"""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np

from jaxrl_llm import parallel
from jaxrl_llm.config import UpdateConfig
from jaxrl_llm.runs.carried import rollout_shapes
from jaxrl_llm.runs.rollout_batch import Dispatched, RolloutBatch, verify_batch
from jaxrl_llm.runs.verdicts import Verdicts, completions
from jaxrl_llm.types import Problem, Reward, Rollout
from jaxrl_llm.wiring.learner import Learner
from jaxrl_llm.wiring.loop import RolloutSource

UNSAID = -1  # `Groups.correct` where the reward does not say
FLOOR = 1e-6  # weight of a group whose rewards are equal: it is taken where there is no other


class Groups(NamedTuple):
  """Verified rows of whole groups on the host, the oldest first.

  Attributes:
    rollout: the rows, R of them.
    rewards: [R] f32, as `Verdicts.rewards`.
    value: [R] f32, as `Reward.value`.
    correct: [R] int8, 0, 1 or UNSAID, as `Reward.correct`.
    keep, is_correct, scored: [R] bool: the first two as in `Verdicts`; whether there is a verdict.
    iteration: [R] int32, that sampled the row, counted from 1; 0: an empty place.
    uses: [R] int32, batches that the row was in.
  """

  rollout: Rollout
  rewards: np.ndarray
  value: np.ndarray
  correct: np.ndarray
  keep: np.ndarray
  is_correct: np.ndarray
  scored: np.ndarray
  iteration: np.ndarray
  uses: np.ndarray

  def take(self, rows: np.ndarray | slice) -> "Groups":
    """Returns some of the rows."""
    return jax.tree.map(lambda x: x[rows], self)


def no_groups(learner: Learner) -> Groups:
  """Returns the empty places of a run's start, for the groups of `updates.replay` iterations."""
  rows = learner.updates.replay * learner.rollout.rows
  rollout = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), rollout_shapes(learner, rows))
  zeros, never = np.zeros(rows, np.float32), np.zeros(rows, bool)
  return Groups(rollout, zeros, zeros.copy(), np.zeros(rows, np.int8), never, never.copy(),
                never.copy(), np.zeros(rows, np.int32), np.zeros(rows, np.int32))


def of_batch(batch: RolloutBatch, iteration: int) -> Groups:
  """Returns the rows of a batch that this iteration sampled."""
  verdicts, rows = batch.verdicts, len(batch.verdicts.rewards)
  codes = [UNSAID if reward.correct is None else int(reward.correct) for reward in verdicts.given]
  return Groups(batch.host, verdicts.rewards,
                np.array([reward.value for reward in verdicts.given], np.float32),
                np.array(codes, np.int8), verdicts.keep, verdicts.correct,
                np.array([reward.unscored_reason is None for reward in verdicts.given]),
                np.full(rows, iteration, np.int32), np.zeros(rows, np.int32))


def weights(pool: Groups, group_size: int, iteration: int, cfg: UpdateConfig) -> np.ndarray:
  """Returns the weight of each group of a pool in a draw, 0 for an empty place.

    uniform     1
    recency     replay_decay^age, age in iterations
    advantage   mean |R - mean R| over the group's kept rows
  """
  sampled = pool.iteration[::group_size]
  if cfg.replay_rule == "recency":
    out = float(cfg.replay_decay) ** (iteration - sampled)
  elif cfg.replay_rule == "advantage":
    keep = pool.keep.reshape(-1, group_size)
    rewards, count = pool.rewards.reshape(keep.shape), np.maximum(keep.sum(1), 1)
    mean = np.where(keep, rewards, 0).sum(1) / count
    out = np.where(keep, np.abs(rewards - mean[:, None]), 0).sum(1) / count + FLOOR
  else:
    out = np.ones(len(sampled))
  return np.where(sampled > 0, out, 0.0)


def draw(weight: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
  """Returns `count` different indices in random order, drawn one after the other in proportion to
  the weights that are left (Gumbel top-k, arXiv 1903.06059).
  """
  with np.errstate(divide="ignore"):
    noisy = np.log(weight) + rng.gumbel(size=len(weight))
  return rng.permutation(np.argsort(-noisy, kind="stable")[:count])


def mixed(source: RolloutSource, sampled: Dispatched, earlier: Groups, iteration: int,
          cfg: UpdateConfig) -> tuple[Dispatched, Groups]:
  """Returns (the batch of an iteration, the groups that the next one may take from).

  Args:
    sampled: the groups of this iteration, of which the batch has as many.
    earlier: the groups of the `updates.replay` iterations before.
  """
  batch, size, old = verify_batch(source, sampled), source.rollout.group_size, len(earlier.rewards)
  pool = jax.tree.map(lambda *x: np.concatenate(x), earlier, of_batch(batch, iteration))
  weight = weights(pool, size, iteration, cfg)
  rng = np.random.default_rng((source.seed, iteration, 2))
  groups = draw(weight, len(batch.problems), rng)
  rows = (groups[:, None] * size + np.arange(size)).reshape(-1)
  pool.uses[rows] += 1
  chosen = pool.take(rows)
  verdicts = Verdicts.join([_verdicts(source, chosen), batch.verdicts])
  is_new = rows >= old  # whose verdicts have not been through the arrays
  verdicts = verdicts.take(np.where(is_new, len(rows) + rows - old, np.arange(len(rows))))
  dealt = dataclasses.replace(
      batch, problems=_problems(source, chosen.rollout.row_id[::size]), host=chosen.rollout,
      rollout=parallel.to_global(chosen.rollout, source.sampler.mesh), verdicts=verdicts,
      metrics=batch.metrics | metrics(chosen, iteration) | sampled_metrics(batch))
  return Dispatched.of_batch(dealt), pool.take(slice(len(rows), None))


def metrics(chosen: Groups, iteration: int) -> dict[str, float]:
  """Returns what a batch is made of: ages in iterations, by powers of two, and uses."""
  age = iteration - chosen.iteration
  bucket = 2 ** np.floor(np.log2(np.maximum(age, 1))).astype(int)
  return {"replay/age": float(age.mean()), "replay/age_max": float(age.max()),
          "replay/new": float(np.mean(age == 0)), "replay/uses": float(chosen.uses.mean()),
          **{f"replay/age/from_{n}": float(np.mean((age > 0) & (bucket == n)))
             for n in np.unique(bucket[age > 0])}}


def sampled_metrics(batch: RolloutBatch) -> dict[str, float]:
  """Returns reward and tokens of all that the iteration sampled, whether it is trained on or not.
  """
  verdicts, host = batch.verdicts, batch.host
  rewards = verdicts.rewards[verdicts.keep]
  return {"replay/sampled_reward": float(rewards.mean()) if len(rewards) else float("nan"),
          "replay/sampled_tokens": float(np.sum(host.length - host.prompt_length))}


def _verdicts(source: RolloutSource, rows: Groups) -> Verdicts:
  """Returns the verdicts of rows as the arrays have them: without components and rungs."""
  rewards = [Reward(float(value), None if correct == UNSAID else bool(correct),
                    None if scored else "unscored when it was sampled")
             for value, correct, scored in zip(rows.value, rows.correct, rows.scored, strict=True)]
  texts = completions(source.task.tokenizer, source.sampler.environment, source.rollout,
                      rows.rollout)
  return Verdicts(rows.rewards, rows.is_correct, rows.keep, texts, rewards)


def _problems(source: RolloutSource, first_rows: np.ndarray) -> list[Problem]:
  """Returns the problem of each group: the row id says which of which batch of the task."""
  rollout = source.rollout
  batches = {number: source.task.batch(number)
             for number in sorted(set(map(int, first_rows // rollout.rows)))}
  return [batches[int(row) // rollout.rows][int(row) % rollout.rows // rollout.group_size]
          for row in first_rows]
