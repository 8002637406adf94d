"""A network of few weights that is far from uniform, and groups of prompts for it."""

import jax
import numpy as np

from jaxrl_llm.config import ModelConfig
from jaxrl_llm.models import Model
from jaxrl_llm.types import PromptBatch

VOCAB = 13


def network(**options) -> Model:
  """One layer, unless `options` of the config say otherwise."""
  return Model(ModelConfig(**{"vocab_size": VOCAB, "width": 16, "num_layers": 1, "num_heads": 2,
                              "num_kv_heads": 1, "head_dim": 8, "mlp_width": 24} | options))


def params_of(model: Model, factor: float = 8.0):
  """Parameters whose matrices are so many times larger than at the start of a training."""
  params = model.init(jax.random.key(0))
  return jax.tree.map(lambda x: factor * x if x.ndim > 1 else x, params)


def prompts(rows: int = 16, group: int = 4, width: int = 5, seed: int = 0) -> PromptBatch:
  """Groups that share a prompt of one to `width` tokens, none of which ends a row."""
  rng, ids = np.random.default_rng(seed), np.arange(rows, dtype=np.int32)
  length = rng.integers(1, width + 1, rows // group)
  tokens = rng.integers(4, VOCAB, (rows // group, width))
  return PromptBatch(np.repeat(tokens, group, 0).astype(np.int32),
                     np.repeat(length, group).astype(np.int32), ids, ids // group)
