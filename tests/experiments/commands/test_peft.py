"""PEFT reads our adapters: its unmerged network gives the logits of our merged parameters."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from suites import quick_for

from experiments.commands import peft
from experiments.families import checkpoints as hf_checkpoints
from jaxrl_llm.config import ParametersConfig
from jaxrl_llm.models import hf, trainable

LORA = ParametersConfig("lora", lora_rank=3, lora_alpha=12.0)
ATTENTION = dataclasses.replace(LORA, lora_targets=("attention/(query|key|value|out)",))
SOME_AND_HEAD = dataclasses.replace(LORA, lora_targets=("attention/query", "mlp/down", "head"))
ONE_LAYER = dataclasses.replace(LORA, lora_targets=("blocks/1/mlp", "attention/out"))
CASES = {  # family, what has an adapter, whether layers are scanned
    "qwen3_tied": ("qwen3_tied", LORA, False),
    "qwen3_scanned": ("qwen3_tied", LORA, True),
    "qwen2": ("qwen2_untied", SOME_AND_HEAD, False),
    "llama_one_layer": ("llama", ONE_LAYER, False),
    "qwen3_moe": ("qwen3_moe", ATTENTION, False),
}
IDS = np.random.default_rng(0).integers(0, hf_checkpoints.VOCAB, (2, 9))


def adapted(directory, cfg, scan):
  """(model, parameters, trained tree, frozen tree), the adapters filled with random numbers."""
  model, params, _ = hf.load_pretrained(directory, scan_layers=scan)
  trained, frozen = trainable.split(params, cfg, jax.random.key(0))
  rng = np.random.default_rng(1)

  def noise(x):
    return jnp.asarray(0.2 * rng.standard_normal(x.shape), jnp.float32)

  return model, params, jax.tree.map(noise, trained), frozen


@functools.partial(jax.jit, static_argnums=1)
def logits(params, model):
  positions = jnp.broadcast_to(jnp.arange(IDS.shape[1]), IDS.shape)
  segments = jnp.ones(IDS.shape, jnp.int32)
  return model.hidden(params, jnp.asarray(IDS), positions, segments)[0] @ model.head(params)


def with_peft(checkpoint, adapter):
  from peft import PeftModel

  network = PeftModel.from_pretrained(hf_checkpoints.reload(checkpoint), adapter).eval()
  return hf_checkpoints.logits(network, IDS)


@pytest.mark.parametrize("case", quick_for({"qwen3_tied"}, CASES))
def test_peft_computes_what_the_merged_parameters_do(case, tmp_path):
  family, cfg, scan = CASES[case]
  hf_checkpoints.make(family, tmp_path / "base")
  model, params, trained, frozen = adapted(tmp_path / "base", cfg, scan)
  peft.save_adapter(tmp_path / "adapter", model, trained["lora"], rank=cfg.lora_rank,
                    alpha=cfg.lora_alpha, base=str(tmp_path / "base"))
  ours = np.asarray(logits(trainable.merge(trained, frozen, cfg), model))
  theirs = with_peft(tmp_path / "base", tmp_path / "adapter")
  np.testing.assert_allclose(theirs, ours, atol=1e-4 * max(1.0, np.abs(ours).max()))
  assert np.abs(ours - np.asarray(logits(params, model))).max() > 0.1  # the adapters matter
  wrong = dataclasses.replace(cfg, lora_alpha=cfg.lora_alpha * 1.1)  # and so does their scale
  others = np.asarray(logits(trainable.merge(trained, frozen, wrong), model))
  assert np.abs(theirs - others).max() > 1e-2
  with pytest.raises(hf.CheckpointError, match="already holds an adapter"):
    peft.save_adapter(tmp_path / "adapter", model, trained["lora"], rank=3, alpha=12.0)


def test_what_peft_has_no_place_for_is_refused(tmp_path):
  hf_checkpoints.make("qwen3_moe", tmp_path / "base")
  model, _, trained, _ = adapted(tmp_path / "base", LORA, False)
  # one per expert
  assert flatten_dict(trained["lora"])["blocks", 0, "mlp", "gate", "a"].shape[0] == 4
  with pytest.raises(hf.CheckpointError, match="router or of experts"):
    peft.save_adapter(tmp_path / "adapter", model, trained["lora"], rank=3, alpha=12.0)
  assert not (tmp_path / "adapter").exists()
