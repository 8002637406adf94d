"""Inputs of the training loop: rollout source, reward shaping, schedule."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from jax.sharding import Mesh

from jaxrl_llm import parallel
from jaxrl_llm.config import (
  Config,
  EvaluationConfig,
  RolloutConfig,
  RolloutFilesConfig,
  ShapingConfig,
)
from jaxrl_llm.parallel import processes
from jaxrl_llm.registry import SHAPINGS
from jaxrl_llm.types import Task
from jaxrl_llm.wiring.learner import Learner
from jaxrl_llm.wiring.sampler import Sampler


@dataclasses.dataclass(frozen=True)
class RolloutSource:
  """Source of rollout batches; a batch follows from (parameters, cursor).

  Attributes:
    task, sampler: parts of the run.
    rollout: how many prompts and completions, and how long.
    seed: seed of the run.
    max_draws: task batches at most from which dynamic sampling takes its groups; 0: it is off.
    uses_server: whether a server samples.
    can_enqueue: whether sampling a batch is one program on the training devices, which the loop can
      enqueue before the updates; otherwise its sampler works step by step.
    process_prompts: the prompts of a batch that this process samples.
    multi_process: whether the run has several processes.
    prompt_mesh: the devices of this process, which prompts are placed on.
  """

  task: Task
  sampler: Sampler
  rollout: RolloutConfig
  seed: int
  max_draws: int
  uses_server: bool
  can_enqueue: bool
  process_prompts: slice
  multi_process: bool
  prompt_mesh: Mesh


@dataclasses.dataclass(frozen=True)
class RewardShaping:
  """Shaping of verified rewards before the update reads them.

  Attributes:
    cfg: config of the run.
    max_new_tokens: the longest completion allowed.
    function: the registered shaping; None where rewards are unchanged.
    numbers: its hyperparameters.
    shuffle_seed: of a control that deals the rewards to random completions; None: off.
    multi_process: whether the run has several processes.
  """

  cfg: ShapingConfig
  max_new_tokens: int
  function: Callable[..., np.ndarray] | None
  numbers: Any
  shuffle_seed: int | None
  multi_process: bool


@dataclasses.dataclass(frozen=True)
class Schedule:
  """Intervals of the loop: evaluation, checkpoints, records, profiling.

  Attributes:
    iterations: the last one.
    evaluation: how often, and with how many samples.
    checkpoint_every: iterations.
    rollouts: which completions are written and kept.
    profile: iterations that are traced.
    overlap: whether the next batch is sampled during the updates.
    wait_for_updates: whether the loop waits for the updates before it samples, so that each is
      timed separately; False where both run at the same time.
    title: title of the progress bar.
    warnings: whether signs of a run that cannot learn are named.
  """

  iterations: int
  evaluation: EvaluationConfig
  checkpoint_every: int
  rollouts: RolloutFilesConfig
  profile: tuple[int, ...]
  overlap: bool
  wait_for_updates: bool
  title: str
  warnings: bool


@dataclasses.dataclass(frozen=True)
class Loop:
  """Parts that `runs.iteration.iterate` reads.

  Attributes:
    learner: scores rollouts, and makes batches and updates of them.
    source: source of the rollouts.
    shaping: of their rewards.
    schedule: schedule of the run.
  """

  learner: Learner
  source: RolloutSource
  shaping: RewardShaping
  schedule: Schedule


def make_loop(cfg: Config, task: Task, learner: Learner, sampler: Sampler) -> Loop:
  """Returns the loop of a resolved config; the other arguments as `setup.build` returns them."""
  multi_process = processes.count() > 1
  overlap = cfg.updates.overlap
  schedule = Schedule(
      cfg.iterations, cfg.evaluation, cfg.checkpoint.every, cfg.rollouts, cfg.profile, overlap,
      wait_for_updates=not overlap and not cfg.mesh.rollout,
      title=cfg.estimator.name,
      warnings=cfg.warnings != "none",
  )
  shuffle_seed = cfg.seed if cfg.task.shuffle_rewards else None
  shaping = make_shaping(cfg.shaping, cfg.rollout.max_new_tokens, shuffle_seed, multi_process)
  return Loop(learner, make_source(cfg, task, sampler), shaping, schedule)


def make_source(cfg: Config, task: Task, sampler: Sampler) -> RolloutSource:
  """Returns the source of a run's rollouts, for a resolved config."""
  max_draws = cfg.dynamic_sampling.max_draws if cfg.dynamic_sampling.enabled else 0
  uses_server = bool(cfg.server.url)
  return RolloutSource(
      task, sampler, cfg.rollout, cfg.seed, max_draws, uses_server,
      can_enqueue=not (cfg.rollout.slots or max_draws or cfg.mesh.rollout or uses_server),
      process_prompts=processes.share(cfg.rollout.prompts),
      multi_process=processes.count() > 1,
      prompt_mesh=parallel.of_process(sampler.mesh),
  )


def make_shaping(cfg: ShapingConfig, max_new_tokens: int, shuffle_seed: int | None = None,
                 multi_process: bool = False) -> RewardShaping:
  """Arguments as the attributes of `RewardShaping`."""
  function, numbers = SHAPINGS[cfg.name].function, SHAPINGS.numbers(cfg)
  return RewardShaping(cfg, max_new_tokens, None if cfg.name == "none" else function, numbers,
                       shuffle_seed, multi_process)
