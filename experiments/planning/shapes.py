"""Shapes of the policy network without its weights: published shapes, or a local folder's."""

import dataclasses
from pathlib import Path
from typing import Any

from jaxrl_llm.config import ConfigError, ModelConfig, check_model
from jaxrl_llm.models.hf import import_weights, network_config
from jaxrl_llm.models.hf.errors import CheckpointError

# Public checkpoints: billions of parameters by their cards, and shapes by their config.json.
_QWEN3 = dict(head_dim=128, vocab_size=151_936, qk_norm=True)
_QWEN25 = dict(qk_norm=False, qkv_bias=True)
_7B = dict(_QWEN25, num_layers=28, width=3584, num_heads=28, num_kv_heads=4, head_dim=128,
           mlp_width=18_944, vocab_size=152_064, tie_head=False)
_GEMMA3 = dict(norms="both", norm_offset=True, activation="gelu_tanh", embedding_scale=True,
               qk_norm=True, window_rope_base=1e4, rope_base=1e6)
_OLMO2 = dict(norms="after", qk_norm=True, wide_qk_norm=True, rope_base=5e5, tie_head=False)
SHAPES: dict[str, tuple[float, dict[str, Any]]] = {
    "Qwen/Qwen3-1.7B": (1.7, dict(
        _QWEN3, num_layers=28, width=2048, num_heads=16, num_kv_heads=8, mlp_width=6144)),
    "Qwen/Qwen3-4B": (4.0, dict(
        _QWEN3, num_layers=36, width=2560, num_heads=32, num_kv_heads=8, mlp_width=9728)),
    "Qwen/Qwen3-8B-Base": (8.2, dict(
        _QWEN3, num_layers=36, width=4096, num_heads=32, num_kv_heads=8, mlp_width=12_288,
        tie_head=False)),
    "Qwen/Qwen3-14B": (14.8, dict(
        _QWEN3, num_layers=40, width=5120, num_heads=40, num_kv_heads=8, mlp_width=17_408,
        tie_head=False)),
    "Qwen/Qwen2.5-0.5B-Instruct": (0.5, dict(
        _QWEN25, num_layers=24, width=896, num_heads=14, num_kv_heads=2, head_dim=64,
        mlp_width=4864, vocab_size=151_936)),
    "Qwen/Qwen2.5-7B": (7.6, _7B),
    "Qwen/Qwen2.5-Math-7B": (7.6, _7B),
    "google/gemma-3-1b-it": (1.0, dict(
        _GEMMA3, num_layers=26, width=1152, num_heads=4, num_kv_heads=1, head_dim=256,
        mlp_width=6912, vocab_size=262_144, window=512, full_layers=(5, 11, 17, 23))),
    "allenai/OLMo-2-0425-1B-Instruct": (1.5, dict(
        _OLMO2, num_layers=16, width=2048, num_heads=16, num_kv_heads=16, head_dim=128,
        mlp_width=8192, vocab_size=100_352)),
}


def with_shapes(ours: ModelConfig, pretrained: str) -> ModelConfig:
  """Returns the model with the shapes of `pretrained`; as it is without a checkpoint.

  Reads no weights and no network: the shapes come from `SHAPES`, or from the config.json of a local
  folder. How the network is executed (`model.remat` and so on) stays as in `ours`.

  Raises:
    ConfigError: `pretrained` is neither in `SHAPES` nor a readable folder.
  """
  if pretrained in SHAPES:
    model = dataclasses.replace(ours, **SHAPES[pretrained][1])
  elif pretrained:
    model = _with_execution(_folder_config(pretrained), ours)
  else:
    model = ours
  check_model(model)
  return model


def _folder_config(pretrained: str) -> ModelConfig:
  if not Path(pretrained).exists():
    raise ConfigError(
        f"pretrained = {pretrained!r}: the planner needs no weights, but it has no shapes for this "
        f"name. Allowed are a local folder with a config.json, a GGUF file, and "
        f"{', '.join(SHAPES)}. "
        "Fix: --config.pretrained=<a folder with the checkpoint's config.json>.")
  try:
    return network_config.read_config(import_weights.local_directory(pretrained))
  except (CheckpointError, OSError) as error:
    raise ConfigError(f"pretrained = {pretrained!r}: {error}") from error


def _with_execution(shapes: ModelConfig, ours: ModelConfig) -> ModelConfig:
  return dataclasses.replace(shapes, value_head=ours.value_head, mtp=ours.mtp,
                             scan_layers=ours.scan_layers, remat=ours.remat,
                             attention=ours.attention, compute_dtype=ours.compute_dtype)
