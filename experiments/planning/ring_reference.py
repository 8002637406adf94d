"""The engine on this device against the engine as it was, before rows had a cache of their own.

That engine had a ring of columns which all rows shared, written at one index. What it sampled on a
CPU, from a tiny model with rows of many lengths, is in RECORD: rows sample the same today, whatever
device, kernel or window reads the cache. Weights and prompts come from numpy alone.
"""

import json
from pathlib import Path

import jax
import numpy as np

from jaxrl_llm.config import ModelConfig
from jaxrl_llm.models import Model
from jaxrl_llm.rollouts import engine
from jaxrl_llm.types import PromptBatch, Sampling

# From commit 55bbade6^, which is the last with the ring.
RECORD = Path(__file__).parent / "ring_reference.json"
ROWS, GROUP, PROMPT, NEW, STOP = 24, 4, 12, 40, 31
MODEL = Model(ModelConfig(vocab_size=32, width=32, num_layers=2, num_heads=8, num_kv_heads=8,
                          head_dim=16, mlp_width=64))


def sample(**options):
  """Returns (tokens [ROWS, PROMPT + NEW] int32, log_probs of them f32) of the engine.

  Args:
    **options: of EngineConfig, such as `attention`.
  """
  rng = np.random.default_rng(0)
  length = rng.integers(3, PROMPT + 1, ROWS // GROUP).repeat(GROUP).astype(np.int32)
  prompts = rng.integers(1, STOP, (ROWS // GROUP, PROMPT)).repeat(GROUP, 0).astype(np.int32)
  limit, number = rng.integers(4, NEW + 1, ROWS), np.arange(ROWS, dtype=np.int32)

  def weights(x):
    drawn = 0.3 * rng.normal(size=x.shape) if len(x.shape) > 1 else np.ones(x.shape)
    return drawn.astype(np.float32)

  cfg = engine.EngineConfig(group_size=GROUP, max_new_tokens=NEW, window=16, stop_ids=(STOP,),
                            pad_id=0, slots=8, chunk=8, **options)
  with jax.default_matmul_precision("highest"):
    rollout, _ = engine.run(jax.tree.map(weights, MODEL.shapes()),
                            PromptBatch(prompts, length, number, number // GROUP),
                            jax.random.key(1), Sampling.of(1.0), model=MODEL, cfg=cfg,
                            max_new=limit)
  rollout = jax.device_get(rollout)
  return rollout.tokens, rollout.behavior_log_probs


def compare(tokens, log_probs) -> dict:
  """Returns how many rows have the tokens of the record, and the largest difference of their
  log-probs from it, nats.
  """
  record = json.loads(RECORD.read_text())
  same = (tokens == np.asarray(record["tokens"])).all(1)
  apart = np.abs(log_probs - np.asarray(record["log_probs"], np.float32))[same]
  return {"equal_rows": int(same.sum()), "log_prob_difference": float(apart.max(initial=0.0))}
