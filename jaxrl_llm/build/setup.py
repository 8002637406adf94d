"""Builds what a run needs from its Config. Every refusal happens here or in `resolve`, before
anything compiles.
"""

import dataclasses
import logging
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from jaxrl_llm import parallel
from jaxrl_llm.build import bucket_inputs, device_checks, size_checks
from jaxrl_llm.build.demonstrations import demonstrating
from jaxrl_llm.build.learner import Learner, make_learner
from jaxrl_llm.build.method_checks import check_rewards, check_task
from jaxrl_llm.build.resolve import resolve, warn_of_off_policy_data
from jaxrl_llm.build.samplers import Sampler, make_sampler, tool_of
from jaxrl_llm.build.teacher import make_teacher
from jaxrl_llm.config import (
  Config,
  ConfigError,
  ModelConfig,
  RolloutConfig,
  check_model,
  load_plugins,
)
from jaxrl_llm.models import Model, trainable
from jaxrl_llm.models.hf import import_weights, network_config, recommended_sampling
from jaxrl_llm.models.hf.safetensors_files import CheckpointError
from jaxrl_llm.rollouts.environment import OF_TOOL
from jaxrl_llm.tasks import make_task
from jaxrl_llm.tasks.rewards import rewarded
from jaxrl_llm.tasks.tokenizer import load_tokenizer
from jaxrl_llm.types import Task

logger = logging.getLogger(__name__)
__all__ = ["Built", "build", "build_learner", "load_plugins", "resolve",
           "warn_of_off_policy_data"]


class Built(NamedTuple):
  """What `build` returns, to be unpacked at once.

  Attributes:
    cfg: resolved, with the model shapes of the checkpoint in `pretrained`.
    task, learner, sampler: made for it.
  """

  cfg: Config
  task: Task
  learner: Learner
  sampler: Sampler


def build(cfg: Config, devices=None, *, training: bool = True) -> Built:
  """Everything that a run needs, for a resolved config. The caller closes the sampler.

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
    ConfigError: the task does not fit the model or the row, or rows do not fit the devices.
  """
  cfg = bucket_inputs.copied(cfg)
  size_checks.check(None if cfg.pretrained else cfg.model, cfg.rollout, cfg.evaluation,
                    cfg.task.heldout_problems,
                    cfg.updates.staleness if cfg.parameters.train == "all" else 0)
  mesh = parallel.make_mesh(cfg.mesh, devices)
  if training:
    device_checks.check(cfg, mesh, parallel.rollout_mesh(cfg.mesh, mesh, devices))
  model = dataclasses.replace(cfg.model, value_head=cfg.has_critic, mtp=cfg.has_mtp)
  tokenizer = None
  if cfg.pretrained:
    model, tokenizer = _from_checkpoint(cfg.pretrained, model, cfg.row_length)
  cfg = dataclasses.replace(cfg, model=model)
  device_checks.check_heads(cfg.model.num_kv_heads, cfg.mesh)
  task = make_task(cfg.task, cfg.seed, cfg.rollout.prompts, tokenizer=tokenizer, limits=cfg.rollout)
  task = rewarded(task, cfg.reward)
  check_task(cfg.task, task, cfg.rollout.prompts if training else 0)
  _check_lengths(task, cfg.task.name, cfg.rollout)
  if cfg.warm_start.path and cfg.warm_start.steps:
    demonstrating(cfg.warm_start, cfg.task, cfg.rollout, cfg.seed, tokenizer)  # refuses a bad file
  elif cfg.warm_start.steps:
    _check_demonstrations(task, cfg.task.name, cfg.warm_start.steps, cfg.rollout)
  if cfg.rollout.max_turns and cfg.environment.name == OF_TOOL:
    tool_of(cfg.tool, task, cfg.task.name, cfg.rollout.max_turns)
  _check_vocabulary(len(task.tokenizer), cfg.model.vocab_size)
  origin = str(import_weights.base_directory(cfg.pretrained)) if cfg.pretrained else None
  model = Model(cfg.model, parallel.Layout(mesh), origin)
  trainable.check(cfg.parameters, model)
  teacher = make_teacher(cfg.teacher.pretrained, cfg.model, task.tokenizer, mesh)
  return cfg, task, make_learner(cfg, model, mesh, task.stop_ids, teacher)


