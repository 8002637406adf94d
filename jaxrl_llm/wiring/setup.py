"""Builds what a run needs from its Config. Every refusal happens here or in `resolve`, before
anything compiles.
"""

import dataclasses
import logging
from typing import TYPE_CHECKING, NamedTuple

from jax.sharding import Mesh
from transformers import PreTrainedTokenizerBase

from jaxrl_llm import parallel
from jaxrl_llm.config import (
  Config,
  ConfigError,
  ModelConfig,
  ParametersConfig,
  TeacherConfig,
  check_model,
  load_plugins,
)
from jaxrl_llm.fields import Problems
from jaxrl_llm.models import CheckpointError, Model, hf, row_attention, trainable
from jaxrl_llm.parallel import divisions
from jaxrl_llm.tasks.tokenizer import load_tokenizer
from jaxrl_llm.types import Task
from jaxrl_llm.wiring.learner import Learner, make_learner
from jaxrl_llm.wiring.resolve import resolve, warn_of_fast_rate, warn_of_off_policy_data
from jaxrl_llm.wiring.sampler import Sampler, make_sampler
from jaxrl_llm.wiring.task import TaskSections, check_rewards, checked_task

if TYPE_CHECKING:  # imported for runs that have one
  from jaxrl_llm.training.teachers import Teacher, Teachers

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
  mesh, problems = None, Problems()
  with problems:
    mesh = parallel.make_mesh(cfg.mesh, devices)
    if training:
      divisions.check(divisions.RowSections.of(cfg), mesh,
                      parallel.rollout_mesh(cfg.mesh, mesh, devices))
  model, tokenizer = shapes_of(cfg.pretrained, dataclasses.replace(
      cfg.model, value_head=cfg.has_critic, mtp=cfg.has_mtp), cfg.rollout.row_length)
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
  teachers = make_teachers(cfg.teacher, cfg.model, cfg.rollout.group_size, task.tokenizer, mesh)
  if training and teachers is not None:
    teachers.check(task)
  return cfg, task, make_learner(cfg, network, mesh, task.stop_ids, teachers)


def _sizes(model: ModelConfig, parameters: ParametersConfig) -> dict[str, int]:
  """Returns the keys that the shapes of parameters follow from, with their values."""
  names = ["vocab_size", "width", "num_layers", "num_heads", "head_dim", "mlp_width"]
  names += ["num_experts", "expert_width"] if model.num_experts else []
  rank = {"parameters.lora_rank": parameters.lora_rank} if parameters.train == "lora" else {}
  return {f"model.{name}": getattr(model, name) for name in names} | rank


def log_sampling(checkpoint: str, ours: dict[str, float]) -> None:
  """Says where the sampling defaults of a checkpoint are others than ours, which are used.

  Args:
    checkpoint: of `pretrained`; empty: nothing is logged.
    ours: as in `hf.differing_sampling`.
  """
  if not checkpoint:
    return
  folder = hf.base_directory(checkpoint)
  differing = hf.differing_sampling(folder, ours)
  if differing:
    logger.warning("generation_config.json of %s names other sampling defaults: %s", checkpoint,
                   ", ".join(differing))


def shapes_of(checkpoint: str, ours: ModelConfig,
              row_length: int) -> tuple[ModelConfig, PreTrainedTokenizerBase | None]:
  """Returns the model shapes of a checkpoint, executed as `ours` says, and its tokenizer.

  Args:
    checkpoint: of `pretrained`; empty: `ours` and None are returned.
    row_length: tokens of a row, which the checkpoint may not be made for.

  Raises:
    ConfigError: the checkpoint cannot be read.
  """
  if not checkpoint:
    return ours, None
  try:
    directory = hf.base_directory(checkpoint)
    limit = hf.position_limit(directory)
    shapes = hf.read_config(directory)
  except (CheckpointError, OSError) as error:
    raise ConfigError(f"pretrained = {checkpoint!r}: {error}") from error
  model = dataclasses.replace(shapes, value_head=ours.value_head, mtp=ours.mtp,
                              scan_layers=ours.scan_layers, remat=ours.remat,
                              attention=ours.attention, compute_dtype=ours.compute_dtype)
  try:
    check_model(model)
  except ConfigError as error:
    raise ConfigError(f"pretrained = {checkpoint!r}, config.json: {error}") from error
  _log_replaced(ours, model)
  if limit is not None and row_length > limit:
    logger.warning(
        "rollout.max_prompt_tokens + rollout.max_new_tokens = %d: the checkpoint in `pretrained` "
        "is made for %d positions. Fix: shorter rows, or rope_scaling in its config.json.",
        row_length, limit)
  return model, load_tokenizer(directory)


