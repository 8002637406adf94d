"""What a run reads of checkpoints: the policy's shapes and sampling defaults, and its teachers."""

import dataclasses
import logging

from jax.sharding import Mesh
from transformers import PreTrainedTokenizerBase

from jaxrl_llm import parallel
from jaxrl_llm.config import ConfigError, ModelConfig, TeacherConfig, check_model, is_uniform
from jaxrl_llm.models import CheckpointError, Model, hf
from jaxrl_llm.tasks.tokenizer import load_tokenizer
from jaxrl_llm.training.teachers import Teacher, Teachers

logger = logging.getLogger(__name__)


def log_sampling(checkpoint: str, ours: dict[str, float]) -> None:
  """Says where the sampling defaults of a checkpoint are others than ours, which are used.

  Args:
    checkpoint: of `pretrained`.
    ours: as in `hf.differing_sampling`.
  """
  folder = hf.base_directory(checkpoint)
  differing = hf.differing_sampling(folder, ours)
  if differing:
    logger.warning("generation_config.json of %s names other sampling defaults: %s", checkpoint,
                   ", ".join(differing))


def shapes_of(checkpoint: str, ours: ModelConfig,
              row_length: int) -> tuple[ModelConfig, PreTrainedTokenizerBase]:
  """Returns the model shapes of a checkpoint, executed as `ours` says, and its tokenizer.

  Args:
    checkpoint: of `pretrained`.
    row_length: tokens of a row, which the checkpoint may not be made for.

  Raises:
    ConfigError: the checkpoint cannot be read.
  """
  try:
    directory = hf.base_directory(checkpoint)
    limit = hf.position_limit(directory)
    shapes = hf.read_config(directory)
  except (CheckpointError, OSError) as error:
    raise ConfigError(f"pretrained = {checkpoint!r}: {error}") from error
  model = dataclasses.replace(shapes, value_head=ours.value_head, mtp=ours.mtp,
                              value_bounded=ours.value_bounded, scan_layers=ours.scan_layers,
                              remat=ours.remat, attention=ours.attention,
                              compute_dtype=ours.compute_dtype)
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
                  tokenizer: PreTrainedTokenizerBase, mesh: Mesh) -> Teachers:
  """Returns the teachers of a run. Their weights are not read yet.

  Args:
    policy: how its network is computed: attention, scanned layers, dtype.
    tokenizer: of the policy, whose tokens each teacher must have, too.

  Raises:
    ConfigError: a checkpoint cannot be read, or its tokenizer is another one.
  """
  by_name = {name: _make_teacher(checkpoint, policy, tokenizer, mesh)
             for name, checkpoint in cfg.by_name.items()}
  return Teachers(by_name, group_size, mesh)


def _make_teacher(checkpoint: str, policy: ModelConfig, tokenizer: PreTrainedTokenizerBase,
                  mesh: Mesh) -> Teacher:
  try:
    directory = hf.base_directory(checkpoint)
    shapes = hf.read_config(directory)
  except (CheckpointError, OSError) as error:
    raise ConfigError(f"teacher.pretrained = {checkpoint!r}: {error}") from error
  vocabulary = tokenizer.get_vocab()
  _check_tokens(checkpoint, vocabulary, load_tokenizer(directory).get_vocab())
  _check_head(checkpoint, max(vocabulary.values()) + 1, shapes.vocab_size)
  stacked = policy.scan_layers and is_uniform(shapes)
  model = dataclasses.replace(shapes, scan_layers=stacked, attention=policy.attention,
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
