"""Policies of a run's checkpoints, and completions that they sample for a measurement."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from experiments.commands import saved
from jaxrl_llm.config import Config
from jaxrl_llm.runs.dynamic_sampling import sample_batch
from jaxrl_llm.types import Params, Rollout
from jaxrl_llm.wiring import setup
from jaxrl_llm.wiring.learner import Learner
from jaxrl_llm.wiring.loop import RolloutSource, make_source
from jaxrl_llm.wiring.sampler import Sampler

FIRST_BATCH = 10**6  # index of the task's first batch, which no run of the recipe reaches


@dataclasses.dataclass(frozen=True)
class Policies:
  """What a run's config makes, and the folder with its checkpoints. The caller closes the sampler.
  """

  cfg: Config
  learner: Learner
  sampler: Sampler
  source: RolloutSource
  workdir: Path

  def params(self, iteration: int) -> Params:
    """Returns the parameters of a checkpoint as the model reads them."""
    return saved.restore_trained(self.cfg, self.learner, self.workdir, iteration)[1]

  def sample(self, params: Params, batches: int) -> Iterator[tuple[Rollout, np.ndarray]]:
    """Yields (rollout on the host, rewards [rows] f32) of problems that the run did not sample, at
    temperature 1.
    """
    for index in range(FIRST_BATCH, FIRST_BATCH + batches):
      batch = sample_batch(self.source, params, jnp.int32(0), index)
      yield batch.host, batch.verdicts.rewards.astype(np.float32)


def of_run(workdir: Path, **rollout: int) -> Policies:
  """Returns the policies of a run, sampled with these changes to its `rollout` section."""
  cfg, devices = saved.read_config(workdir, plugins="run")
  cfg = dataclasses.replace(cfg, rollout=dataclasses.replace(cfg.rollout, **rollout))
  cfg, task, learner, sampler = setup.build(cfg, devices, training=False)
  return Policies(cfg, learner, sampler, make_source(cfg, task, sampler), workdir)
