"""Builds what a run needs from its Config. Every refusal happens here or in `resolve`, before
anything compiles.
"""

import dataclasses
from typing import NamedTuple

from jaxrl_llm import parallel
from jaxrl_llm.config import Config, ModelConfig, ParametersConfig, load_plugins
from jaxrl_llm.fields import Problems
from jaxrl_llm.late import Late
from jaxrl_llm.models import Model, hf, row_attention, trainable
from jaxrl_llm.parallel import divisions
from jaxrl_llm.types import Task
from jaxrl_llm.wiring.learner import Learner, make_learner
from jaxrl_llm.wiring.resolve import resolve, warn_of_fast_rate, warn_of_off_policy_data
from jaxrl_llm.wiring.sampler import Sampler, make_sampler
from jaxrl_llm.wiring.task import TaskSections, check_rewards, checked_task

# Of runs with a checkpoint.
log_sampling, shapes_of, make_teachers = (Late(f"jaxrl_llm.wiring.checkpoints.{name}") for name in (
    "log_sampling", "shapes_of", "make_teachers"))
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
    slots = parallel.padded(cfg.rollout.slots, parallel.row_mesh(learner.mesh))
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
  mesh, problems = None, Problems()
  with problems:
    mesh = parallel.make_mesh(cfg.mesh, devices)
    if training:
      divisions.check(divisions.RowSections.of(cfg), mesh,
                      parallel.rollout_mesh(cfg.mesh, mesh, devices))
  model = dataclasses.replace(cfg.model, value_head=cfg.has_critic, mtp=cfg.has_mtp,
                              value_bounded=cfg.has_critic and cfg.critic.bounded)
  tokenizer = teachers = None
  if cfg.pretrained:
    model, tokenizer = shapes_of(cfg.pretrained, model, cfg.rollout.row_length)
  cfg = dataclasses.replace(cfg, model=model)
  with problems:
    if mesh is not None:
      row_attention.check(cfg.model, mesh.devices.flat[0].platform)
  with problems:
    divisions.check_heads(cfg.model.num_kv_heads, cfg.mesh)
  task = checked_task(TaskSections.of(cfg), tokenizer, problems, training=training)
  problems.refuse()
  assert mesh is not None and task is not None, "each absence is among the problems"
  origin = str(hf.base_directory(cfg.pretrained)) if cfg.pretrained else None
  network = Model(cfg.model, parallel.Layout(mesh), origin)
  trainable.check(cfg.parameters, network)
  divisions.check_memory(trainable.shapes_of(network, cfg.parameters),
                         _sizes(cfg.model, cfg.parameters))
  if cfg.teacher.by_name:
    teachers = make_teachers(cfg.teacher, cfg.model, cfg.rollout.group_size, task.tokenizer, mesh)
    if training:
      teachers.check(task)
  return cfg, task, make_learner(cfg, network, mesh, task.stop_ids, teachers)


def _sizes(model: ModelConfig, parameters: ParametersConfig) -> dict[str, int]:
  """Returns the keys that the shapes of parameters follow from, with their values."""
  names = ["vocab_size", "width", "num_layers", "num_heads", "head_dim", "mlp_width"]
  names += ["num_experts", "expert_width"] if model.num_experts else []
  rank = {"parameters.lora_rank": parameters.lora_rank} if parameters.train == "lora" else {}
  return {f"model.{name}": getattr(model, name) for name in names} | rank