def _from_checkpoint(pretrained: str, ours: ModelConfig,
                     row_length: int) -> tuple[ModelConfig, PreTrainedTokenizerBase]:
  """The model shapes of a checkpoint, executed as `ours` says, and its tokenizer."""
  try:
    directory = import_weights.base_directory(pretrained)
    limit = recommended_sampling.position_limit(directory)
    shapes = network_config.read_config(directory)
  except (CheckpointError, OSError) as error:
    raise ConfigError(f"pretrained = {pretrained!r}: {error}") from error
  model = dataclasses.replace(shapes, value_head=ours.value_head, mtp=ours.mtp,
                              scan_layers=ours.scan_layers, remat=ours.remat,
                              attention=ours.attention, compute_dtype=ours.compute_dtype)
  check_model(model)
  _log_replaced(ours, model)
  if limit is not None and row_length > limit:
    logger.warning(
        "rollout.max_prompt_tokens + rollout.max_new_tokens = %d: the checkpoint in `pretrained` "
        "is made for %d positions. Fix: shorter rows, or rope_scaling in its config.json.",
        row_length, limit)
  return model, load_tokenizer(directory)


def log_sampling(pretrained: str, ours: dict[str, float]) -> None:
  """Says where the sampling defaults of a checkpoint are others than ours, which are used.

  Args:
    pretrained: the checkpoint; empty: nothing is said.
    ours: as in `recommended_sampling.differing_sampling`.
  """
  if not pretrained:
    return
  folder = import_weights.base_directory(pretrained)
  differing = recommended_sampling.differing_sampling(folder, ours)
  if differing:
    logger.warning("generation_config.json of %s names other sampling defaults: %s", pretrained,
                   ", ".join(differing))


def _log_replaced(ours: ModelConfig, checkpoint_shapes: ModelConfig) -> None:
  """Says which shapes of the config gave way to the checkpoint's."""
  for field in dataclasses.fields(ModelConfig):
    mine, new_value = getattr(ours, field.name), getattr(checkpoint_shapes, field.name)
    if mine not in (new_value, field.default):
      logger.warning("model.%s = %r: the checkpoint in `pretrained` has %r, which is used",
                     field.name, mine, new_value)


def _check_vocabulary(size: int, vocab_size: int) -> None:
  """Refuses a tokenizer of `size` tokens that is larger than the model's vocabulary."""
  if size > vocab_size:
    raise ConfigError(f"model.vocab_size = {vocab_size}: the tokenizer has {size} "
                      f"tokens. Fix: model.vocab_size >= {size}.")


def _check_lengths(task: Task, name: str, rollout: RolloutConfig) -> None:
  """Refuses prompts longer than the row's; `name` is task.name."""
  longest = task.longest_prompt()
  if longest > rollout.max_prompt_tokens:
    raise ConfigError(
        f"rollout.max_prompt_tokens = {rollout.max_prompt_tokens}: prompts of task.name = "
        f"{name!r} have up to {longest} tokens. "
        f"Fix: rollout.max_prompt_tokens >= {longest}.")


def _check_demonstrations(task: Task, name: str, steps: int, rollout: RolloutConfig) -> None:
  """Refuses demonstrations of a warm start of so many steps that are absent or too long."""
  if not task.has_demonstrations:
    raise ConfigError(
        f"warm_start.steps = {steps}: task.name = {name!r} has no "
        "demonstrations to imitate. Fix: warm_start.steps=0.")
  longest = task.longest_prompt() + task.longest_demonstration()
  if longest > rollout.row_length:
    raise ConfigError(
        f"rollout.max_new_tokens = {rollout.max_new_tokens}: a prompt with its demonstration "
        f"has up to {longest} tokens. Fix: rollout.max_new_tokens >= "
        f"{longest - rollout.max_prompt_tokens}, or warm_start.steps=0.")
