"""Builds what a run needs from its Config. Every refusal happens here or in `resolve`, before
anything compiles.
"""

import dataclasses
import logging
from typing import NamedTuple

from jaxrl_llm import parallel
from jaxrl_llm.build import bucket_inputs, size_checks
from jaxrl_llm.build.checkpoint_shapes import shapes_of
from jaxrl_llm.build.learner import Learner, make_learner
from jaxrl_llm.build.resolve import resolve, warn_of_fast_rate, warn_of_off_policy_data
from jaxrl_llm.build.samplers import Sampler, make_sampler
from jaxrl_llm.build.task_setup import TaskSections, check_rewards, checked_task
from jaxrl_llm.build.teacher import make_teachers
from jaxrl_llm.config import Config, load_plugins
from jaxrl_llm.fields import Problems
from jaxrl_llm.models import Model, row_attention, trainable
from jaxrl_llm.models.hf import import_weights, recommended_sampling
from jaxrl_llm.parallel import divisions
from jaxrl_llm.types import Task

logger = logging.getLogger(__name__)
__all__ = ["Built", "build", "build_learner", "load_plugins", "resolve",
           "warn_of_fast_rate", "warn_of_off_policy_data"]


class Built(NamedTuple):
  """Result of `build`, to be unpacked by the caller.

  Attributes:
    cfg: resolved, with the model shapes of the checkpoint in `pretrained`.
    task, learner, sampler: made for it.
  """

  cfg: Config
  task: Task
  learner: Learner
  sampler: Sampler


def build(cfg: Config, devices=None, *, training: bool = True) -> Built:
  """Returns everything that a run needs, for a resolved config. The caller closes the sampler.

  Args:
    devices: of the run; None: all there are.
    training: False: it is only evaluated, so that the task needs no training problem, and training
      rows need not divide over the devices.

  Raises:
    ConfigError: as `build_learner`, or the tool does not start.
  """
  cfg, task, learner = build_learner(cfg, devices, training=training)
  if not training:
    slots = parallel.padded(cfg.rollout.slots, parallel.of_whole_rows(learner.mesh))
    cfg = dataclasses.replace(cfg, rollout=dataclasses.replace(cfg.rollout, slots=slots))
  check_rewards(task, cfg.task.heldout_problems)
  rollout_mesh = parallel.rollout_mesh(cfg.mesh, learner.mesh, devices)
  sampler = make_sampler(cfg, task, learner.model, learner.mesh, rollout_mesh)
  return Built(cfg, task, learner, sampler)


def build_learner(cfg: Config, devices=None, *,
                  training: bool = True) -> tuple[Config, Task, Learner]:
  """As `build`, without a sampler: no tool is started, and there is nothing to close.

  Raises:
    ConfigError: the task does not fit the model or the row, or rows do not fit the devices; all
      that independent checks refuse, in one message.
  """
  cfg = bucket_inputs.copied(cfg)
  # Before all other checks, because these list a batch's problems.
  size_checks.check(None if cfg.pretrained else cfg.model, cfg.rollout, cfg.evaluation,
                    cfg.task.heldout_problems,
                    cfg.updates.staleness if cfg.parameters.train == "all" else 0)
  size_checks.check_warm_start(cfg.warm_start, cfg.row_length)
  mesh, problems = None, Problems()
  with problems:
    mesh = parallel.make_mesh(cfg.mesh, devices)
    if training:
      divisions.check(divisions.RowSections.of(cfg), mesh,
                      parallel.rollout_mesh(cfg.mesh, mesh, devices))
  model, tokenizer = shapes_of(cfg.pretrained, dataclasses.replace(
      cfg.model, value_head=cfg.has_critic, mtp=cfg.has_mtp), cfg.row_length)
  cfg = dataclasses.replace(cfg, model=model)
  if cfg.pretrained:
    size_checks.check_pretrained(cfg.model, cfg.pretrained)
  with problems:
    if mesh is not None:
      row_attention.check(cfg.model, mesh.devices.flat[0].platform)
  with problems:
    divisions.check_heads(cfg.model.num_kv_heads, cfg.mesh)
  task = checked_task(TaskSections.of(cfg), tokenizer, problems, training=training)
  problems.refuse()
  assert mesh is not None and task is not None, "each absence is among the problems"
  origin = str(import_weights.base_directory(cfg.pretrained)) if cfg.pretrained else None
  network = Model(cfg.model, parallel.Layout(mesh), origin)
  trainable.check(cfg.parameters, network)
  size_checks.check_adapters(cfg.parameters, network.shapes())
  teachers = make_teachers(cfg.teacher, cfg.model, cfg.rollout.group_size, task.tokenizer, mesh)
  if training and teachers is not None:
    teachers.check(task)
  return cfg, task, make_learner(cfg, network, mesh, task.stop_ids, teachers)


def log_sampling(pretrained: str, ours: dict[str, float]) -> None:
  """Says where the sampling defaults of a checkpoint are others than ours, which are used.

  Args:
    pretrained: the checkpoint; empty: nothing is logged.
    ours: as in `recommended_sampling.differing_sampling`.
  """
  if not pretrained:
    return
  folder = import_weights.base_directory(pretrained)
  differing = recommended_sampling.differing_sampling(folder, ours)
  if differing:
    logger.warning("generation_config.json of %s names other sampling defaults: %s", pretrained,
                   ", ".join(differing))
