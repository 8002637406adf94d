"""Converts between config.json of a Hugging Face checkpoint and ModelConfig."""

import contextlib
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from jaxrl_llm.config import ConfigError, ModelConfig, RopeScalingConfig, check_model
from jaxrl_llm.fields import options
from jaxrl_llm.models import families
from jaxrl_llm.models.families.family import ACTIVATIONS, TRAITS
from jaxrl_llm.models.hf.errors import CheckpointError

MOST_LAYERS = 1000
ROPES = ("default", "linear", "llama3", "yarn")
# Fields of ModelConfig that a checkpoint does not determine.
EXECUTION = ("value_head", "value_bounded", "scan_layers", "remat", "attention", "compute_dtype",
             "mtp")


def read_config(directory: Path) -> ModelConfig:
  """Returns the shapes of the checkpoint in `directory`.

  Raises:
    CheckpointError: config.json is absent or unreadable, its architecture is not supported, or it
      asks for features that the network lacks; these are all listed.
  """
  file = directory / "config.json"
  raw = read_json(file)
  kind = raw.get("model_type")
  if not isinstance(kind, str) or kind not in families.FAMILIES:
    raise CheckpointError(f"{file}: model_type = {kind!r} is not supported. Supported: "
                          f"{', '.join(families.names())}. Fix: a checkpoint of one of these.")
  family = families.family(kind)
  architectures = raw.get("architectures") or [family.architecture]
  if architectures != [family.architecture]:
    raise CheckpointError(f"{file}: architectures = {architectures} is not supported. Supported: "
                          f"{family.architecture}. Fix: a checkpoint of it.")
  from transformers import CONFIG_MAPPING  # takes seconds, and most runs have no checkpoint

  layers = raw.get("num_hidden_layers")
  if isinstance(layers, int) and layers > MOST_LAYERS:  # transformers makes a list of them
    raise CheckpointError(f"{file}: num_hidden_layers = {layers}; allowed are 1 to {MOST_LAYERS}. "
                          "Fix: fetch the file again.")
  try:
    with _quiet():
      hf = CONFIG_MAPPING[kind].from_dict(raw)
  except (TypeError, ValueError, KeyError, StrictDataclassError) as error:
    reason = " ".join(str(error).split())
    raise CheckpointError(f"{file} is not a valid {kind} config: {reason}. Fix: fetch the file "
                          "again.") from error
  problems = _unsupported(family, hf, raw)
  if problems:
    raise CheckpointError(f"{file} asks for what the network lacks: {'; '.join(problems)}. "
                          "Fix: another checkpoint.")
  try:
    cfg = _from_hf(kind, family, hf)
  except (TypeError, ValueError, KeyError, ZeroDivisionError) as error:
    raise CheckpointError(f"{file} is not a valid {kind} config: {error!r}. Fix: fetch the file "
                          "again.") from error
  numbers = [(name, getattr(part, name), field.metadata.get("low"))
             for part in (cfg, cfg.rope_scaling) for name, field in options(type(part)).items()]
  for name, number, low in numbers:
    if low is not None and number is not None and not low <= number < math.inf:
      raise CheckpointError(f"{file}: {name} = {number}; {low} or more was expected. Fix: fetch "
                            "the file again.")
  return cfg


@contextlib.contextmanager
def _quiet():
  """transformers logs no warnings inside: what is wrong here is refused, or of no effect."""
  from transformers.utils import logging

  verbosity = logging.get_verbosity()
  logging.set_verbosity_error()
  try:
    yield
  finally:
    logging.set_verbosity(verbosity)


def read_json(file: Path) -> dict[str, Any]:
  """Returns the content of a JSON file; CheckpointError where it is absent or not JSON."""
  if not file.exists():
    raise CheckpointError(f"{file} is not there. Fix: a directory written by save_pretrained.")
  try:
    content = json.loads(file.read_text())
  except (ValueError, RecursionError, OSError) as error:
    raise CheckpointError(f"{file} is not JSON: {error}. Fix: fetch the file again.") from error
  if not isinstance(content, dict):
    raise CheckpointError(f"{file}: an object was expected, not {str(content)[:60]!r}. Fix: fetch "
                          "the file again.")
  return content


def _unsupported(family: families.Family, hf, raw: dict) -> list[str]:
  """Returns the features in use that would make our logits differ from the checkpoint's."""
  rope, dropout = family.rope(hf), getattr(hf, "attention_dropout", 0)
  activation = getattr(hf, "hidden_activation", None) or hf.hidden_act
  allowed = [ACTIVATIONS[name] for name in family.traits["activation"]]
  checks = [
      (activation not in allowed, f"hidden_act = {activation!r} (supported: {allowed[0]!r})"),
      (getattr(hf, "mlp_bias", False), "mlp_bias = true"),
      (dropout, f"attention_dropout = {dropout} (supported: 0)"),
      (rope["rope_type"] not in ROPES,
       f"rope_type = {rope['rope_type']!r} (supported: {', '.join(ROPES)})"),
      (rope.get("partial_rotary_factor", 1.0) != 1.0, "partial_rotary_factor other than 1"),
      (raw.get("quantization_config"), "quantization_config (supported: float weights)"),
      *family.unsupported(hf),
  ]
  return [message for bad, message in checks if bad]