def _log_replaced(ours: ModelConfig, checkpoint_shapes: ModelConfig) -> None:
  """Says which shapes of the config gave way to the checkpoint's."""
  shapes = [(field.name, field.default, getattr(ours, field.name),
             getattr(checkpoint_shapes, field.name)) for field in dataclasses.fields(ModelConfig)]
  differences = [f"model.{name} = {mine!r} (there {its!r})" for name, default, mine, its in shapes
                 if mine not in (its, default)]
  if differences:
    logger.warning("the checkpoint in `pretrained` has its own shapes, which are used, not %s",
                   ", ".join(differences))


def make_teachers(cfg: TeacherConfig, policy: ModelConfig, group_size: int,
                  tokenizer: PreTrainedTokenizerBase, mesh: Mesh) -> "Teachers | None":
  """Returns the teachers of a run; None without a checkpoint. Their weights are not read yet.

  Args:
    policy: how its network is computed: attention, scanned layers, dtype.
    tokenizer: of the policy, whose tokens each teacher must have, too.

  Raises:
    ConfigError: a checkpoint cannot be read, or its tokenizer is another one.
  """
  if not cfg.by_name:
    return None
  from jaxrl_llm.training.teachers import Teachers
  by_name = {name: _make_teacher(checkpoint, policy, tokenizer, mesh)
             for name, checkpoint in cfg.by_name.items()}
  return Teachers(by_name, group_size, mesh)


def _make_teacher(checkpoint: str, policy: ModelConfig, tokenizer: PreTrainedTokenizerBase,
                  mesh: Mesh) -> "Teacher":
  from jaxrl_llm.training.teachers import Teacher
  try:
    directory = hf.base_directory(checkpoint)
    shapes = hf.read_config(directory)
  except (CheckpointError, OSError) as error:
    raise ConfigError(f"teacher.pretrained = {checkpoint!r}: {error}") from error
  vocabulary = tokenizer.get_vocab()
  _check_tokens(checkpoint, vocabulary, load_tokenizer(directory).get_vocab())
  _check_head(checkpoint, max(vocabulary.values()) + 1, shapes.vocab_size)
  model = dataclasses.replace(shapes, scan_layers=policy.scan_layers, attention=policy.attention,
                              compute_dtype=policy.compute_dtype)
  return Teacher(checkpoint, Model(model, parallel.Layout(mesh)), mesh)


def _check_tokens(checkpoint: str, policy: dict[str, int], teacher: dict[str, int]) -> None:
  """Refuses a teacher for which an id of the policy is another token, or none."""
  differing = sorted(token for token in policy if teacher.get(token) != policy[token])
  if differing:
    token = differing[0]
    teacher_id = teacher.get(token, "no id")
    raise ConfigError(
        f"teacher.pretrained = {checkpoint!r}: its tokenizer is not the policy's: of "
        f"{len(policy)} tokens {len(differing)} differ, {token!r} is {policy[token]} for the "
        f"policy and {teacher_id} for the teacher. Fix: a teacher with the policy's tokenizer.")


def _check_head(checkpoint: str, ids: int, vocab_size: int) -> None:
  """Refuses a teacher whose network has fewer ids than the tokenizer; more are padding."""
  if vocab_size < ids:
    raise ConfigError(
        f"teacher.pretrained = {checkpoint!r}: its network has vocab_size {vocab_size}, and the "
        f"tokenizer {ids} ids. Fix: a teacher with the policy's vocabulary.")
