"""The network's shapes and the tokenizer that a checkpoint brings."""

import dataclasses
import logging

from transformers import PreTrainedTokenizerBase

from jaxrl_llm.config import ConfigError, ModelConfig, check_model
from jaxrl_llm.models import hf
from jaxrl_llm.models.hf.errors import CheckpointError
from jaxrl_llm.tasks.tokenizer import load_tokenizer

logger = logging.getLogger(__name__)


def shapes_of(pretrained: str, ours: ModelConfig,
              row_length: int) -> tuple[ModelConfig, PreTrainedTokenizerBase | None]:
  """Returns the model shapes of a checkpoint, executed as `ours` says, and its tokenizer.

  Args:
    pretrained: the checkpoint; empty: `ours` and None are returned.
    row_length: tokens of a row, which the checkpoint may not be made for.

  Raises:
    ConfigError: the checkpoint cannot be read.
  """
  if not pretrained:
    return ours, None
  try:
    directory = hf.base_directory(pretrained)
    limit = hf.position_limit(directory)
    shapes = hf.read_config(directory)
  except (CheckpointError, OSError) as error:
    raise ConfigError(f"pretrained = {pretrained!r}: {error}") from error
  model = dataclasses.replace(shapes, value_head=ours.value_head, mtp=ours.mtp,
                              scan_layers=ours.scan_layers, remat=ours.remat,
                              attention=ours.attention, compute_dtype=ours.compute_dtype)
  try:
    check_model(model)
  except ConfigError as error:
    raise ConfigError(f"pretrained = {pretrained!r}, config.json: {error}") from error
  _log_replaced(ours, model)
  if limit is not None and row_length > limit:
    logger.warning(
        "rollout.max_prompt_tokens + rollout.max_new_tokens = %d: the checkpoint in `pretrained` "
        "is made for %d positions. Fix: shorter rows, or rope_scaling in its config.json.",
        row_length, limit)
  return model, load_tokenizer(directory)


def tokenizer_of(pretrained: str) -> PreTrainedTokenizerBase:
  """Returns the tokenizer of a checkpoint.

  Raises:
    ConfigError: the checkpoint or its tokenizer cannot be read.
  """
  try:
    return load_tokenizer(hf.base_directory(pretrained))
  except (CheckpointError, OSError) as error:
    raise ConfigError(f"pretrained = {pretrained!r}: {error}") from error


def _log_replaced(ours: ModelConfig, checkpoint_shapes: ModelConfig) -> None:
  """Says which shapes of the config gave way to the checkpoint's."""
  shapes = [(field.name, field.default, getattr(ours, field.name),
             getattr(checkpoint_shapes, field.name)) for field in dataclasses.fields(ModelConfig)]
  replaced = [f"model.{name} = {mine!r} (there {its!r})" for name, default, mine, its in shapes
              if mine not in (its, default)]
  if replaced:
    logger.warning("the checkpoint in `pretrained` has its own shapes, which are used, not %s",
                   ", ".join(replaced))