def _rope_scaling(rope: dict[str, Any], hf) -> RopeScalingConfig:
  """Returns the stretching of transformers' rotary numbers, whose defaults are filled in."""
  if rope["rope_type"] == "linear":
    return RopeScalingConfig(name="linear", factor=float(rope["factor"]))
  if rope["rope_type"] == "llama3":
    return RopeScalingConfig(name="llama3", factor=float(rope["factor"]),
                             low_frequency_factor=float(rope["low_freq_factor"]),
                             high_frequency_factor=float(rope["high_freq_factor"]),
                             original_length=int(rope["original_max_position_embeddings"]))
  if rope["rope_type"] != "yarn":
    return RopeScalingConfig()
  original = int(rope["original_max_position_embeddings"])
  factor = float(rope["factor"] or hf.max_position_embeddings / original)
  attention = rope.get("attention_factor")
  scale, all_dim = rope.get("mscale"), rope.get("mscale_all_dim")
  if attention is None and scale and all_dim:
    attention = _mscale(factor, scale) / _mscale(factor, all_dim)
  return RopeScalingConfig(name="yarn", factor=factor, original_length=original,
                           beta_fast=float(rope.get("beta_fast") or 32),
                           beta_slow=float(rope.get("beta_slow") or 1),
                           attention_factor=None if attention is None else float(attention),
                           truncate=bool(rope.get("truncate", True)))


def _mscale(factor: float, scale: float) -> float:
  return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _from_hf(kind: str, family: families.Family, hf) -> ModelConfig:
  rope = family.rope(hf)
  return ModelConfig(
      family=kind,
      vocab_size=hf.vocab_size,
      width=hf.hidden_size,
      num_layers=hf.num_hidden_layers,
      num_heads=hf.num_attention_heads,
      num_kv_heads=hf.num_key_value_heads,
      head_dim=getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads,
      mlp_width=hf.intermediate_size,
      rope_base=float(rope["rope_theta"]),
      rope_scaling=_rope_scaling(rope, hf),
      norm_epsilon=float(hf.rms_norm_eps),
      tie_head=bool(hf.tie_word_embeddings),
      **family.options(hf),
  )


def with_execution(cfg: ModelConfig, overrides: dict[str, Any]) -> ModelConfig:
  """Returns `cfg` with overrides of the fields that a checkpoint does not determine.

  Raises:
    CheckpointError: an override of another field.
  """
  invalid = sorted(set(overrides) - set(EXECUTION))
  if invalid:
    raise CheckpointError(
        f"overrides = {invalid}: the checkpoint determines these. Allowed: {', '.join(EXECUTION)}.")
  result = dataclasses.replace(cfg, **overrides)
  try:
    check_model(result)
  except ConfigError as error:
    raise CheckpointError(str(error)) from error
  return result


def model_type(cfg: ModelConfig) -> str:
  """Returns the family of a config: its checkpoint's, or the first that computes what it does.

  Raises:
    CheckpointError: there is none.
  """
  names = [cfg.family] if cfg.family else []
  for name in names + families.names():
    if families.family(name).computes(cfg):
      return name
  traits = ", ".join(f"{name} = {getattr(cfg, name)}" for name in TRAITS)
  raise CheckpointError(f"no supported architecture has {traits} together. Supported: "
                        f"{', '.join(families.names())}.")


def to_hf(cfg: ModelConfig, dtype: str, base: dict[str, Any]) -> dict[str, Any]:
  """Returns config.json of an export.

  The rotary numbers, the dtype and the number of experts are written under the keys of transformers
  5 and under the older ones, so that older readers understand the directory too.

  Args:
    dtype: of the stored weights, by numpy's name.
    base: config.json that the parameters came from, or {}; its keys that ModelConfig does not know
      are kept.
  """
  kind = model_type(cfg)
  family = families.family(kind)
  defaults = {
      "max_position_embeddings": 32768,
      "bos_token_id": None,
      "eos_token_id": None,
      "pad_token_id": None,
      "attention_dropout": 0.0,
      "use_cache": True,
      "initializer_range": 0.02,
  }
  ours = {
      "architectures": [family.architecture],
      "model_type": kind,
      "dtype": dtype,
      "torch_dtype": dtype,
      "vocab_size": cfg.vocab_size,
      "hidden_size": cfg.width,
      "intermediate_size": cfg.mlp_width,
      "num_hidden_layers": cfg.num_layers,
      "num_attention_heads": cfg.num_heads,
      "num_key_value_heads": cfg.num_kv_heads,
      "head_dim": cfg.head_dim,
      "hidden_act": ACTIVATIONS[cfg.activation],
      "rms_norm_eps": cfg.norm_epsilon,
      "tie_word_embeddings": cfg.tie_head,
  }
  of_base = base if base.get("model_type") == kind else {}
  rope = _rope_keys(cfg)
  return defaults | of_base | ours | rope | family.keys(cfg, rope["rope_parameters"])


def _rope_keys(cfg: ModelConfig) -> dict[str, Any]:
  scaling = cfg.rope_scaling
  rope = {"rope_type": "default"}
  if scaling.name != "none":
    rope = {"rope_type": scaling.name, "factor": scaling.factor}
  if scaling.name == "llama3":
    rope |= {
        "low_freq_factor": scaling.low_frequency_factor,
        "high_freq_factor": scaling.high_frequency_factor,
        "original_max_position_embeddings": scaling.original_length,
    }
  if scaling.name == "yarn":
    rope |= {
        "beta_fast": scaling.beta_fast,
        "beta_slow": scaling.beta_slow,
        "original_max_position_embeddings": scaling.original_length,
        "truncate": scaling.truncate,
    }
    if scaling.attention_factor is not None:
      rope["attention_factor"] = scaling.attention_factor
  return {
      "rope_theta": cfg.rope_base,
      "rope_scaling": None if scaling.name == "none" else rope,
      "rope_parameters": rope | {"rope_theta": cfg.rope_base},
  }
